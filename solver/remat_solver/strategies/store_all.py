"""The baseline: every op once, in order."""

from __future__ import annotations

from remat_solver.simulate import store_all_schedule
from remat_solver.strategies.base import Found, Task
from remat_solver.strategies.candidates import Candidates


def store_all(task: Task) -> Found:
    """The schedule without recomputation, optimal wherever it fits.

    Raises `NoPlanInTime` where it does not, and `StrategyNotApplicable` for `recompute` pins.
    """
    candidates = Candidates(task, "store_all")
    if task.absent_at_boundary:
        raise candidates.not_applicable("it never recomputes, so that it can't obey `recompute` pins")
    candidates.offer(store_all_schedule(task.graph))
    return candidates.best()
