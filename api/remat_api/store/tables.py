"""The tables. Times are UTC milliseconds since 1970; JSON columns hold plain objects.

solves    what a client asked and holds: many may share one job
jobs      the work: at most one open job per key, so equal questions are solved once
answers   what is known for good about a key: a plan, or the proof that there is none
plans     refereed plans, by the sha256 of their JSON
graphs    uploaded graphs, by the sha256 of their JSON
points    the plans of a frontier, as they are found
events    what happened to a job, in order, for replay
workers   processes that solve beside a PostgreSQL, and when each was last heard of
api_keys  who may ask, with quotas; secrets only as sha256
costs     what one run of an op takes, by device, PyTorch and op signature
repeats   requests that carried an Idempotency-Key, and the solve that each made
"""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)
SHA256 = sa.String(64)
ID = sa.String(40)
STATE = sa.String(16)

graphs = sa.Table(
    "graphs",
    metadata,
    sa.Column("id", SHA256, primary_key=True),
    sa.Column("hash", SHA256, nullable=False, index=True),
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column("name", sa.String(200), nullable=False),
    sa.Column("op_count", sa.Integer, nullable=False),
    sa.Column("value_count", sa.Integer, nullable=False),
    sa.Column("fixed_bytes", sa.BigInteger, nullable=False),
    sa.Column("store_all_peak_bytes", sa.BigInteger, nullable=False),
    sa.Column("store_all_time_ns", sa.BigInteger, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("data", sa.LargeBinary),  # NULL: in the blob folder
    sa.Column("created_ms", sa.BigInteger, nullable=False),
)

plans = sa.Table(
    "plans",
    metadata,
    sa.Column("id", SHA256, primary_key=True),
    sa.Column("graph_hash", SHA256, nullable=False, index=True),
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

answers = sa.Table(
    "answers",
    metadata,
    sa.Column("key", SHA256, primary_key=True),
    sa.Column("family", SHA256, nullable=False),
    sa.Column("plan_id", SHA256, sa.ForeignKey("plans.id")),
    sa.Column("error", sa.JSON),  # an InfeasibleBudget, where there is no plan
    sa.Column("budget_bytes", sa.BigInteger),
    sa.Column("peak_bytes", sa.BigInteger),
    sa.Column("gap", sa.Float),
    sa.Column("infeasible_below_bytes", sa.BigInteger),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Index("ix_answers_family_budget", "family", "budget_bytes"),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", ID, primary_key=True),
    sa.Column("key", SHA256, nullable=False),
    sa.Column("family", SHA256, nullable=False),
    sa.Column("graph_id", SHA256, sa.ForeignKey("graphs.id"), nullable=False),
    sa.Column("options", sa.JSON, nullable=False),
    sa.Column("points", sa.Integer),  # of a frontier; NULL: one plan
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("state", STATE, nullable=False),
    sa.Column("stop", sa.String(8), nullable=False),  # "", "best" or "discard"
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("deaths", sa.Integer, nullable=False, server_default="0"),  # attempts that ended with their worker
    sa.Column("token", ID),
    sa.Column("heartbeat_ms", sa.BigInteger),
    sa.Column("progress", sa.JSON),
    sa.Column("plan_id", SHA256, sa.ForeignKey("plans.id")),
    sa.Column("error", sa.JSON),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("started_ms", sa.BigInteger),
    sa.Column("finished_ms", sa.BigInteger),
    sa.Index("ix_jobs_queue", "state", sa.text("priority DESC"), "id"),
    sa.Index(
        "uq_jobs_open_key",
        "key",
        unique=True,
        sqlite_where=sa.text("state IN ('queued', 'running') AND stop = ''"),
        postgresql_where=sa.text("state IN ('queued', 'running') AND stop = ''"),
    ),
)

solves = sa.Table(
    "solves",
    metadata,
    sa.Column("id", ID, primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column("job_id", ID, sa.ForeignKey("jobs.id"), index=True),
    sa.Column("key", SHA256, nullable=False),
    sa.Column("graph_id", SHA256, nullable=False),
    sa.Column("options", sa.JSON, nullable=False),
    sa.Column("points", sa.Integer),
    sa.Column("tags", sa.JSON, nullable=False),
    sa.Column("state", STATE, nullable=False),
    sa.Column("stop", sa.String(8), nullable=False),
    sa.Column("source", sa.String(16), nullable=False),  # "cache", "joined" or "solve"
    sa.Column("plan_id", SHA256, sa.ForeignKey("plans.id")),
    sa.Column("error", sa.JSON),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("finished_ms", sa.BigInteger),
    sa.Column("queue_deadline_ms", sa.BigInteger),  # it fails if it still waits for a worker then
    sa.Index("ix_solves_owner", "owner", "id"),
    sa.Index("ix_solves_state", "state", "id"),
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("job_id", ID, sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("body", sa.JSON, nullable=False),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
)

points = sa.Table(
    "points",
    metadata,
    sa.Column("job_id", ID, sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("budget_bytes", sa.BigInteger, primary_key=True),
    sa.Column("plan_id", SHA256, sa.ForeignKey("plans.id"), nullable=False),
)

workers = sa.Table(
    "workers",
    metadata,
    sa.Column("id", ID, primary_key=True),
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("slots", sa.Integer, nullable=False),
    sa.Column("engine", sa.String(64), nullable=False),
    sa.Column("started_ms", sa.BigInteger, nullable=False),
    sa.Column("beat_ms", sa.BigInteger, nullable=False),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("name", sa.String(100), nullable=False),
    sa.Column("secret_hash", SHA256, nullable=False),
    sa.Column("scopes", sa.JSON, nullable=False),
    sa.Column("max_open_solves", sa.Integer, nullable=False),
    sa.Column("solve_seconds_per_day", sa.Integer, nullable=False),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("expires_ms", sa.BigInteger),
    sa.Column("revoked_ms", sa.BigInteger),
    sa.Column("last_used_ms", sa.BigInteger),
)

costs = sa.Table(
    "costs",
    metadata,
    sa.Column("device", sa.String(200), primary_key=True),
    sa.Column("torch", sa.String(200), primary_key=True),
    sa.Column("signature", SHA256, primary_key=True),
    sa.Column("time_ns", sa.BigInteger, nullable=False),
    sa.Column("workspace_bytes", sa.BigInteger, nullable=False),
    sa.Column("created_ms", sa.BigInteger, nullable=False, index=True),
)

repeats = sa.Table(
    "repeats",
    metadata,
    sa.Column("owner", sa.String(64), primary_key=True),
    sa.Column("idempotency_key", sa.String(255), primary_key=True),
    sa.Column("body_hash", SHA256, nullable=False),
    sa.Column("solve_id", ID, nullable=False),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
)
