"""The workers table: which processes solve beside a PostgreSQL, and which of them are alive."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import sqlalchemy as sa

from remat_api.store.clock import now_ms
from remat_api.store.database import Database, insert_if_absent
from remat_api.store.tables import workers

LIVE_FOR_S = 15.0
"""How long a worker is counted after its last beat; beats come every few seconds."""


@dataclass(frozen=True, kw_only=True)
class WorkerRecord:
    """One `remat worker`: `slots` jobs at once, with this MIP engine ("" if it found none)."""

    id: str
    host: str
    slots: int
    engine: str
    started_ms: int


class WorkerStore:
    """Signing on, beating, signing off."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def beat(self, worker: WorkerRecord) -> None:
        """Says that the worker is alive, and forgets those that have long been silent."""
        moment = now_ms()
        row = {**asdict(worker), "beat_ms": moment}
        async with self._database.writing() as connection:
            if not await insert_if_absent(connection, workers, row):
                mine = sa.update(workers).where(workers.c.id == worker.id)
                await connection.execute(mine.values(beat_ms=moment, engine=worker.engine))
            gone = workers.c.beat_ms < moment - int(10 * LIVE_FOR_S * 1000)
            await connection.execute(sa.delete(workers).where(gone))

    async def leave(self, worker_id: str) -> None:
        """The worker ends."""
        async with self._database.writing() as connection:
            await connection.execute(sa.delete(workers).where(workers.c.id == worker_id))

    async def living(self) -> list[WorkerRecord]:
        """The workers that were heard of lately, oldest first."""
        alive = workers.c.beat_ms > now_ms() - int(LIVE_FOR_S * 1000)
        query = sa.select(workers).where(alive).order_by(workers.c.started_ms, workers.c.id)
        async with self._database.reading() as connection:
            rows = (await connection.execute(query)).all()
        return [
            WorkerRecord(id=row.id, host=row.host, slots=row.slots, engine=row.engine, started_ms=row.started_ms)
            for row in rows
        ]
