"""Beam searches one after another, by other rules and wider each time."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from remat_solver.formulation.lifetimes import Lifetimes
from remat_solver.strategies.beam import BeamRule, BeamSearch
from remat_solver.strategies.incumbent import Incumbent

_RULES = (
    BeamRule(demand_power=0.2),
    BeamRule(demand_power=0.5, size_power=0.5, distance_power=0.5),
    BeamRule(demand_power=0.8),
    BeamRule(demand_power=0.2, size_power=0.5, distance_power=1.5),
    BeamRule(demand_power=0.5),
    BeamRule(demand_power=0.8, size_power=0.5, distance_power=0.5),
)
_WIDTHS = (20, 60, 150)
_MOST_OPS = 400
_LIMIT_S, _LIMIT_OPS = 4.0, 200
"""Seconds at most for a try on a graph of so many ops; others in proportion."""


class BeamTries:
    """Keeps its place between calls of `improve`."""

    def __init__(self, lifetimes: Lifetimes, budget_bytes: int) -> None:
        self.lifetimes = lifetimes
        self.budget_bytes = budget_bytes
        self.search: BeamSearch | None = None
        self.tries = 0

    def suits(self) -> bool:
        """Whether a try ends in time: each passes over the graph once for every run of an op."""
        return len(self.lifetimes.graph) <= _MOST_OPS

    def improve(self, best: Incumbent, *, should_stop: Callable[[], bool]) -> bool:
        """One try. True if the incumbent got faster."""
        if self.search is None:
            self.search = BeamSearch(self.lifetimes, self.budget_bytes)
        rule = _RULES[self.tries % len(_RULES)]
        width = _WIDTHS[min(self.tries // len(_RULES), len(_WIDTHS) - 1)]
        stop_s = time.monotonic() + _LIMIT_S * len(self.lifetimes.graph) / _LIMIT_OPS
        self.tries += 1
        schedule = self.search.schedule(
            dataclasses.replace(rule, width=width),
            should_stop=lambda: should_stop() or time.monotonic() > stop_s,
        )
        if schedule is None or not best.fits(schedule):
            return False
        return best.offer(schedule, should_stop=should_stop)
