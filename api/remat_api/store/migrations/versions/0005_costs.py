"""The shared cost table."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "costs",
        sa.Column("device", sa.String(200), primary_key=True),
        sa.Column("torch", sa.String(200), primary_key=True),
        sa.Column("signature", sa.String(64), primary_key=True),
        sa.Column("time_ns", sa.BigInteger, nullable=False),
        sa.Column("workspace_bytes", sa.BigInteger, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False, index=True),
    )


def downgrade() -> None:
    op.drop_table("costs")
