"""The database, whichever it is: reading and writing transactions, and the migrations.

SQLite (a file in the data folder) serves one process, PostgreSQL serves many. The stores see a
`Database` and write the same SQLAlchemy statements for both. What holds on SQLite because writers
come one after the other holds on PostgreSQL because every change to a job, or to the solves that
wait for it, first locks the job's row.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import alembic.command
import alembic.config
import alembic.script
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from remat_api.settings import Settings
from remat_solver.errors import InvalidRequest, ServiceUnavailable

MIGRATIONS = Path(__file__).parent / "migrations"
MIGRATING = 8417
"""The advisory lock of PostgreSQL that whoever migrates holds."""
AWAY = (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError)
"""What a database raises that can't be reached, or is overwhelmed, for now."""


class Connection(Protocol):
    """What the stores see of a connection."""

    @property
    def dialect(self) -> sa.Dialect:
        """The database's kind."""
        ...

    async def execute(self, statement: sa.Executable) -> sa.CursorResult[Any]:
        """Runs a statement."""
        ...

    async def scalar(self, statement: sa.Executable) -> Any:
        """Runs a statement; the first column of its first row, or None."""
        ...


class Database(Protocol):
    """Where transactions come from."""

    def reading(self) -> AbstractAsyncContextManager[Connection]:
        """A connection for reads. Never wait for anything else while holding it."""
        ...

    def writing(self) -> AbstractAsyncContextManager[Connection]:
        """A transaction that may write; commits at the end, rolls back on an error."""
        ...

    async def close(self) -> None:
        """Closes every connection."""
        ...


def connect(settings: Settings) -> Database:
    """The database of `settings`, which must be migrated; opens no connection yet."""
    if settings.is_clustered:
        from remat_api.store.postgresql import PostgresDatabase  # its drivers come with the extra `postgresql`

        return PostgresDatabase(settings.sqlalchemy_url)
    from remat_api.store.sqlite import SqliteDatabase

    return SqliteDatabase(settings.sqlalchemy_url)


async def insert_if_absent(connection: Connection, table: sa.Table, row: dict[str, Any]) -> bool:
    """Inserts `row` unless its key or a unique index is taken; whether it did."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    insert = dialect.insert(table).values(**row).on_conflict_do_nothing()
    result = await connection.execute(insert.execution_options(preserve_rowcount=True))
    return result.rowcount == 1


async def insert_all_absent(connection: Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    """Inserts those of `rows` (some hundreds at most) whose key is not taken."""
    if rows:
        dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
        await connection.execute(dialect.insert(table).values(rows).on_conflict_do_nothing())


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
                from remat_api.jobs.deliveries import migrate_queue

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


def unreachable(error: Exception) -> ServiceUnavailable:
    """What to say of a database that is away."""
    return ServiceUnavailable(
        f"can't reach the database: {first_line(error)}.", hint="Check REMAT_DATABASE_URL and the database server."
    )


def first_line(error: Exception) -> str:
    """What went wrong, in the driver's words, without the statement."""
    original = getattr(error, "orig", None) or error
    return (str(original).strip().splitlines() or [type(original).__name__])[0]


def _migrations() -> alembic.config.Config:
    config = alembic.config.Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config
