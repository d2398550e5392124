"""The shared cost table: what one run of an op takes, by device and PyTorch, for all who have the same.

Measured times differ from run to run, and a plan's key holds them: jobs that share costs build the same graph
and so share its plan. The first cost of a signature stays, whoever sent it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from remat_api.store.clock import now_ms
from remat_api.store.database import Connection, Database, insert_all_absent
from remat_api.store.tables import costs
from remat_solver.errors import InvalidRequest, LimitExceeded

MAX_COSTS = 50_000
"""Of one device and PyTorch."""
MAX_COST = 2**53
"""Nanoseconds or bytes of one op: a hundred days, or eight petabytes."""
BATCH = 500
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class OpCost:
    """What one run of an op takes. `signature`: sha256 (hex) of the op's signature as the SDK writes it."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    signature: str
    time_ns: int
    workspace_bytes: int

    def __post_init__(self) -> None:
        if not _SHA256.fullmatch(self.signature):
            raise InvalidRequest(
                f"{self.signature[:80]!r} is no sha256.", hint="Hash the signature.", field="signature"
            )
        for name in ("time_ns", "workspace_bytes"):
            if not 0 <= getattr(self, name) <= MAX_COST:
                raise InvalidRequest(f"{name} is {getattr(self, name)}, outside 0 to {MAX_COST}.", field=name)


class CostStore:
    """Costs by device, PyTorch and op signature."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def table(self, device: str, torch: str) -> tuple[OpCost, ...]:
        """All that is known for a device and PyTorch."""
        async with self._database.reading() as connection:
            return await _read(connection, _of(device, torch))

    async def put(self, device: str, torch: str, measured: Iterable[OpCost]) -> tuple[OpCost, ...]:
        """Keeps costs, except where there is one already; returns what now holds for these signatures.

        Raises `LimitExceeded`.
        """
        rows = [
            {
                "device": device,
                "torch": torch,
                "signature": cost.signature,
                "time_ns": cost.time_ns,
                "workspace_bytes": cost.workspace_bytes,
                "created_ms": now_ms(),
            }
            for cost in sorted(measured, key=lambda cost: cost.signature)  # one order for all: no deadlock
        ]
        kept: list[OpCost] = []
        async with self._database.writing() as connection:
            count = sa.select(sa.func.count()).select_from(costs).where(_of(device, torch))
            if await connection.scalar(count) + len(rows) > MAX_COSTS:
                raise LimitExceeded(
                    f"there is no room for {len(rows)} more costs of this device.",
                    hint="Ask the service's operator to run `remat gc`.",
                    limit=MAX_COSTS,
                )
            for start in range(0, len(rows), BATCH):
                batch = rows[start : start + BATCH]
                await insert_all_absent(connection, costs, batch)
                signatures = [row["signature"] for row in batch]
                kept += await _read(connection, sa.and_(_of(device, torch), costs.c.signature.in_(signatures)))
        return tuple(kept)


def _of(device: str, torch: str) -> sa.ColumnElement[bool]:
    return sa.and_(costs.c.device == device, costs.c.torch == torch)


async def _read(connection: Connection, wanted: sa.ColumnElement[bool]) -> tuple[OpCost, ...]:
    columns = (costs.c.signature, costs.c.time_ns, costs.c.workspace_bytes)
    rows = await connection.execute(sa.select(*columns).where(wanted).order_by(costs.c.signature))
    return tuple(
        OpCost(signature=row.signature, time_ns=row.time_ns, workspace_bytes=row.workspace_bytes) for row in rows
    )
