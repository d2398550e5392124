"""SQLite: a file in the data folder of one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

BUSY_TIMEOUT_MS = 10_000


class _InPlace:
    """A connection that runs its statements right here in the event loop.

    SQLite answers ours in microseconds, while handing each to a thread, as asynchronous drivers do,
    costs ten times the CPU of the statement (docs/decisions.md has the figures).
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


class SqliteDatabase:
    """One SQLite file. Writers queue on a lock here, in order, instead of spinning on the file's, and begin with
    BEGIN IMMEDIATE, so that no transaction fails half way for want of it."""

    def __init__(self, url: str) -> None:
        self._engine = sa.create_engine(url, connect_args={"check_same_thread": False})
        event.listen(self._engine, "connect", _prepare)
        event.listen(self._engine, "begin", _begin)
        self._writer = self._engine.execution_options(remat_write=True)
        self._write_lock = asyncio.Lock()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[_InPlace]:
        """A connection for reads. Never wait for anything else while holding it."""
        with self._engine.connect() as connection:
            yield _InPlace(connection)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[_InPlace]:
        """A transaction that may write; commits at the end, rolls back on an error."""
        async with self._write_lock:
            with self._writer.begin() as connection:
                yield _InPlace(connection)

    async def close(self) -> None:
        """Closes every connection."""
        self._engine.dispose()


def _prepare(connection: Any, record: object) -> None:
    del record
    connection.isolation_level = None  # we say BEGIN ourselves
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", f"busy_timeout={BUSY_TIMEOUT_MS}", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("remat_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
