"""The best schedule so far, and the ways in which a schedule is made better before it is compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from remat_solver.formulation.lifetimes import Lifetimes
from remat_solver.simulate import simulate
from remat_solver.strategies.cleaning import drop_unused
from remat_solver.strategies.fitting import RULES, EvictionRule, fit_schedule
from remat_solver.strategies.merging import merge_recomputes


class Incumbent:
    """Keeps the fastest schedule offered that fits `budget_bytes`. `schedule` is None until there is one."""

    def __init__(self, lifetimes: Lifetimes, budget_bytes: int, *, is_allowed: Callable[[Sequence[int]], bool]) -> None:
        self.lifetimes = lifetimes
        self.budget_bytes = budget_bytes
        self.is_allowed = is_allowed
        self.schedule: list[int] | None = None
        self.time_ns = 0
        self.nearest: list[int] | None = None
        self.excess_bytes = 0

    def come_nearer(self, schedule: Sequence[int], *, should_stop: Callable[[], bool]) -> bool:
        """Offers a schedule that fits; keeps one that does not as the nearest if it exceeds the budget least.

        The excess is summed over all steps, so that each step that comes down counts.
        """
        cleaned = drop_unused(self.lifetimes, schedule)
        timeline = simulate(self.lifetimes.graph, cleaned).timeline_bytes
        excess = sum(in_use - self.budget_bytes for in_use in timeline if in_use > self.budget_bytes)
        if not excess:
            self.nearest = None
            return self.offer(cleaned, should_stop=should_stop)
        if self.nearest is not None and excess >= self.excess_bytes:
            return False
        self.nearest, self.excess_bytes = cleaned, excess
        return True

    def start_from(self, schedule: Sequence[int], *, should_stop: Callable[[], bool]) -> None:
        """Forgets the nearest schedule for this one."""
        self.nearest = None
        self.come_nearer(schedule, should_stop=should_stop)

    def is_worth_approaching(self) -> bool:
        """Whether the nearest schedule is still faster than the best that fits."""
        return self.nearest is not None and self._is_faster(self.nearest)

    def offer(self, schedule: Sequence[int], *, should_stop: Callable[[], bool]) -> bool:
        """Cleans and merges a schedule that fits, and keeps it if it is the fastest. True if it is."""
        merged = drop_unused(self.lifetimes, schedule)
        if not self._is_faster(merged):
            merged = merge_recomputes(self.lifetimes, merged, self.budget_bytes, should_stop=should_stop)
        elif self.is_allowed(merged):
            self._keep(merged)
            better = merge_recomputes(self.lifetimes, merged, self.budget_bytes, should_stop=should_stop)
            if self._is_faster(better) and self.is_allowed(better):
                self._keep(better)
            return True
        if not (self._is_faster(merged) and self.is_allowed(merged)):
            return False
        self._keep(merged)
        return True

    def offer_fitted(
        self, schedule: Sequence[int], rules: Sequence[EvictionRule] = RULES, *, should_stop: Callable[[], bool]
    ) -> bool:
        """Makes a schedule fit by evictions, by each rule, and offers what comes of it. True if any is kept."""
        is_better = False
        for rule in rules:
            if should_stop():
                break
            fitted = fit_schedule(self.lifetimes, schedule, self.budget_bytes, rule=rule, should_stop=should_stop)
            if fitted is not None:
                is_better |= self.offer(fitted, should_stop=should_stop)
        return is_better

    def is_promising(self, schedule: Sequence[int], *, slack: float) -> bool:
        """Whether an unmerged schedule takes at most `slack` (a share of the store-all time) more than the best."""
        if self.schedule is None:
            return True
        return self._time_of(schedule) <= self.time_ns + slack * self.lifetimes.graph.total_time_ns

    def fits(self, schedule: Sequence[int]) -> bool:
        """Whether the schedule's peak is within the budget."""
        return simulate(self.lifetimes.graph, schedule).peak_bytes <= self.budget_bytes

    def _is_faster(self, schedule: Sequence[int]) -> bool:
        return self.schedule is None or self._time_of(schedule) < self.time_ns

    def _time_of(self, schedule: Sequence[int]) -> int:
        ops = self.lifetimes.graph.ops
        return sum(ops[op].time_ns for op in schedule)

    def _keep(self, schedule: list[int]) -> None:
        self.schedule = schedule
        self.time_ns = self._time_of(schedule)
