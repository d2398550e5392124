"""The upper side of the search: a first schedule that fits, and faster ones.

Evictions from the store-all schedule give the first (`refitting`), or walks back from its end (`mended_walk`). Later
ones come from the relaxation's schedules, made to fit, from relaxations asked for schedules only, and from
re-optimising neighbourhoods of the best. What the time goes to follows what has gained most for its time so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from remat_solver.formulation.lifetimes import Lifetimes
from remat_solver.strategies.base import Task
from remat_solver.strategies.beam_tries import BeamTries
from remat_solver.strategies.fitting import RULES, EvictionRule
from remat_solver.strategies.incumbent import Incumbent
from remat_solver.strategies.mended_walk import first_schedules
from remat_solver.strategies.neighbourhood import NeighbourhoodSearch
from remat_solver.strategies.refitting import Refitting
from remat_solver.strategies.relaxation import Relaxation, Round

_TINY = 100
"""From so many ops on, one try at a first schedule comes before the first model, which mostly closes the gap."""
_HOPELESS_TRIES = 4
"""On graphs without a chain to walk along evictions from store-all find nothing, however often they try."""
_REPAIR_RULES = (*RULES[1:3], EvictionRule(size_power=0.3, distance_power=0.5))
_SLACK_SHARE = 0.6
_SEED_S, _SEED_OPS = 1.0, 1500
"""Seconds for the first schedules of a graph of at most so many ops; in proportion to the ops for larger ones."""
_GUESS_S, _GUESS_OPS = 1.5, 500
"""Seconds at most for a relaxation asked for schedules only, on a graph of so many ops; larger ones in proportion."""
_FIRST_PLAN_SHARE = 0.15
"""Of the time that is left, for coming nearer to a first schedule, after each round without one."""
_SMALLEST_EFFORT = 0.25
_PRESS_FAILURES = 12
_DEEP = 0.25
"""From this overhead on ops run several times, and beams find what evictions don't."""
_FIRST_BEAMS = 4


@dataclass(frozen=True, kw_only=True)
class Yield:
    """How often a search bettered the incumbent, and in how many seconds in all."""

    gains: int
    seconds: float

    @property
    def rate(self) -> float:
        """Gains per second."""
        return self.gains / self.seconds


_FIRST_YIELD = Yield(gains=1, seconds=0.5)
"""What a search is given credit for before it was tried."""


class Improvement:
    """What lowers `best`; keeps its state between rounds. `is_closed`: whether nothing better is asked for."""

    def __init__(
        self,
        task: Task,
        lifetimes: Lifetimes,
        best: Incumbent,
        relaxation: Relaxation,
        *,
        is_closed: Callable[[], bool],
        report: Callable[[str], None],
    ) -> None:
        self.task = task
        self.graph = task.graph
        self.lifetimes = lifetimes
        self.best = best
        self.relaxation = relaxation
        self.is_closed = is_closed
        self.report = report
        self.neighbourhoods: NeighbourhoodSearch | None = None
        self.refitting = Refitting(lifetimes)
        self.beams = BeamTries(lifetimes, task.budget_bytes)
        self.walks = first_schedules(lifetimes, task.budget_bytes, should_stop=task.is_over)
        self.has_walked = False
        """Whether these walks have been made to their end."""
        self.yields: dict[str, Yield] = {}
        self.has_seeds = False
        self.effort = 1.0
        """Time for the incumbent, as a share of the time that a round took; halved where it led to nothing."""

    def try_once(self) -> bool:
        """One try at a first schedule, where the graph is large enough for that to matter. True if it was made."""
        if len(self.graph) <= _TINY:
            return False
        self.refitting.improve(self.best, should_stop=self.task.is_over)
        self.report("refit")
        return True

    def walk_back(self, seconds: float) -> None:
        """Goes on with walks that may end in first schedules, each for so long."""
        stop_s = time.monotonic() + seconds
        for schedule in self.walks:
            if schedule is not None and self.best.offer(schedule, should_stop=self.task.is_over):
                self.report("walk back")
                stop_s = time.monotonic() + seconds
            if self.is_closed() or self.is_past(stop_s):
                return
        self.has_walked = True

    def follow(self, found: Round, *, before_ns: int) -> bool:
        """Improves for as long as the round took, or less where that has led to nothing. True if it helps.

        `before_ns`: the best time when the round began.
        """
        if self.has_plan():
            is_better = self.improve(self.effort * found.wall_s)
        else:
            is_better = self.improve(max(found.wall_s, self.task.remaining_s() * _FIRST_PLAN_SHARE))
        self.effort = 1.0 if self.best.time_ns != before_ns else max(self.effort / 2, _SMALLEST_EFFORT)
        return is_better

    def seed(self) -> None:
        """First schedules, once, by evictions from store-all, within a tenth of the time or `_SEED_S`."""
        if self.has_seeds:
            return
        self.has_seeds = True
        self.refit(time.monotonic() + self.seed_s())

    def seed_deeper(self) -> None:
        """First schedules by beams, where nothing cheaper has found one; once."""
        while not self.has_plan() and self.is_deep() and self.beams.tries < _FIRST_BEAMS and not self.task.is_over():
            self.beams.improve(self.best, should_stop=self.task.is_over)
            self.report("beam")

    def seed_s(self) -> float:
        """Seconds for one way to first schedules."""
        return min(self.task.remaining_s() / 10, _SEED_S * max(1.0, len(self.graph) / _SEED_OPS))

    def refit(self, stop_s: float) -> bool:
        """Iterated greedy until then, or until it fails to find a first schedule. True if the incumbent got faster."""
        is_better = False
        while not self.is_closed() and not self.is_past(stop_s):
            if self.best.schedule is None and self.refitting.tries >= _HOPELESS_TRIES:
                break
            if self.refitting.improve(self.best, should_stop=lambda: self.is_past(stop_s)):
                is_better = True
                self.report("refit")
        return is_better

    def offer(self, found: Round) -> None:
        """A round's schedule as it is if it fits, and made to fit otherwise."""
        if found.schedule is None:
            return
        if found.peak_bytes <= self.task.budget_bytes:
            self.best.offer(found.schedule, should_stop=self.task.is_over)
        else:
            if self.has_plan():
                self.best.start_from(found.schedule, should_stop=self.task.is_over)
            else:
                self.best.come_nearer(found.schedule, should_stop=self.task.is_over)
            for rule in _REPAIR_RULES:
                if self.is_closed():
                    break
                self.best.offer_fitted(found.schedule, (rule,), should_stop=self.task.is_over)

    def guess(self, found: Round) -> None:
        """Asks for schedules only: at the budget, and where that one exceeds it, with less room by about as much."""
        budget = self.task.budget_bytes
        guessed = found
        if self.has_plan() and self.effort < 1.0 and self.relaxation.rounds % 2:
            return
        if found.termination != "optimal" and len(self.relaxation.slots) > 1:
            guessed = self.relaxation.guess(budget, self.guess_limit_s())
            self.offer(guessed)
            self.report("guess")
        excess = guessed.peak_bytes - budget
        if excess > 0 and not self.task.is_over() and budget > _SLACK_SHARE * excess:
            self.offer(self.relaxation.guess(budget - int(_SLACK_SHARE * excess), self.guess_limit_s()))
            self.report("guess with less room")

    def guess_limit_s(self) -> float:
        """Half of a round's, up to a limit: what gives no schedule by then seldom gives a good one later."""
        return min(self.relaxation.limit_s / 2, _GUESS_S * max(1.0, len(self.graph) / _GUESS_OPS))

    def improve(self, seconds: float, *, is_enough: Callable[[], bool] | None = None) -> bool:
        """Neighbourhood search for that long: to a first schedule that fits, then to faster ones. True if it helps.

        `is_enough`: whether to stop earlier; by default where nothing better is asked for.
        """
        is_enough = is_enough or self.is_closed
        if self.best.nearest is None and not self.has_plan():
            return False
        if self.neighbourhoods is None:
            self.neighbourhoods = NeighbourhoodSearch(self.lifetimes, self.relaxation.engine)
        stop_s = time.monotonic() + seconds
        is_better = self.has_plan() and self.press(stop_s - seconds / 2)
        while not is_enough() and not self.is_past(stop_s):
            if not self.has_plan():
                self.approach()
                if self.has_plan():
                    stop_s = time.monotonic() + seconds / 2
            elif self.improve_once():
                is_better = True
        return is_better or self.best.schedule is None

    def improve_once(self) -> bool:
        """One try of whichever search has gained more often for its time so far."""
        assert self.neighbourhoods is not None
        searches: dict[str, NeighbourhoodSearch | Refitting | BeamTries] = {
            "refit": self.refitting,
            "neighbourhood": self.neighbourhoods,
        }
        if self.is_deep():
            searches["beam"] = self.beams
        name = max(searches, key=lambda name: self.yields.get(name, _FIRST_YIELD).rate)
        start_s = time.monotonic()
        is_better = searches[name].improve(self.best, should_stop=self.task.is_over)
        known = self.yields.get(name, _FIRST_YIELD)
        seconds = known.seconds + time.monotonic() - start_s
        self.yields[name] = Yield(gains=known.gains + is_better, seconds=seconds)
        if is_better:
            self.report(name)
        return is_better

    def press(self, stop_s: float) -> bool:
        """Brings the relaxation's own schedule within the budget while it stays faster than the best."""
        before_ns = self.best.time_ns
        failures = 0
        while self.best.is_worth_approaching() and failures < _PRESS_FAILURES and not self.is_past(stop_s):
            failures += not self.approach()
        return self.best.time_ns < before_ns

    def is_deep(self) -> bool:
        """Whether beams are worth their time: ops run several times, in a graph that is not too large."""
        overhead_ns = self.best.time_ns - self.graph.total_time_ns
        return self.beams.suits() and not (self.has_plan() and overhead_ns < _DEEP * self.graph.total_time_ns)

    def has_plan(self) -> bool:
        return self.best.schedule is not None

    def approach(self) -> bool:
        """One step from the schedule that exceeds the budget least towards one that fits; False if it is none."""
        assert self.neighbourhoods is not None
        before_ns = self.best.time_ns if self.has_plan() else None
        if not self.neighbourhoods.approach(self.best, should_stop=self.task.is_over):
            return False
        if self.best.nearest is not None:
            rule = RULES[self.neighbourhoods.tries % len(RULES)]
            self.best.offer_fitted(self.best.nearest, (rule,), should_stop=self.task.is_over)
        if self.has_plan() and self.best.time_ns != before_ns:
            self.report("approach")
        return True

    def is_past(self, moment_s: float) -> bool:
        return time.monotonic() >= moment_s or self.task.is_over()
