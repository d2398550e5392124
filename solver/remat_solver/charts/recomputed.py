"""What a plan computes again: which ops, what that costs, and when."""

from __future__ import annotations

from dataclasses import dataclass

from remat_solver.graph import Graph
from remat_solver.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Recomputed:
    """An op that a plan runs more than once, what that costs and what its values hold."""

    name: str
    run_count: int
    extra_time_ns: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class ScheduleMatrix:
    """Which op each step runs: `first_ops[i]` runs for the first time at step `first_steps[i]`, and so on.

    Steps count from 0 in the order in which they run; ops are indices into the graph.
    """

    first_steps: tuple[int, ...]
    first_ops: tuple[int, ...]
    again_steps: tuple[int, ...]
    again_ops: tuple[int, ...]


def recomputed_ops(graph: Graph, plan: Plan) -> list[Recomputed]:
    """What the plan recomputes, dearest first."""
    rows = [
        Recomputed(
            name=graph.ops[op].name,
            run_count=count,
            extra_time_ns=(count - 1) * graph.ops[op].time_ns,
            size_bytes=sum(graph.sizes[value] for value in graph.written_by(op)),
        )
        for op, count in plan.run_counts.items()
        if count > 1
    ]
    return sorted(rows, key=lambda row: (-row.extra_time_ns, row.name))


def schedule_matrix(plan: Plan) -> ScheduleMatrix:
    """The steps of a plan, first runs apart from recomputations."""
    first: dict[int, int] = {}
    again: list[tuple[int, int]] = []
    for step, op in enumerate(plan.schedule):
        if first.setdefault(op, step) != step:
            again.append((step, op))
    return ScheduleMatrix(
        first_steps=tuple(first.values()),
        first_ops=tuple(first),
        again_steps=tuple(step for step, _ in again),
        again_ops=tuple(op for _, op in again),
    )
