"""The lower-bound side of the search: a model that knows some slots, solved and refined round by round."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

from remat_solver.engines.base import Engine, Limits, MixedIntegerProgram, Outcome, Termination
from remat_solver.engines.incumbent import is_feasible
from remat_solver.errors import EngineFailed
from remat_solver.formulation.embedding import embed
from remat_solver.formulation.lifetimes import Lifetimes
from remat_solver.formulation.memory_cuts import Cover, CutModel, Slot, build_model
from remat_solver.formulation.one_slot import edge_ends
from remat_solver.formulation.ranges import add_ranges
from remat_solver.formulation.strengthening import Cut, strengthen
from remat_solver.plan import ProofScope
from remat_solver.simulate import simulate
from remat_solver.strategies.base import Task
from remat_solver.strategies.cleaning import drop_unused
from remat_solver.strategies.refinement import mismatched_slots, missing_slots
from remat_solver.strategies.sequence import Decision, build_schedule, overfull, read_decisions

_FIRST_LIMIT_S = 1.0
_OPS_PER_SECOND = 700
"""A first model of more ops than half of this gets time in proportion: it mostly is the only one."""
_COLUMNS_PER_SECOND = 1000
"""A model of more columns than `limit_s` has of these gets time in proportion while rounds are solved quickly."""
_STAGES_PER_ROUND = 2
_STRENGTHEN_SHARE = 2.0
"""Time for cuts, as a share of the time for the round's solve; what they are grows from round to round."""
_LINEAR_CUTS_PER_RANGE, _LINEAR_LEAST_GAIN = 4, 20.0
"""For relaxations with many slots, which are large: cuts for each range of them, and when to go on to a finer one."""
_LINEAR_SHARE = 0.3
"""Of the time that is left, at most, for a first round by the linear relaxation alone."""
_MAX_FAILURES = 3
"""An engine may crash on one model and solve the next; beyond that its failure is the answer."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """What one round found. `schedule` is None without an incumbent of the model's; `peak_bytes` is its own."""

    termination: Termination
    wall_s: float
    schedule: list[int] | None = None
    peak_bytes: int = 0
    decisions: tuple[Decision, ...] = ()


class Relaxation:
    """The slots so far and the best bound proven with them; `limit_s` is the time for the next round."""

    def __init__(self, task: Task, lifetimes: Lifetimes) -> None:
        self.task = task
        self.graph = task.graph
        self.lifetimes = lifetimes
        self.slots: set[Slot] = set()
        self.absent: dict[Slot, frozenset[int]] = {}
        self.covers: list[Cover] = []
        self.cuts: list[Cut] = []
        self.linear_cuts: list[Cut] = []
        self.bound_ns = task.graph.total_time_ns
        self.bound_scope: ProofScope = "order"
        self.rounds = 0
        self.rows = 0
        self.columns = 0
        self.limit_s = max(_FIRST_LIMIT_S, len(self.graph) / _OPS_PER_SECOND)
        self.is_quick = True
        self.is_unsolved = False
        self.strengthen_until_s = 0.0
        self.relaxed_s = 0.0
        """How long the model's relaxation took last time; its next one, with more cuts, seldom takes less."""
        self.failures = 0
        self.cutoff_ns = math.inf
        self.start: Sequence[int] | None = None
        self.latest: Sequence[int] | None = None
        self.absolute_gap_ns = task.options.gap / 2 * self.graph.total_time_ns

    @cached_property
    def engine(self) -> Engine:
        """The MIP engine, made when first asked for."""
        return self.task.find_engine()

    def bar(self, slot: Slot, values: frozenset[int]) -> None:
        """Adds a slot at which these values must not be in memory."""
        self.slots.add(slot)
        self.absent[slot] = values

    def solve(self) -> Round:
        """One round: a model, a solve, a schedule.

        Raises the bound by what was proven, and `InfeasibleBudget` for a proof that no schedule fits. Models
        with several slots are strengthened with cuts first.
        """
        start = time.monotonic()
        model = self._build(self.task.budget_bytes, self.slots)
        if len(self.slots) > 1 and not model.contradiction:
            self.strengthen_until_s = start + _STRENGTHEN_SHARE * self.limit_s
            strengthen(self.lifetimes, model, self.cuts, lambda program: self._relax(model, program))
        limit_s = max(self.limit_s, self.is_quick * model.program.column_count / _COLUMNS_PER_SECOND)
        outcome = self._ask_engine(model, limit_s, cutoff_ns=self.cutoff_ns, start=self._start_point(model))
        self.rounds += 1
        self.rows, self.columns = model.program.row_count, model.program.column_count
        if outcome.termination == "infeasible":
            raise self.task.infeasible(proof_scope=model.proof_scope)
        self._raise_bound(model, outcome.bound)
        found = self._as_round(model, outcome, start)
        self.latest = found.schedule
        return found

    def solve_linearly(self) -> list[int] | None:
        """A first round by the linear relaxation: raises the bound, and may find a schedule that closes the gap.

        Such a schedule comes of an integral point next to the relaxation's optimum (see `formulation.one_slot`); it
        fits, and takes at most `absolute_gap_ns` more. None if there is none, or if there are several slots.
        """
        if len(self.slots) != 1:
            return None
        start = time.monotonic()
        model = self._build(self.task.budget_bytes, self.slots)
        if model.contradiction:
            return None
        program = model.program
        self.strengthen_until_s = start + min(self.limit_s, _LINEAR_SHARE * self.task.remaining_s())
        x = self._relax(model, replace(program, integer=[False] * program.column_count))
        if x is None:
            return None
        self.rows, self.columns = program.row_count, program.column_count
        best = min((end for end in edge_ends(x) if is_feasible(program, end)), key=program.price, default=None)
        if best is None or program.price(best) - program.price(x) > self.absolute_gap_ns / model.scale.time_unit:
            return None
        found = self._as_round(model, Outcome(termination="optimal", bound=program.price(x), x=best), start)
        if found.peak_bytes > self.task.budget_bytes:
            return None
        self.rounds += 1
        return found.schedule

    def relax_once(self, slots: Iterable[Slot], *, limit_s: float) -> None:
        """Raises the bound by one linear relaxation with these slots alone, and range rows in place of cuts."""
        model = self._build(self.task.budget_bytes, {*self.absent, *slots})
        if model.contradiction:
            return
        add_ranges(self.lifetimes, model)
        self.strengthen_until_s = time.monotonic() + limit_s
        self._relax(model, replace(model.program, integer=[False] * model.program.column_count))

    def relax(self, slots: Iterable[Slot], *, stop_s: float) -> bool:
        """Raises the bound by the linear relaxation with these slots as well, and its cuts. False if time ran out.

        Slots that assume an order of recomputations are left out.
        """
        known = (slot for slot in self.slots if slot[1] in (slot[0], -1))
        model = self._build(self.task.budget_bytes, {*known, *slots})
        if model.contradiction:
            raise self.task.infeasible(proof_scope=model.proof_scope)
        self.strengthen_until_s = stop_s
        strengthen(
            self.lifetimes,
            model,
            self.linear_cuts,
            lambda program: self._relax(model, program),
            per_range=_LINEAR_CUTS_PER_RANGE,
            least_gain=_LINEAR_LEAST_GAIN,
            is_lean=True,
        )
        return time.monotonic() + self.relaxed_s < stop_s and not self.task.is_over()

    def guess(self, budget_bytes: int, limit_s: float) -> Round:
        """The same slots, only for a schedule: maybe with less room than the task's, and without cuts."""
        start = time.monotonic()
        model = self._build(budget_bytes, self.slots)
        return self._as_round(model, self._ask_engine(model, limit_s), start)

    def _build(self, budget_bytes: int, slots: Set[Slot]) -> CutModel:
        self.relaxed_s = 0.0
        covers = [cover for cover in self.covers if cover.slot in slots]
        return build_model(self.lifetimes, tuple(slots), budget_bytes, absent=self.absent, covers=covers)

    def _as_round(self, model: CutModel, outcome: Outcome, start_s: float) -> Round:
        if outcome.x is None:
            return Round(termination=outcome.termination, wall_s=time.monotonic() - start_s)
        decisions = read_decisions(model, outcome.x)
        schedule = drop_unused(self.lifetimes, build_schedule(self.lifetimes, decisions))
        return Round(
            termination=outcome.termination,
            wall_s=time.monotonic() - start_s,
            schedule=schedule,
            peak_bytes=simulate(self.graph, schedule).peak_bytes,
            decisions=tuple(decisions),
        )

    def refine(self, found: Round) -> bool:
        """Adds the slots that a round's schedule shows to be missing. False if there are none."""
        if found.schedule is None:
            return False
        budget = self.task.budget_bytes
        if found.peak_bytes <= budget:
            new = mismatched_slots(found.schedule, self.slots)
        else:
            timeline = simulate(self.graph, found.schedule).timeline_bytes
            new = missing_slots(self.graph, found.schedule, timeline, budget, self.slots, limit=_STAGES_PER_ROUND)
        self.slots.update(new)
        if new:
            return True
        covers = [cover for cover in overfull(self.graph, found.decisions, budget) if cover not in self.covers]
        self.covers.extend(covers)
        return bool(covers)

    def _start_point(self, model: CutModel) -> tuple[float, ...] | None:
        """The cheapest solution of the model among the incumbent and the last round's schedule, if it admits any."""
        if self.start is None or model.contradiction:
            return None
        points = [embed(self.lifetimes, model, one) for one in (self.start, self.latest) if one is not None]
        admitted = [point for point in points if is_feasible(model.program, point)]
        return min(admitted, key=model.program.price, default=None)

    def _ask_engine(
        self,
        model: CutModel,
        limit_s: float,
        *,
        cutoff_ns: float = math.inf,
        start: tuple[float, ...] | None = None,
    ) -> Outcome:
        if model.contradiction:
            return Outcome(termination="infeasible", bound=math.inf)
        if not model.program.column_count:
            return Outcome(termination="optimal", bound=0.0, objective=0.0, x=())
        limits = Limits(
            time_limit_s=min(limit_s, self.task.remaining_s()),
            absolute_gap=self.absolute_gap_ns / model.scale.time_unit,
            threads=self.task.options.threads,
            cutoff=(cutoff_ns - self.graph.total_time_ns) / model.scale.time_unit,
        )
        try:
            return self.engine.solve(model.program, limits, warm_start=start, should_stop=self.task.stop_requested)
        except EngineFailed:
            self.failures += 1
            if self.failures > _MAX_FAILURES:
                raise
            return Outcome(termination="no_solution", bound=-math.inf)

    def _relax(self, model: CutModel, program: MixedIntegerProgram) -> tuple[float, ...] | None:
        """The optimum of the model's linear relaxation, which bounds its own; None if the time for cuts is over."""
        left_s = min(self.strengthen_until_s - time.monotonic(), self.task.remaining_s())
        if left_s <= self.relaxed_s:
            return None
        limits = Limits(time_limit_s=left_s, threads=self.task.options.threads)
        try:
            outcome = self.engine.solve(program, limits, should_stop=self.task.stop_requested)
        except EngineFailed:
            return None
        if outcome.termination != "optimal":
            return None
        self.relaxed_s = outcome.wall_s
        self._raise_bound(model, outcome.bound)
        return outcome.x

    def _raise_bound(self, model: CutModel, bound: float) -> None:
        """Times are divided by an inexact unit and engines round: the bound gives up 1e-9 of the store-all time."""
        if not math.isfinite(bound):
            return
        total = self.graph.total_time_ns
        self.take_bound(total + math.ceil(bound * model.scale.time_unit - 1e-9 * total), model.proof_scope)

    def take_bound(self, bound_ns: int, scope: ProofScope) -> None:
        """Keeps the bound if it is the best so far."""
        if bound_ns > self.bound_ns:
            self.bound_ns = bound_ns
            self.bound_scope = scope
