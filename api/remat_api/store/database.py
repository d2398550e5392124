"""The database: one engine, reading and writing transactions, and the migrations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import alembic.command
import alembic.config
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import postgresql, sqlite

from remat_api.settings import Settings

MIGRATIONS = Path(__file__).parent / "migrations"
BUSY_TIMEOUT_MS = 10_000


class Connection:
    """What the stores see of a connection: the two methods of SQLAlchemy's `AsyncConnection` that they use.

    It runs its statements right here in the event loop. SQLite answers ours in microseconds, while
    handing each to a thread, as asynchronous drivers do, costs ten times the CPU of the statement
    (docs/decisions.md has the figures).
    """

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self.dialect = connection.dialect

    async def execute(self, statement: sa.Executable) -> sa.CursorResult[Any]:
        """Runs a statement."""
        return self._connection.execute(statement)

    async def scalar(self, statement: sa.Executable) -> Any:
        """Runs a statement; the first column of its first row, or None."""
        return self._connection.scalar(statement)


class Database:
    """One SQLite file. Writers queue on a lock here, in order, instead of spinning on the file's, and begin with
    BEGIN IMMEDIATE, so that no transaction fails half way for want of it."""

    def __init__(self, url: str) -> None:
        self._engine = sa.create_engine(url, connect_args={"check_same_thread": False})
        event.listen(self._engine, "connect", _prepare_sqlite)
        event.listen(self._engine, "begin", _begin_sqlite)
        self._writer = self._engine.execution_options(remat_write=True)
        self._write_lock = asyncio.Lock()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Connection]:
        """A connection for reads. Never wait for anything else while holding it."""
        with self._engine.connect() as connection:
            yield Connection(connection)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Connection]:
        """A transaction that may write; commits at the end, rolls back on an error."""
        async with self._write_lock:
            with self._writer.begin() as connection:
                yield Connection(connection)

    async def close(self) -> None:
        """Closes every connection."""
        self._engine.dispose()


async def insert_if_absent(connection: Connection, table: sa.Table, row: dict[str, Any]) -> bool:
    """Inserts `row` unless its key or a unique index is taken; whether it did."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    result = await connection.execute(dialect.insert(table).values(**row).on_conflict_do_nothing())
    return bool(result.rowcount)


def _prepare_sqlite(connection: Any, record: object) -> None:
    del record
    connection.isolation_level = None  # we say BEGIN ourselves
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", f"busy_timeout={BUSY_TIMEOUT_MS}", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("remat_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def migrate(url: str, revision: str = "head") -> None:
    """Brings the database's tables to `revision`; safe to run again."""
    engine = sa.create_engine(url)
    try:
        with engine.begin() as connection:
            config = alembic.config.Config()
            config.set_main_option("script_location", str(MIGRATIONS))
            config.attributes["connection"] = connection
            alembic.command.upgrade(config, revision)
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


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Database]:
    """The database of `settings`, migrated first."""
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    await asyncio.to_thread(migrate, settings.sqlalchemy_url)
    database = Database(settings.sqlalchemy_url)
    try:
        yield database
    finally:
        await database.close()
