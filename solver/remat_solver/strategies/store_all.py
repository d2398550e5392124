"""The baseline: every op once, in order."""

from __future__ import annotations

from remat_solver.pins import keeps_pins
from remat_solver.simulate import store_all_schedule
from remat_solver.strategies.base import Found, Task
from remat_solver.strategies.candidates import Candidates


def store_all(task: Task) -> Found:
    """The schedule without recomputation, optimal wherever it fits.

    Raises `NoPlanInTime` where it does not, and `StrategyNotApplicable` where it breaks `recompute` pins.
    """
    candidates = Candidates(task, "store_all")
    schedule = store_all_schedule(task.graph)
    if not keeps_pins(task, schedule):
        raise candidates.not_applicable("it never recomputes, so that it can't obey `recompute` pins")
    candidates.offer(schedule)
    return candidates.best()
