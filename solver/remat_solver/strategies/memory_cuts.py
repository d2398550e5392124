"""The default strategy: solve a relaxation that knows few slots, and add those where its schedule breaks the budget."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from remat_solver.bounds import working_set_bound
from remat_solver.formulation.lifetimes import find_lifetimes
from remat_solver.formulation.memory_cuts import Slot
from remat_solver.pins import keeps_pins
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.strategies.base import Found, Task
from remat_solver.strategies.fitting import RULES
from remat_solver.strategies.incumbent import Incumbent
from remat_solver.strategies.neighbourhood import NeighbourhoodSearch
from remat_solver.strategies.refitting import Refitting
from remat_solver.strategies.relaxation import Relaxation, Round

_TINY = 100
"""From so many ops on, one try at a first schedule comes before the first model, which mostly closes the gap."""
_HOPELESS_TRIES = 4
"""On graphs without a chain to walk along evictions from store-all find nothing, however often they try."""
_REPAIR_RULES = RULES[1:3]
_KNOWN_RULES = RULES[1:2]
_KNOWN_SCHEDULES = 2
_KNOWN_SLOTS = 6
_SLACK_SHARE = 0.6
_SEED_S, _SEED_OPS = 1.0, 1500
"""Seconds for the first schedules of a graph of at most so many ops; in proportion to the ops for larger ones."""
_FIRST_PLAN_SHARE = 0.15
"""Of the time that is left, for coming nearer to a first schedule, after each round without one."""
_ENGINE_GAP = 1e-8
"""No smaller gap can be closed: engines prove their bounds no more exactly than this."""
_LOST_IN_BOUNDS = 3e-9
"""Of the store-all time: what a proof gives up for tolerances on its way from the engine."""
_NEARLY_CLOSED = 4.0
"""An open gap of so many times the asked one."""
_ROUND_GAP = 0.25
"""Of the open gap: how exactly a round's program is solved."""
_LIMIT_GROWTH = 2.0
"""How much longer the next round may take after one that was not solved in its time."""
_SMALLEST_EFFORT = 0.25
_PRESS_FAILURES = 12
_QUICK_S = 0.5
"""Until then rounds follow each other if they are solved: most tasks are done before anything else could help."""


def memory_cuts(task: Task) -> Found:
    """Solves `task` to its gap by lazily added memory cuts (see `formulation.memory_cuts`).

    Rounds of the relaxation raise the bound; its schedules, made to fit by evictions, and a
    neighbourhood search around the best of them lower the incumbent. Raises `InfeasibleBudget` with its
    proof, `NoPlanInTime`, `SolveCancelled` or an `EngineError`.
    """
    return search(task, Knowledge())


@dataclass(kw_only=True)
class Knowledge:
    """What solves of one graph learn from each other: slots that mattered, and schedules."""

    slots: set[Slot] = field(default_factory=set)
    schedules: list[tuple[int, ...]] = field(default_factory=list)


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


def search(task: Task, knowledge: Knowledge, *, target_ns: int | None = None) -> Found:
    """Solves `task` from what is known, and adds to that.

    With `target_ns` it ends as soon as a schedule takes at most that, and raises `InfeasibleBudget` as
    soon as the bound exceeds it. Raises as `memory_cuts` does.
    """
    return _Search(task, knowledge, target_ns).run()


class _Search:
    """One solve: the relaxation below, the incumbent above, and what the time goes to."""

    def __init__(self, task: Task, knowledge: Knowledge, target_ns: int | None) -> None:
        self.task = task
        self.knowledge = knowledge
        self.target_ns = target_ns
        self.graph = task.graph
        self.lifetimes = find_lifetimes(task.graph)
        self.relaxation = Relaxation(task, self.lifetimes)
        self.best = Incumbent(self.lifetimes, task.budget_bytes, is_allowed=self.is_allowed)
        self.neighbourhoods: NeighbourhoodSearch | None = None
        self.refitting = Refitting(self.lifetimes)
        self.yields: dict[str, Yield] = {}
        self.has_seeds = False
        self.effort = 1.0
        """Time for the incumbent, as a share of the time that a round took; halved where it led to nothing."""

    def run(self) -> Found:
        bound = working_set_bound(self.graph)
        if self.task.budget_bytes < bound:
            raise self.task.infeasible(proof_scope="order", below_bytes=bound)
        store_all = simulate(self.graph, store_all_schedule(self.graph))
        if store_all.peak_bytes <= self.task.budget_bytes and not self.task.absent_at_boundary:
            self.best.offer(store_all_schedule(self.graph), should_stop=self.task.is_over)
            return self.found("")
        self.choose_first_slots(store_all.peak_step)
        self.take_known()
        if len(self.graph) > _TINY:
            self.refitting.improve(self.best, should_stop=self.task.is_over)
            self.report("refit")
        while not self.is_closed() and not self.task.is_over() and self.do_round():
            self.check_target()
        self.share()
        if self.best.schedule is None:
            raise self.task.no_plan()
        return self.found("" if self.is_closed() else self.task.stopped_by())

    def choose_first_slots(self, peak_step: int) -> None:
        """The store-all peak, and the boundary if there are pins."""
        self.relaxation.slots.add((peak_step, peak_step))
        if self.task.boundary is not None and self.task.absent_at_boundary:
            barred = frozenset(v for op in self.task.absent_at_boundary for v in self.lifetimes.writes[op])
            self.relaxation.bar((self.task.boundary, -1), barred)

    def take_known(self) -> None:
        """Offers the schedules that other solves of this graph found, made to fit where they do not."""
        for schedule in self.knowledge.schedules[-_KNOWN_SCHEDULES:]:
            if self.best.fits(schedule):
                self.best.offer(schedule, should_stop=self.task.is_over)
            else:
                self.best.offer_fitted(schedule, _KNOWN_RULES, should_stop=self.task.is_over)

    def share(self) -> None:
        """Tells other solves of this graph what mattered in this one."""
        if len(self.relaxation.slots) > 1:
            self.knowledge.slots.update(slot for slot in self.relaxation.slots if slot[1] >= 0)
        if self.best.schedule is not None:
            self.knowledge.schedules.append(tuple(self.best.schedule))

    def seed(self) -> None:
        """First schedules, by evictions from store-all, within a tenth of the time or `_SEED_S`."""
        self.has_seeds = True
        seconds = min(self.task.remaining_s() / 10, _SEED_S * max(1.0, len(self.graph) / _SEED_OPS))
        self.refit(time.monotonic() + seconds)

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

    def do_round(self) -> bool:
        """One round of the relaxation, then as long for the incumbent. False if nothing is left to try."""
        self.aim()
        found = self.relaxation.solve()
        self.offer(found)
        self.report("round")
        is_proven = found.termination == "optimal"
        if self.is_closed() or (is_proven and self.task.elapsed_s() < _QUICK_S and self.refine(found)):
            return True
        if not self.has_seeds:
            self.seed()
        before_ns = self.best.time_ns
        self.guess(found)
        is_refined = is_proven and self.refine(found)
        self.relaxation.is_unsolved = not is_proven and not self.relaxation.is_unsolved
        if not is_proven:
            self.relaxation.limit_s *= _LIMIT_GROWTH
        if self.has_plan():
            is_better = self.improve(self.effort * found.wall_s)
        else:
            is_better = self.improve(max(found.wall_s, self.task.remaining_s() * _FIRST_PLAN_SHARE))
        self.effort = 1.0 if self.best.time_ns != before_ns else max(self.effort / 2, _SMALLEST_EFFORT)
        return is_refined or is_better or not is_proven

    def aim(self) -> None:
        """Tells the next round of the incumbent, in one of two ways.

        As a cutoff: only what beats it by more than the gap says anything new, and it need not be the best. That
        ends proofs soonest. Or as a start: with a solution in hand engines raise the bound of a program that is
        far from solved sooner. A round that was not solved is followed by one of the other kind. The first program,
        with one slot, is mostly solved at its root, where a start is in the way.
        """
        relaxation, gap_ns = self.relaxation, self.gap_ns()
        relaxation.start, relaxation.cutoff_ns, relaxation.absolute_gap_ns = None, math.inf, gap_ns / 2
        if self.best.schedule is None or not relaxation.rounds:
            return
        open_ns = self.best.time_ns - relaxation.bound_ns
        relaxation.absolute_gap_ns = max(gap_ns / 2, _ROUND_GAP * open_ns)
        if (open_ns <= _NEARLY_CLOSED * gap_ns) != relaxation.is_unsolved:
            relaxation.cutoff_ns = self.best.time_ns - gap_ns + _LOST_IN_BOUNDS * self.graph.total_time_ns
        else:
            relaxation.start = self.best.schedule

    def gap_ns(self) -> float:
        return max(self.task.options.gap, _ENGINE_GAP) * self.graph.total_time_ns

    def refine(self, found: Round) -> bool:
        """Adds missing slots; the first time, also those that mattered to other solves, if they are few."""
        slots = self.relaxation.slots
        is_first = len(slots) == 1
        is_refined = self.relaxation.refine(found)
        if is_first and is_refined and len(self.knowledge.slots) <= _KNOWN_SLOTS:
            slots |= self.knowledge.slots
        return is_refined

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
            self.best.offer_fitted(found.schedule, _REPAIR_RULES, should_stop=self.task.is_over)

    def guess(self, found: Round) -> None:
        """Asks for schedules only: at the budget, and where that one exceeds it, with less room by about as much."""
        budget = self.task.budget_bytes
        guessed = found
        if self.has_plan() and self.effort < 1.0 and self.relaxation.rounds % 2:
            return
        if found.termination != "optimal" and len(self.relaxation.slots) > 1:
            guessed = self.relaxation.guess(budget, self.relaxation.limit_s / 2)
            self.offer(guessed)
            self.report("guess")
        excess = guessed.peak_bytes - budget
        if excess > 0 and not self.task.is_over() and budget > _SLACK_SHARE * excess:
            self.offer(self.relaxation.guess(budget - int(_SLACK_SHARE * excess), self.relaxation.limit_s / 2))
            self.report("guess with less room")

    def improve(self, seconds: float) -> bool:
        """Neighbourhood search for that long: to a first schedule that fits, then to faster ones. True if it helps."""
        if self.best.nearest is None and not self.has_plan():
            return False
        if self.neighbourhoods is None:
            self.neighbourhoods = NeighbourhoodSearch(self.lifetimes, self.relaxation.engine)
        stop_s = time.monotonic() + seconds
        is_better = self.has_plan() and self.press(stop_s - seconds / 2)
        while not self.is_closed() and not self.is_past(stop_s):
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
        searches: dict[str, NeighbourhoodSearch | Refitting] = {
            "refit": self.refitting,
            "neighbourhood": self.neighbourhoods,
        }
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

    def is_allowed(self, schedule: Sequence[int]) -> bool:
        return not self.task.absent_at_boundary or keeps_pins(self.task, schedule)

    def check_target(self) -> None:
        if self.target_ns is not None and self.relaxation.bound_ns > self.target_ns:
            raise self.task.infeasible(proof_scope=self.relaxation.bound_scope)

    def is_closed(self) -> bool:
        """Whether the best schedule is within the asked gap of the bound."""
        if self.best.schedule is None:
            return False
        if self.target_ns is not None and self.best.time_ns <= self.target_ns:
            return True
        return self.best.time_ns - self.relaxation.bound_ns <= self.gap_ns()

    def report(self, stage: str) -> None:
        self.task.report(
            bound_ns=self.relaxation.bound_ns,
            incumbent_ns=self.best.time_ns if self.best.schedule is not None else None,
            slots=len(self.relaxation.slots),
            stage=stage,
        )

    def found(self, stopped_by: str) -> Found:
        assert self.best.schedule is not None
        relaxation = self.relaxation
        return Found(
            schedule=tuple(self.best.schedule),
            bound_ns=min(relaxation.bound_ns, self.best.time_ns),
            proof_scope=relaxation.bound_scope,
            engine=relaxation.engine.name if relaxation.rounds else "",
            engine_version=relaxation.engine.version() if relaxation.rounds else "",
            rounds=relaxation.rounds,
            slots=len(relaxation.slots) if relaxation.rounds else 0,
            rows=relaxation.rows,
            columns=relaxation.columns,
            stopped_by=stopped_by,
        )
