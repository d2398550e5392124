"""The database, whichever it is: reading and writing transactions.

SQLite (a file in the data folder) serves one process, PostgreSQL serves many. The stores see a
`Database` and write the same SQLAlchemy statements for both. What holds on SQLite because writers
come one after the other holds on PostgreSQL because every change to a job, or to the solves that
wait for it, first locks the job's row.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from remat_api.settings import Settings
from remat_solver.errors import ServiceUnavailable

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


def unreachable(error: Exception) -> ServiceUnavailable:
    """What to say of a database that is away."""
    return ServiceUnavailable(
        f"can't reach the database: {first_line(error)}.", hint="Check REMAT_DATABASE_URL and the database server."
    )


def first_line(error: Exception) -> str:
    """What went wrong, in the driver's words, without the statement."""
    original = getattr(error, "orig", None) or error
    return (str(original).strip().splitlines() or [type(original).__name__])[0]
