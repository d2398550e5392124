"""Requests that carried an Idempotency-Key: a repeat gives the same solve, not another one."""

from __future__ import annotations

import sqlalchemy as sa

from remat_api.store.clock import now_ms
from remat_api.store.database import Database, insert_if_absent
from remat_api.store.tables import repeats
from remat_solver.errors import InvalidRequest

KEPT_FOR_MS = 24 * 3600 * 1000


class RepeatStore:
    """Idempotency keys of each owner, for a day."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, owner: str, idempotency_key: str, body_hash: str) -> str | None:
        """The id of the solve that this request made before; raises `InvalidRequest` if its body was another."""
        mine = (repeats.c.owner == owner, repeats.c.idempotency_key == idempotency_key)
        async with self._database.reading() as connection:
            row = (await connection.execute(sa.select(repeats).where(*mine))).one_or_none()
        if row is None or row.created_ms < now_ms() - KEPT_FOR_MS:
            return None
        if row.body_hash != body_hash:
            raise InvalidRequest(
                "this Idempotency-Key was used for another request.",
                hint="Take a new key for each request.",
                field="Idempotency-Key",
            )
        solve_id: str = row.solve_id
        return solve_id

    async def record(self, owner: str, idempotency_key: str, body_hash: str, solve_id: str) -> None:
        """Remembers which solve a request made. Of two at once the first stays; their solves share a job anyway."""
        mine = (repeats.c.owner == owner, repeats.c.idempotency_key == idempotency_key)
        outdated = repeats.c.created_ms < now_ms() - KEPT_FOR_MS
        row = {"owner": owner, "idempotency_key": idempotency_key, "body_hash": body_hash, "solve_id": solve_id}
        async with self._database.writing() as connection:
            await connection.execute(sa.delete(repeats).where(*mine, outdated))
            await insert_if_absent(connection, repeats, {**row, "created_ms": now_ms()})
