"""What other processes do to jobs, as PostgreSQL tells it: its triggers send a word for every event and every stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import psycopg

log = logging.getLogger(__name__)
CHANNEL = "remat_jobs"
QUIET_S = 15.0
"""After so long without a word the connection is tried, for a lost one is silent too."""
RETRY_S = 0.5


class Listener:
    """Calls `on_word` with a job's id and what happened, and `on_gap` when words may have been missed."""

    def __init__(
        self, libpq_url: str, on_word: Callable[[str, str], Awaitable[None]], on_gap: Callable[[], None]
    ) -> None:
        self._libpq_url = libpq_url
        self._on_word = on_word
        self._on_gap = on_gap

    async def listen(self) -> None:
        """Listens until it is cancelled; a lost connection is made again."""
        while True:
            try:
                await self._listen()
            except psycopg.OperationalError as error:
                log.warning("not connected to the database: %s", str(error).splitlines()[:1])
            await asyncio.sleep(RETRY_S)

    async def _listen(self) -> None:
        async with await psycopg.AsyncConnection.connect(self._libpq_url, autocommit=True) as connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            self._on_gap()
            while True:
                async for notice in connection.notifies(timeout=QUIET_S):
                    job_id, _, kind = notice.payload.partition(" ")
                    await self._on_word(job_id, kind)
                await connection.execute("SELECT 1")
