"""The database's tables, brought to the version that this program needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import alembic.command
import alembic.config
import alembic.script
import sqlalchemy as sa

from remat_api.settings import Settings
from remat_api.store.database import AWAY, Database, connect, unreachable
from remat_solver.errors import InvalidRequest

MIGRATIONS = Path(__file__).parent / "migrations"
MIGRATING = 8417
"""The advisory lock of PostgreSQL that whoever migrates holds."""


def migrate(url: str, revision: str = "head") -> None:
    """Brings the database's tables to `revision`; safe to run again, and by several at once."""
    engine = sa.create_engine(url)
    try:
        with engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATING)))
            config = _migrations()
            config.attributes["connection"] = connection
            alembic.command.upgrade(config, revision)
            if connection.dialect.name == "postgresql" and revision == "head":
                from remat_api.store.queue_tables import (
                    migrate_queue,  # procrastinate comes with the extra `postgresql`
                )

                migrate_queue(connection)
    finally:
        engine.dispose()


def applied_revision(url: str) -> str | None:
    """The migration that the database is at; None before the first."""
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            if not sa.inspect(connection).has_table("alembic_version"):
                return None
            found: str | None = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
            return found
    finally:
        engine.dispose()


def prepare(settings: Settings) -> None:
    """Makes the database fit for use: migrates SQLite, looks whether PostgreSQL was migrated.

    Many processes share a PostgreSQL, old and new ones during an upgrade: when its tables change is the operator's
    word. Raises `InvalidRequest` if that has not been given, and `ServiceUnavailable` if the database can't be reached.
    """
    if not settings.is_clustered:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        migrate(settings.sqlalchemy_url)
        return
    try:
        found = applied_revision(settings.sqlalchemy_url)
    except AWAY as error:
        raise unreachable(error) from None
    newest = alembic.script.ScriptDirectory.from_config(_migrations()).get_current_head()
    if found != newest:
        raise InvalidRequest(
            f"the database is at revision {found or 'none'}; this version needs {newest}.", hint="Run `remat migrate`."
        )


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Database]:
    """The database of `settings`, prepared first."""
    await asyncio.to_thread(prepare, settings)
    database = connect(settings)
    try:
        yield database
    finally:
        await database.close()


def _migrations() -> alembic.config.Config:
    config = alembic.config.Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config
