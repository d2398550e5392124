"""The default strategy: solve a relaxation that knows few slots, and add those where its schedule breaks the budget."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from remat_solver.bounds import working_set_bound
from remat_solver.engines.base import Engine, Limits, Outcome
from remat_solver.formulation.lifetimes import Lifetimes, find_lifetimes
from remat_solver.formulation.memory_cuts import Cover, CutModel, Slot, build_model
from remat_solver.pins import keeps_pins
from remat_solver.plan import ProofScope
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.strategies.base import Found, Task
from remat_solver.strategies.cleaning import drop_unused
from remat_solver.strategies.fitting import RULES
from remat_solver.strategies.incumbent import Incumbent
from remat_solver.strategies.refinement import missing_slots, places
from remat_solver.strategies.sequence import build_schedule, overfull, read_decisions

_SMALL = 1500
"""Up to so many ops the first model is solved sooner than heuristics could help."""


def memory_cuts(task: Task) -> Found:
    """Solves `task` to its gap by lazily added memory cuts (see `formulation.memory_cuts`).

    Raises `InfeasibleBudget` with its proof, `NoPlanInTime`, `SolveCancelled` or an `EngineError`.
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
    """One solve: the slots so far, the best schedule, the best bound."""

    def __init__(self, task: Task, knowledge: Knowledge, target_ns: int | None) -> None:
        self.task = task
        self.knowledge = knowledge
        self.target_ns = target_ns
        self.graph = task.graph
        self.lifetimes: Lifetimes = find_lifetimes(task.graph)
        self.slots: set[Slot] = set()
        self.absent: dict[Slot, frozenset[int]] = {}
        self.covers: list[Cover] = []
        self.best = Incumbent(self.lifetimes, task.budget_bytes, is_allowed=self.is_allowed)
        self.bound_ns = task.graph.total_time_ns
        self.bound_scope: ProofScope = "order"
        self.rounds = 0
        self.rows = 0
        self.columns = 0
        self.has_seeds = False
        self.round_limit_s = 0.8

    @cached_property
    def engine(self) -> Engine:
        return self.task.find_engine()

    def run(self) -> Found:
        bound = working_set_bound(self.graph)
        if self.task.budget_bytes < bound:
            raise self.task.infeasible(proof_scope="order", below_bytes=bound)
        store_all = simulate(self.graph, store_all_schedule(self.graph))
        if store_all.peak_bytes <= self.task.budget_bytes and not self.task.absent_at_boundary:
            self.best.offer(store_all_schedule(self.graph), should_stop=self.task.is_over)
            return self.found("")
        self.slots.add((store_all.peak_step, store_all.peak_step))
        self.add_boundary()
        self.take_known()
        if len(self.graph) > _SMALL:
            self.seed()
        while not self.is_closed() and not self.task.is_over():
            if not self.do_round():
                break
        if self.best.schedule is None:
            raise self.task.no_plan()
        return self.found("" if self.is_closed() else self.task.stopped_by())

    def add_boundary(self) -> None:
        if self.task.boundary is not None and self.task.absent_at_boundary:
            slot = (self.task.boundary, -1)
            barred = (v for op in self.task.absent_at_boundary for v in self.lifetimes.writes[op])
            self.absent[slot] = frozenset(barred)
            self.slots.add(slot)

    def take_known(self) -> None:
        """Offers the schedules that other solves of this graph found."""
        for schedule in self.knowledge.schedules:
            if self.best.fits(schedule):
                self.best.offer(schedule, should_stop=self.task.is_over)

    def seed(self) -> None:
        """First schedules, by evictions from store-all, within a tenth of the time."""
        self.has_seeds = True
        stop_s = time.monotonic() + self.task.remaining_s() / 10
        store_all = store_all_schedule(self.graph)
        for rule in RULES[1:4]:
            self.best.offer_fitted(store_all, (rule,), should_stop=lambda: self.is_past(stop_s))
            self.report("seed")

    def is_past(self, moment_s: float) -> bool:
        return time.monotonic() >= moment_s or self.task.is_over()

    def is_allowed(self, schedule: Sequence[int]) -> bool:
        return not self.task.absent_at_boundary or keeps_pins(self.task, schedule)

    def check_target(self) -> None:
        if self.target_ns is not None and self.bound_ns > self.target_ns:
            raise self.task.infeasible(proof_scope=self.bound_scope)

    def is_closed(self) -> bool:
        """Whether the best schedule is within the asked gap of the bound."""
        if self.best.schedule is None:
            return False
        if self.target_ns is not None and self.best.time_ns <= self.target_ns:
            return True
        return self.best.time_ns - self.bound_ns <= self.task.options.gap * self.graph.total_time_ns

    def do_round(self) -> bool:
        """One model, one solve, one schedule, new slots. False if nothing is left to try."""
        self.rounds += 1
        model = build_model(
            self.lifetimes, tuple(self.slots), self.task.budget_bytes, absent=self.absent, covers=self.covers
        )
        self.rows, self.columns = model.program.row_count, model.program.column_count
        outcome = self.solve_model(model)
        if outcome.termination == "infeasible":
            raise self.task.infeasible(proof_scope=model.proof_scope)
        self.raise_bound(model, outcome.bound)
        self.check_target()
        if outcome.x is None:
            if not self.has_seeds:
                self.seed()
            self.round_limit_s *= 2
            return not self.task.is_over()
        decisions = read_decisions(model, outcome.x)
        schedule = drop_unused(self.lifetimes, build_schedule(self.lifetimes, decisions))
        timeline = simulate(self.graph, schedule).timeline_bytes
        if max(timeline) <= self.task.budget_bytes:
            self.best.offer(schedule, should_stop=self.task.is_over)
            self.report("fits")
            if self.is_closed():
                return True
            if outcome.termination == "feasible":
                self.round_limit_s *= 2
                return True
            return self.refine_mismatch(schedule)
        self.best.offer_fitted(schedule, RULES[1:3], should_stop=self.task.is_over)
        if not self.has_seeds:
            self.seed()
        self.report("refine")
        if self.is_closed():
            return True
        new = missing_slots(self.graph, schedule, timeline, self.task.budget_bytes, self.slots, limit=3)
        self.slots.update(new)
        if new:
            return True
        covers = [c for c in overfull(self.graph, decisions, self.task.budget_bytes) if c not in self.covers]
        self.covers.extend(covers)
        return bool(covers)

    def solve_model(self, model: CutModel) -> Outcome:
        if model.contradiction:
            return Outcome(termination="infeasible", bound=math.inf)
        if not model.program.column_count:
            return Outcome(termination="optimal", bound=0.0, objective=0.0, x=())
        limits = Limits(
            time_limit_s=min(self.round_limit_s, self.task.remaining_s()),
            absolute_gap=self.task.options.gap / 2 * self.graph.total_time_ns / model.scale.time_unit,
            threads=self.task.options.threads,
        )
        return self.engine.solve(model.program, limits, should_stop=self.task.stop_requested)

    def raise_bound(self, model: CutModel, bound: float) -> None:
        if not math.isfinite(bound):
            return
        total = self.graph.total_time_ns
        bound_ns = total + math.ceil(bound * model.scale.time_unit - 1e-9 * total)
        if bound_ns > self.bound_ns:
            self.bound_ns = bound_ns
            self.bound_scope = model.proof_scope

    def refine_mismatch(self, schedule: list[int]) -> bool:
        """Adds slots around recomputes that the objective did not pay for (trigger b)."""
        new: list[Slot] = []
        for stage, op in places(schedule):
            if op != stage:
                new.extend(s for s in ((stage, stage), (stage, op)) if s not in self.slots and s not in new)
            if len(new) >= 4:
                break
        self.slots.update(new)
        return bool(new)

    def report(self, stage: str) -> None:
        self.task.report(
            bound_ns=self.bound_ns,
            incumbent_ns=self.best.time_ns if self.best.schedule is not None else None,
            slots=len(self.slots),
            stage=stage,
        )

    def found(self, stopped_by: str) -> Found:
        assert self.best.schedule is not None
        used_engine = self.rounds > 0
        return Found(
            schedule=tuple(self.best.schedule),
            bound_ns=min(self.bound_ns, self.best.time_ns),
            proof_scope=self.bound_scope,
            engine=self.engine.name if used_engine else "",
            engine_version=self.engine.version() if used_engine else "",
            rounds=self.rounds,
            slots=len(self.slots),
            rows=self.rows,
            columns=self.columns,
            stopped_by=stopped_by,
        )
