"""Schedules made without a solver. Whatever they cost, each must train bit for bit like store-all."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from remat_solver.graph import Graph
from remat_solver.plan import Plan, Provenance, referee_plan
from remat_solver.simulate import store_all_schedule

Scheduler = Callable[[Graph], tuple[int, ...]]
Evict = Callable[[int, int], bool]
"""Whether to let go of value v after op i has run for the first time."""


def store_all(graph: Graph) -> tuple[int, ...]:
    """No recomputation."""
    return store_all_schedule(graph)


def evict_all(graph: Graph) -> tuple[int, ...]:
    """Nothing that can be recomputed crosses the boundary."""
    boundary = boundary_of(graph)
    return schedule_with(graph, lambda op, _value: op == boundary)


def sqrt_segments(graph: Graph) -> tuple[int, ...]:
    """Chen's: keep the values of every sqrt(n)-th forward op, and forget the rest at the boundary."""
    boundary = boundary_of(graph)
    stride = max(1, math.isqrt(boundary))
    return schedule_with(graph, lambda op, value: op == boundary and graph.producer[value] % stride != 0)


def evicting_at_random(seed: int, share: float = 0.3) -> Scheduler:
    """After every op, forgets each value with probability `share`: recomputes inside the forward too."""

    def schedule(graph: Graph) -> tuple[int, ...]:
        generator = random.Random(seed)
        return schedule_with(graph, lambda _op, _value: generator.random() < share)

    return schedule


def schedule_with(graph: Graph, evict: Evict) -> tuple[int, ...]:
    """Runs every op in order, recomputing what it needs and no longer has."""
    live: set[int] = set()
    schedule: list[int] = []
    for op in range(len(graph)):
        for needed in [*_missing(graph, op, live), op]:
            schedule.append(needed)
            live.update(graph.written_by(needed))
        recomputable = sorted(value for value in live if graph.ops[graph.producer[value]].recomputable)
        live.difference_update([value for value in recomputable if evict(op, value)])
    return tuple(schedule)


def _missing(graph: Graph, op: int, live: set[int]) -> list[int]:
    """The ops to recompute before `op`, in order."""
    needed: set[int] = set()
    waiting = [op]
    while waiting:
        for value in graph.ops[waiting.pop()].reads:
            producer = graph.producer[value]
            if value not in live and producer not in needed:
                needed.add(producer)
                waiting.append(producer)
    return sorted(needed)


def boundary_of(graph: Graph) -> int:
    """The op between forward and backward."""
    return next(index for index, op in enumerate(graph.ops) if op.name == "boundary")


def planner_of(scheduler: Scheduler) -> Callable[[Graph], Plan]:
    """A planner that follows `scheduler`, whatever the budget."""

    def plan(graph: Graph) -> Plan:
        return referee_plan(
            graph,
            scheduler(graph),
            budget_bytes=2**49,
            bound_ns=0,
            proof_scope="order",
            provenance=Provenance(strategy="test"),
        )

    return plan
