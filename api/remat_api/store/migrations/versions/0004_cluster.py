"""Many processes on one PostgreSQL: workers make themselves known, and changes are told to whoever listens."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TELL = """
CREATE FUNCTION remat_tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_TABLE_NAME = 'events' THEN
        PERFORM pg_notify('remat_jobs', NEW.job_id || ' ' || NEW.kind);
    ELSIF TG_TABLE_NAME = 'jobs' THEN
        PERFORM pg_notify('remat_jobs', NEW.id || ' stop');
    ELSE
        PERFORM pg_notify('remat_jobs', NEW.job_id || ' cancelled');
    END IF;
    RETURN NULL;
END $$
"""
TRIGGERS = {
    "events": "AFTER INSERT ON events FOR EACH ROW",
    "jobs": "AFTER UPDATE OF stop ON jobs FOR EACH ROW WHEN (OLD.stop IS DISTINCT FROM NEW.stop)",
    "solves": "AFTER UPDATE OF state ON solves FOR EACH ROW"
    " WHEN (NEW.state IN ('cancelled', 'failed') AND NEW.job_id IS NOT NULL)",
}


def upgrade() -> None:
    op.add_column("jobs", sa.Column("deaths", sa.Integer, nullable=False, server_default="0"))
    op.add_column("solves", sa.Column("queue_deadline_ms", sa.BigInteger))
    op.create_table(
        "workers",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("slots", sa.Integer, nullable=False),
        sa.Column("engine", sa.String(64), nullable=False),
        sa.Column("started_ms", sa.BigInteger, nullable=False),
        sa.Column("beat_ms", sa.BigInteger, nullable=False),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.create_table("queue_migrations", sa.Column("name", sa.String(255), primary_key=True))
        op.execute(TELL)
        for table, when in TRIGGERS.items():
            op.execute(f"CREATE TRIGGER remat_tell_{table} {when} EXECUTE FUNCTION remat_tell()")


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        for table in TRIGGERS:
            op.execute(f"DROP TRIGGER remat_tell_{table} ON {table}")
        op.execute("DROP FUNCTION remat_tell()")
        op.drop_table("queue_migrations")
    op.drop_table("workers")
    op.drop_column("solves", "queue_deadline_ms")
    op.drop_column("jobs", "deaths")
