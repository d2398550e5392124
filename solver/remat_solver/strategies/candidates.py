"""What the strategies without a proof share: schedules to try, of which the cheapest that fits is the answer."""

from __future__ import annotations

from collections.abc import Sequence

from remat_solver.errors import NoPlanInTime, SolveError, StrategyNotApplicable
from remat_solver.formulation.lifetimes import Lifetimes, find_lifetimes
from remat_solver.simulate import simulate
from remat_solver.strategies.base import Found, Task
from remat_solver.strategies.cleaning import drop_unused
from remat_solver.strategies.sequence import Decision, build_schedule


class Candidates:
    """The schedules that one strategy came up with for one task; the simulator alone says which fit."""

    def __init__(self, task: Task, strategy: str) -> None:
        self.task = task
        self.strategy = strategy
        self.lifetimes: Lifetimes = find_lifetimes(task.graph)
        self.schedule: tuple[int, ...] | None = None
        self.time_ns = 0
        self.least_peak_bytes: int | None = None

    def offer(self, schedule: Sequence[int]) -> bool:
        """Takes a schedule in; True if it fits."""
        replay = simulate(self.task.graph, schedule)
        if self.least_peak_bytes is None or replay.peak_bytes < self.least_peak_bytes:
            self.least_peak_bytes = replay.peak_bytes
        fits = replay.peak_bytes <= self.task.budget_bytes
        if fits and (self.schedule is None or replay.time_ns < self.time_ns):
            self.schedule, self.time_ns = tuple(schedule), replay.time_ns
        return fits

    def offer_retention(self, kept: dict[int, frozenset[int]]) -> bool:
        """Offers the schedule that keeps into each stage of `kept` just those volatile values, and elsewhere all.

        What is missing runs again when it is read. Values of ops that may not be recomputed are kept
        as long as anything reads them, whatever `kept` says.
        """
        decisions = [
            Decision(slot=(stage, -1), kept=self._possible(stage, values), runs=False)
            for stage, values in sorted(kept.items())
        ]
        return self.offer(drop_unused(self.lifetimes, build_schedule(self.lifetimes, decisions)))

    def _possible(self, stage: int, values: frozenset[int]) -> frozenset[int]:
        graph = self.task.graph
        unique = (v for i in range(stage) if not graph.ops[i].recomputable for v in self.lifetimes.writes[i])
        return values | frozenset(v for v in unique if self.lifetimes.last_use[v] >= stage)

    def best(self, *, bound_ns: int | None = None, **found: object) -> Found:
        """The cheapest that fits; raises `NoPlanInTime` (or `SolveCancelled`) if none does."""
        if self.schedule is None:
            raise self._no_plan()
        total_ns = self.task.graph.total_time_ns
        return Found(
            schedule=self.schedule,
            bound_ns=min(max(bound_ns or 0, total_ns), self.time_ns),
            **found,  # type: ignore[arg-type]  # the fields of `Found` that only some strategies have
        )

    def not_applicable(self, why: str) -> StrategyNotApplicable:
        """The error for a task on which the strategy can't work."""
        return StrategyNotApplicable(
            f"{self.strategy} does not apply here: {why}.", hint="Use strategy='memory_cuts'.", field="strategy"
        )

    def _no_plan(self) -> SolveError:
        if self.task.stop_requested() or self.least_peak_bytes is None:
            return self.task.no_plan()
        return NoPlanInTime(
            f"{self.strategy} finds no schedule within {self.task.budget_bytes} bytes: its best needs "
            f"{self.least_peak_bytes}. Another strategy may find one.",
            hint="Use strategy='memory_cuts', or raise the budget.",
            budget_bytes=self.task.budget_bytes,
            time_limit_s=self.task.options.time_limit_s,
            known_feasible_bytes=self.least_peak_bytes,
        )
