"""The ways to run one piece: its schedules between "everything runs again" and "nothing does", and what each takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from remat_solver.bounds import working_set_bound
from remat_solver.errors import InfeasibleBudget, NoPlanInTime
from remat_solver.graph import Graph
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.solve import solve

FORWARD, WAITING, BACKWARD = "forward", "waiting", "backward"
"""The roles of a piece: while its forward runs, between the two, and while its backward runs."""

_SHARES = (0.25, 0.5, 0.75)
_ROOM = 1.1
"""No schedule is sought whose peak is below this multiple of the working-set bound."""
_LEAST_S = 2.0
"""No solve is given less time; most need a fraction of it."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A schedule of a piece, the time of what it runs again, and the bytes that the piece holds in each role."""

    steps: tuple[int, ...]
    recompute_ns: int
    bytes_by_role: dict[str, int]

    @property
    def peak_bytes(self) -> int:
        """The most that it ever holds."""
        return max(self.bytes_by_role.values())


def ways_of(graph: Graph, *, negligible_bytes: int, time_limit_s: float, **solve_fields: Any) -> list[Schedule]:
    """Schedules of a measured piece: with nothing saved, then others, and last with all saved.

    Each of the others is the fastest found for one limit on what waits and one on the peak. A piece that saves next to
    nothing has the two extremes only.
    """
    least, most = (refereed(graph, steps) for steps in (nothing_saved(graph), store_all_schedule(graph)))
    others: dict[tuple[int, ...], Schedule] = {}
    room = most.bytes_by_role[WAITING] - least.bytes_by_role[WAITING]
    if max(room, most.peak_bytes - least.peak_bytes) > negligible_bytes:
        highest = max(least.peak_bytes, most.peak_bytes)
        floor = min(highest, int(_ROOM * working_set_bound(graph)))
        waiting = [least.bytes_by_role[WAITING] + int(share * room) for share in _SHARES]
        limits = [(bytes_, highest) for bytes_ in waiting]
        limits += [
            (bytes_, floor + int(share * (highest - floor))) for bytes_, share in zip(waiting, _SHARES, strict=True)
        ]
        limits += [(most.bytes_by_role[WAITING], (floor + highest) // 2)]
        for waiting_bytes, peak_bytes in limits:
            limit_s = max(_LEAST_S, time_limit_s / len(limits))
            steps = _solved(graph, waiting_bytes, peak_bytes, limit_s, solve_fields)
            if steps is not None:
                others[steps] = refereed(graph, steps)
    return [least, *(way for steps, way in others.items() if steps not in (least.steps, most.steps)), most]


def _solved(
    graph: Graph, waiting_bytes: int, peak_bytes: int, time_limit_s: float, fields: dict[str, Any]
) -> tuple[int, ...] | None:
    """A schedule within both limits. While a piece waits, others take what the boundary op is charged with here."""
    if waiting_bytes > peak_bytes:
        return None
    boundary = boundary_of(graph)
    loaded = replace(graph.ops[boundary], workspace_bytes=peak_bytes - waiting_bytes)
    ops = (*graph.ops[:boundary], loaded, *graph.ops[boundary + 1 :])
    try:
        return solve(replace(graph, ops=ops), budget_bytes=peak_bytes, time_limit_s=time_limit_s, **fields).schedule
    except (InfeasibleBudget, NoPlanInTime):
        return None


def refereed(graph: Graph, steps: tuple[int, ...]) -> Schedule:
    """What a schedule costs, by the referee."""
    replay = simulate(graph, steps)
    waits = steps.index(boundary_of(graph))
    timeline = replay.timeline_bytes
    return Schedule(
        steps=steps,
        recompute_ns=replay.time_ns - graph.total_time_ns,
        bytes_by_role={
            FORWARD: max(timeline[: waits + 1]),
            WAITING: timeline[waits],
            BACKWARD: max(timeline[waits:]),
        },
    )


def boundary_of(graph: Graph) -> int:
    """The op between the phases: the last one, where the backward does nothing but look at tensors otherwise."""
    return next((index for index, op in enumerate(graph.ops) if op.phase == "backward"), len(graph)) - 1


def nothing_saved(graph: Graph) -> tuple[int, ...]:
    """Every value that can be made again is dropped at the boundary, and made again when the backward needs it."""
    boundary = boundary_of(graph)
    steps = list(range(boundary + 1))
    live = {value for op in steps if not graph.ops[op].recomputable for value in graph.written_by(op)}
    live.update(graph.written_by(boundary))
    for op in range(boundary + 1, len(graph)):
        for needed in [*_missing(graph, op, live), op]:
            steps.append(needed)
            live.update(graph.written_by(needed))
    return tuple(steps)


def _missing(graph: Graph, op: int, live: set[int]) -> list[int]:
    """The ops to run again before `op`, in order."""
    found: set[int] = set()
    waiting = [op]
    while waiting:
        for value in graph.ops[waiting.pop()].reads:
            producer = graph.producer[value]
            if value not in live and producer not in found:
                found.add(producer)
                waiting.append(producer)
    return sorted(found)
