"""The other extreme: nothing of the forward pass is kept for the backward pass."""

from __future__ import annotations

from remat_solver.strategies.base import Found, Task
from remat_solver.strategies.candidates import Candidates

_MOST_RUNS = 2_000_000


def recompute_all(task: Task) -> Found:
    """Each backward op computes afresh all that it needs from the forward pass; nothing else is kept for it.

    Without phases every op counts as backward. The time grows with the square of the graph.
    Raises `NoPlanInTime` if even that does not fit, and `StrategyNotApplicable` on graphs whose
    schedule would be absurdly long.
    """
    candidates = Candidates(task, "recompute_all")
    graph = task.graph
    lifetimes = candidates.lifetimes
    first_backward = next((i for i, op in enumerate(graph.ops) if op.phase == "backward"), 0)
    backward_count = len(graph) - first_backward
    if backward_count * max(first_backward, backward_count) > _MOST_RUNS:
        raise candidates.not_applicable(f"with {len(graph)} ops its schedule would have millions of steps")
    kept: dict[int, frozenset[int]] = {}
    gradients: set[int] = set()
    for stage in range(first_backward, len(graph)):
        kept[stage] = frozenset(v for v in gradients if lifetimes.last_use[v] >= stage)
        if first_backward:
            gradients.update(lifetimes.writes[stage])
    candidates.offer_retention(kept)
    return candidates.best()
