"""The default strategy: solve a relaxation that knows few slots, and add those where its schedule breaks the budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from remat_solver.bounds import working_set_bound
from remat_solver.formulation.lifetimes import find_lifetimes
from remat_solver.formulation.memory_cuts import Slot
from remat_solver.pins import keeps_pins
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.strategies.backward_bound import BackwardBound
from remat_solver.strategies.base import Found, Task
from remat_solver.strategies.fitting import RULES
from remat_solver.strategies.improvement import Improvement
from remat_solver.strategies.incumbent import Incumbent
from remat_solver.strategies.linear_bound import LinearBound
from remat_solver.strategies.refutation import Refutation
from remat_solver.strategies.relaxation import Relaxation, Round
from remat_solver.strategies.timed_rounding import TimedRounding, peaks_above, stand_ins

_KNOWN_RULES = RULES[1:2]
_KNOWN_SCHEDULES = 2
_KNOWN_SLOTS = 6
_ENGINE_GAP = 1e-8
"""No smaller gap can be closed: engines prove their bounds no more exactly than this."""
_LOST_IN_BOUNDS = 3e-9
"""Of the store-all time: what a proof gives up for tolerances on its way from the engine."""
_NEARLY_CLOSED = 4.0
"""An open gap of so many times the asked one."""
_ALMOST_CLOSED = 1.1
"""An open gap of so many times the asked one: a cutoff helps even rounds that are solved quickly."""
_ROUND_GAP = 0.25
"""Of the open gap: how exactly a round's program is solved."""
_LIMIT_GROWTH = 2.0
"""How much longer the next round may take after one that was not solved in its time."""
_QUICK_S, _QUICK_OPS, _QUICK_SHARE = 1.0, 100, 0.5
"""Until then rounds follow each other if they are solved, on a graph of so many ops; on larger ones in proportion once
there is a plan, but not beyond this share of the time. Most tasks are done before anything else could help."""
_QUICK_GAP = 0.9
"""Of the asked gap: how exactly these rounds' programs are solved; the first one only on a graph of more than `_LARGE`
ops, where an engine may spend most of its time on the last twentieth of a percent."""
_LARGE = 5000

_NEAR_THE_FLOOR = 1.5
"""Times the working-set bound: below, a proof that nothing fits is looked for before any model."""
_FIRST_REFUTATION_S, _FIRST_REFUTATION_OPS = 0.06, 500
"""Seconds on a graph of at most so many ops; on larger ones in proportion."""
_FIRST_WALK_S, _SECOND_REFUTATION_S = 1.0, 1.0
"""Seconds for walks back, and for such a proof, before the first round, which may well have a plan."""
_LATER_REFUTATION_S, _REFUTATION_SHARE = 1.5, 0.2
"""Seconds for such a proof after each round without a plan, but at most this share of the time that is left."""
_HOPELESS_SHARE = 0.5
"""Of the time that is left, once, where walks back have found no plan: mostly there is none."""
_MANY_PEAKS = 4
"""Places at which a first round's schedule exceeds the budget; rounds, which add two stages each, are slow for more."""
_SHALLOW = 0.1
"""Overhead up to which ops mostly run again once, for one thing, so that few times suffice."""
_STAND_INS = 4
"""For the places at which memory is short: so many become slots of a linear relaxation."""
_FIRST_PEAKS = 3
"""How many of the worst become slots of the next round."""
_STAND_INS_SHARE = 0.05
"""Of the time that is left, for that relaxation."""
_WIDE_GAP, _VERY_WIDE_GAP = 0.02, 0.05
"""Of the store-all time: ops then run many times over, and other bounds are better than those of a few slots."""
_TRIAL_SHARE, _RAISE_SHARE = 0.05, 0.6
"""Of the time that is left, for each such bound: until it is better than the relaxation's, and then."""
_BETTER_SHARE = 0.25
"""Of the time that is left, for a better schedule than that of such a trial: where it recomputes, slots serve more."""
_DENSE_SHARE = 0.3
"""Of the time that is left, for the linear bound after that."""


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
        in_proportion_s = _QUICK_S * len(task.graph) / _QUICK_OPS
        self.quick_s = max(_QUICK_S, min(in_proportion_s, _QUICK_SHARE * task.options.time_limit_s))
        self.lifetimes = find_lifetimes(task.graph)
        self.relaxation = Relaxation(task, self.lifetimes)
        self.refutation = Refutation(task, self.lifetimes)
        self.backward: BackwardBound | None = None
        self.has_raised = False
        self.has_settled = False
        self.is_near_floor = False
        self.best = Incumbent(self.lifetimes, task.budget_bytes, is_allowed=self.is_allowed)
        self.improvement = Improvement(
            task, self.lifetimes, self.best, self.relaxation, is_closed=self.is_closed, report=self.report
        )

    def run(self) -> Found:
        bound = working_set_bound(self.graph)
        if self.task.budget_bytes < bound:
            raise self.task.infeasible(proof_scope="order", below_bytes=bound)
        in_order = store_all_schedule(self.graph)
        store_all = simulate(self.graph, in_order)
        if store_all.peak_bytes <= self.task.budget_bytes and self.is_allowed(in_order):
            self.best.offer(in_order, should_stop=self.task.is_over)
            return self.found("")
        self.is_near_floor = self.task.budget_bytes < _NEAR_THE_FLOOR * bound
        if self.is_near_floor:
            self.backward = BackwardBound(self.task, self.lifetimes)
            self.refutation.attempt(_FIRST_REFUTATION_S * max(1.0, len(self.graph) / _FIRST_REFUTATION_OPS))
        self.choose_first_slots(store_all.peak_step)
        self.take_known()
        self.relax_first()
        has_tried = not self.is_closed() and self.improvement.try_once()
        if has_tried and self.is_near_floor and self.best.schedule is None:
            self.improvement.walk_back(_FIRST_WALK_S)
            if self.best.schedule is None:
                self.refutation.attempt(_SECOND_REFUTATION_S)
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

    def relax_first(self) -> None:
        """The first program's relaxation, which takes next to no time and often is all that a large graph needs."""
        self.aim()
        schedule = self.relaxation.solve_linearly()
        if schedule is not None:
            self.best.offer(schedule, should_stop=self.task.is_over)
        self.report("relaxed")
        self.check_target()

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

    def do_round(self) -> bool:
        """One round of the relaxation, then as long for the incumbent. False if nothing is left to try."""
        before_ns = self.best.time_ns
        self.aim()
        found = self.relaxation.solve()
        self.improvement.offer(found)
        self.report("round")
        self.plan_by_times(found)
        is_proven = found.termination == "optimal" or self.is_nearly_proven(found)
        is_early = is_proven and self.task.elapsed_s() < _QUICK_S
        self.relaxation.is_quick &= (
            is_proven and self.best.schedule is not None and self.task.elapsed_s() < self.quick_s
        )
        if self.is_closed() or ((is_early or self.relaxation.is_quick) and self.refine(found)):
            return True
        self.improvement.seed()
        if self.best.schedule is None:
            self.settle(min(_LATER_REFUTATION_S, _REFUTATION_SHARE * self.task.remaining_s()))
            self.improvement.seed_deeper()
        self.raise_wide()
        self.improvement.guess(found)
        is_refined = is_proven and self.refine(found)
        self.relaxation.is_unsolved = not is_proven and not self.relaxation.is_unsolved
        if not is_proven:
            self.relaxation.limit_s *= _LIMIT_GROWTH
        is_better = self.improvement.follow(found, before_ns=before_ns)
        return is_refined or is_better or not is_proven

    def plan_by_times(self, found: Round) -> None:
        """After a first round whose schedule exceeds the budget at many places: plans from a program that knows all."""
        relaxation = self.relaxation
        if relaxation.rounds > 1 or self.is_closed() or found.schedule is None:
            return
        in_use = simulate(self.graph, found.schedule).timeline_bytes
        if len(peaks_above(in_use, self.task.budget_bytes)) < _MANY_PEAKS:
            return
        overhead_ns = relaxation.bound_ns - self.graph.total_time_ns
        if overhead_ns > _SHALLOW * self.graph.total_time_ns:
            return
        timed = TimedRounding(self.task, self.lifetimes, relaxation.engine, overhead_ns=overhead_ns)
        if not timed.relax():
            return
        has_relaxed = False
        for schedule, rule in timed.roundings():
            self.best.offer_fitted(schedule, (rule,), should_stop=self.task.is_over)
            self.report("recomputes timed")
            if self.best.schedule is None or self.is_wide(_WIDE_GAP):
                return
            if not has_relaxed:
                has_relaxed = True
                self.relax_at(stand_ins(timed.prices, _STAND_INS))
            if self.is_closed() or self.task.is_over():
                return
        relaxation.slots.update((step, step) for step in timed.peaks[:_FIRST_PEAKS])

    def relax_at(self, steps: Sequence[int]) -> None:
        limit_s = _STAND_INS_SHARE * self.task.remaining_s()
        self.relaxation.relax_once([(step, step) for step in steps], limit_s=limit_s)
        self.report("relaxed at stand-ins")

    def settle(self, seconds: float) -> None:
        """Looks for a first schedule where evictions have found none, then for a proof that there is none."""
        if self.is_near_floor:
            self.improvement.walk_back(self.improvement.seed_s())
        if self.best.schedule is not None:
            return
        if self.improvement.has_walked and not self.has_settled:
            self.has_settled = True
            seconds = max(seconds, _HOPELESS_SHARE * self.task.remaining_s())
        self.refutation.attempt(seconds)

    def raise_wide(self) -> None:
        """Once, from the second round on, where the gap is wide: bounds that rounds do not reach."""
        if self.has_raised or self.best.schedule is None or self.relaxation.rounds < 2 or not self.is_wide(_WIDE_GAP):
            return
        self.has_raised = True
        self.follow_back()
        if self.is_wide(_VERY_WIDE_GAP):
            self.relax_densely()

    def is_wide(self, gap: float) -> bool:
        return self.best.time_ns - self.relaxation.bound_ns > gap * self.graph.total_time_ns

    def follow_back(self) -> None:
        """Near the floor: the bound of `backward_bound`."""
        backward, relaxation = self.backward, self.relaxation
        if backward is None:
            return
        enough_ns = self.best.time_ns - self.gap_ns()
        backward.raise_for(_TRIAL_SHARE * self.task.remaining_s(), enough_ns=enough_ns)
        if backward.bound_ns > relaxation.bound_ns:
            backward.raise_for(_RAISE_SHARE * self.task.remaining_s(), enough_ns=enough_ns)
        relaxation.take_bound(min(backward.bound_ns, self.best.time_ns), "order")
        if backward.schedule is not None and self.best.fits(backward.schedule):
            self.best.offer(backward.schedule, should_stop=self.task.is_over)
        self.report("followed back")

    def relax_densely(self) -> None:
        """The bound of `linear_bound`, around a better schedule; where it leads, rounds can't raise the bound soon."""
        does_lead = self.relax_around_best(_TRIAL_SHARE)
        better_s = _BETTER_SHARE * self.task.remaining_s()
        self.improvement.improve(better_s, is_enough=lambda: not self.is_wide(_VERY_WIDE_GAP))
        if does_lead:
            self.relax_around_best(_DENSE_SHARE)
            self.improvement.improve(_RAISE_SHARE * self.task.remaining_s())

    def relax_around_best(self, share: float) -> bool:
        assert self.best.schedule is not None
        linear = LinearBound(self.relaxation, self.best.schedule)
        enough_ns = self.best.time_ns - self.gap_ns()
        has_risen = linear.raise_for(share * self.task.remaining_s(), enough_ns=enough_ns)
        self.report("relaxed densely")
        return has_risen

    def aim(self) -> None:
        """Tells the next round of the incumbent, in one of two ways.

        As a cutoff: only what beats it by more than the gap says anything new, and it need not be the best. That
        ends proofs soonest. Or as a start: with a solution in hand engines raise the bound of a program that is
        far from solved sooner. A round that was not solved is followed by one of the other kind. While rounds are
        solved quickly, mostly at the root, either is in the way.
        """
        relaxation, gap_ns = self.relaxation, self.gap_ns()
        relaxation.start, relaxation.cutoff_ns, relaxation.absolute_gap_ns = None, math.inf, gap_ns / 2
        open_ns = self.best.time_ns - relaxation.bound_ns
        if relaxation.is_quick and (relaxation.rounds or len(self.graph) > _LARGE):
            relaxation.absolute_gap_ns = _QUICK_GAP * gap_ns
        if self.best.schedule is None or (relaxation.is_quick and open_ns > _ALMOST_CLOSED * gap_ns):
            return
        relaxation.absolute_gap_ns = max(gap_ns / 2, _ROUND_GAP * open_ns)
        if (open_ns <= _NEARLY_CLOSED * gap_ns) != relaxation.is_unsolved:
            relaxation.cutoff_ns = self.best.time_ns - gap_ns + _LOST_IN_BOUNDS * self.graph.total_time_ns
        else:
            relaxation.start = self.best.schedule

    def is_nearly_proven(self, found: Round) -> bool:
        """Whether a round that met its limit ended within the asked gap of the bound all the same."""
        if found.schedule is None or not self.relaxation.is_quick:
            return False
        return sum(self.graph.ops[op].time_ns for op in found.schedule) - self.relaxation.bound_ns <= self.gap_ns()

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
            engine=relaxation.engine.name if relaxation.columns else "",
            engine_version=relaxation.engine.version() if relaxation.columns else "",
            rounds=relaxation.rounds,
            slots=len(relaxation.slots) if relaxation.columns else 0,
            rows=relaxation.rows,
            columns=relaxation.columns,
            stopped_by=stopped_by,
        )
