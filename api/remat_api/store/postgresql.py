"""PostgreSQL: one database for many services and workers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

POOL_CONNECTIONS = 10
"""Connections of one process that stay open; as many more for a moment. Waiting requests hold none."""


class PostgresDatabase:
    """Transactions at the level READ COMMITTED: each statement sees what was committed before it.

    Connections are not tried before use, which would be a fifth of all round trips: after a restart of the server the
    first transaction fails, all others get new ones, and whoever asked asks again.
    """

    def __init__(self, url: str) -> None:
        self._engine = create_async_engine(url, pool_size=POOL_CONNECTIONS, max_overflow=POOL_CONNECTIONS)
        self._reader = self._engine.execution_options(isolation_level="AUTOCOMMIT")

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A connection for reads. Never wait for anything else while holding it."""
        async with self._reader.connect() as connection:
            yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that may write; commits at the end, rolls back on an error."""
        async with self._engine.begin() as connection:
            yield connection

    async def close(self) -> None:
        """Closes every connection."""
        await self._engine.dispose()
