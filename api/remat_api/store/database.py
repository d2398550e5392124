"""The database: one engine, reading and writing transactions, and the migrations."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import alembic.command
import alembic.config
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from remat_api.settings import Settings

MIGRATIONS = Path(__file__).parent / "migrations"
BUSY_TIMEOUT_MS = 10_000


class Database:
    """Transactions on SQLite or PostgreSQL.

    SQLite has one writer at a time: writers queue on a lock here, in order, instead of spinning on
    the file's, and begin with BEGIN IMMEDIATE, so that no transaction fails half way for want of it.
    """

    def __init__(self, url: str) -> None:
        self._engine = create_async_engine(url)
        self.is_sqlite = self._engine.dialect.name == "sqlite"
        self._write_lock: contextlib.AbstractAsyncContextManager[Any] = (
            asyncio.Lock() if self.is_sqlite else contextlib.nullcontext()
        )
        if self.is_sqlite:
            event.listen(self._engine.sync_engine, "connect", _prepare_sqlite)
            event.listen(self._engine.sync_engine, "begin", _begin_sqlite)
        self._writer = self._engine.execution_options(remat_write=True)

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A connection for reads. Never wait for anything else while holding it."""
        async with self._engine.connect() as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that may write; commits at the end, rolls back on an error."""
        async with self._write_lock, self._writer.begin() as connection:
            yield connection

    async def ping(self) -> None:
        """Raises if the database doesn't answer."""
        async with self.reading() as connection:
            await connection.execute(sa.text("SELECT 1"))

    async def close(self) -> None:
        """Closes every connection."""
        await self._engine.dispose()


async def insert_if_absent(connection: AsyncConnection, table: sa.Table, row: dict[str, Any]) -> bool:
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


def synchronous_url(url: str) -> str:
    """The same database through a driver that needs no event loop (psycopg does both)."""
    return url.replace("sqlite+aiosqlite:", "sqlite:")


def migrate(url: str, revision: str = "head") -> None:
    """Brings the database's tables to `revision`; safe to run again."""
    engine = sa.create_engine(synchronous_url(url))
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
    engine = sa.create_engine(synchronous_url(url))
    try:
        with engine.connect() as connection:
            if not sa.inspect(connection).has_table("alembic_version"):
                return None
            found: str | None = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
            return found
    finally:
        engine.dispose()


@contextlib.asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Database]:
    """The database of `settings`, migrated first if it is the embedded one."""
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    if settings.uses_sqlite:
        await asyncio.to_thread(migrate, settings.sqlalchemy_url)
    database = Database(settings.sqlalchemy_url)
    try:
        yield database
    finally:
        await database.close()
