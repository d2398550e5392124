"""Frontiers: jobs with many plans."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("points", sa.Integer))
    op.add_column("solves", sa.Column("points", sa.Integer))
    op.create_table(
        "points",
        sa.Column("job_id", sa.String(40), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("budget_bytes", sa.BigInteger, primary_key=True),
        sa.Column("plan_id", sa.String(64), sa.ForeignKey("plans.id"), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("points")
    op.drop_column("solves", "points")
    op.drop_column("jobs", "points")
