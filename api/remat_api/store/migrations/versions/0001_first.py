"""Graphs, plans, answers, jobs, solves and events."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SHA256 = sa.String(64)
ID = sa.String(40)
OPEN = sa.text("state IN ('queued', 'running') AND stop = ''")


def upgrade() -> None:
    _create_documents()
    _create_answers()
    _create_jobs()
    _create_solves()
    _create_events()


def _create_documents() -> None:
    op.create_table(
        "graphs",
        sa.Column("id", SHA256, primary_key=True),
        sa.Column("hash", SHA256, nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("op_count", sa.Integer, nullable=False),
        sa.Column("value_count", sa.Integer, nullable=False),
        sa.Column("fixed_bytes", sa.BigInteger, nullable=False),
        sa.Column("store_all_peak_bytes", sa.BigInteger, nullable=False),
        sa.Column("store_all_time_ns", sa.BigInteger, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("data", sa.LargeBinary),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_graphs_hash", "graphs", ["hash"])
    op.create_table(
        "plans",
        sa.Column("id", SHA256, primary_key=True),
        sa.Column("graph_hash", SHA256, nullable=False),
        sa.Column("objective", sa.String(16), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("budget_bytes", sa.BigInteger, nullable=False),
        sa.Column("peak_bytes", sa.BigInteger, nullable=False),
        sa.Column("time_ns", sa.BigInteger, nullable=False),
        sa.Column("bound_ns", sa.BigInteger, nullable=False),
        sa.Column("gap", sa.Float, nullable=False),
        sa.Column("overhead", sa.Float, nullable=False),
        sa.Column("data", sa.LargeBinary),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_plans_graph_hash", "plans", ["graph_hash"])


def _create_answers() -> None:
    op.create_table(
        "answers",
        sa.Column("key", SHA256, primary_key=True),
        sa.Column("family", SHA256, nullable=False),
        sa.Column("plan_id", SHA256, sa.ForeignKey("plans.id")),
        sa.Column("error", sa.JSON),
        sa.Column("budget_bytes", sa.BigInteger),
        sa.Column("peak_bytes", sa.BigInteger),
        sa.Column("gap", sa.Float),
        sa.Column("infeasible_below_bytes", sa.BigInteger),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_answers_family_budget", "answers", ["family", "budget_bytes"])


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", ID, primary_key=True),
        sa.Column("key", SHA256, nullable=False),
        sa.Column("family", SHA256, nullable=False),
        sa.Column("graph_id", SHA256, sa.ForeignKey("graphs.id"), nullable=False),
        sa.Column("options", sa.JSON, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("stop", sa.String(8), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("token", ID),
        sa.Column("heartbeat_ms", sa.BigInteger),
        sa.Column("progress", sa.JSON),
        sa.Column("plan_id", SHA256, sa.ForeignKey("plans.id")),
        sa.Column("error", sa.JSON),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("started_ms", sa.BigInteger),
        sa.Column("finished_ms", sa.BigInteger),
    )
    op.create_index("ix_jobs_queue", "jobs", ["state", sa.text("priority DESC"), "id"])
    op.create_index("uq_jobs_open_key", "jobs", ["key"], unique=True, sqlite_where=OPEN, postgresql_where=OPEN)


def _create_solves() -> None:
    op.create_table(
        "solves",
        sa.Column("id", ID, primary_key=True),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("job_id", ID, sa.ForeignKey("jobs.id")),
        sa.Column("key", SHA256, nullable=False),
        sa.Column("graph_id", SHA256, nullable=False),
        sa.Column("options", sa.JSON, nullable=False),
        sa.Column("tags", sa.JSON, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("stop", sa.String(8), nullable=False),
        sa.Column("source", sa.String(16), nullable=False),
        sa.Column("plan_id", SHA256, sa.ForeignKey("plans.id")),
        sa.Column("error", sa.JSON),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("finished_ms", sa.BigInteger),
    )
    op.create_index("ix_solves_job_id", "solves", ["job_id"])
    op.create_index("ix_solves_owner", "solves", ["owner", "id"])
    op.create_index("ix_solves_state", "solves", ["state", "id"])


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("job_id", ID, sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("body", sa.JSON, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    for table in ("events", "solves", "jobs", "answers", "plans", "graphs"):
        op.drop_table(table)
