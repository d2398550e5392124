"""From a step and a budget to a compiled step whose measured peak is within the budget.

Inductor decides for itself what it fuses and when a buffer dies, so a prediction from kernels' sizes is only where the
search begins: each plan's peak is measured (on the CPU in a rehearsal, which compiles no kernels), and the next
question is shifted by what the prediction was off by. The plan that is taken is compiled, run, and measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from time import perf_counter
from typing import Any

from remat.torch.inductor.difference import largest_difference, tolerance
from remat.torch.inductor.layouts import Layout
from remat.torch.inductor.partitioners import Backend, plain_backend, thrifty_backend
from remat.torch.inductor.plan import InductorPlan, Recomputed
from remat.torch.inductor.survey import Surveyed
from remat_solver.budget import Budget
from remat_solver.errors import InfeasibleBudget, NoPlanInTime, VerificationFailed
from remat_solver.graph import Graph
from remat_solver.plan import Plan
from remat_solver.solve import minimum_budget, solve

MAX_TRIALS = 6
"""Schedules of ours whose peak is measured, at most."""
CLOSE_ENOUGH = 0.02
"""No further trial once a measured peak is within the budget by at most this share of it."""
MEMORY_BUDGETS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""Settings of PyTorch's own partitioner that are tried, the first within the budget in earnest."""
NO_SLOWER = 0.01
"""A step that takes no more beyond the plain one's time is as fast as one can tell: no other way is compiled."""
PRECISION = {"gap": 0.003, "time_limit_s": 20.0}
"""What is asked of the solver unless the caller says otherwise: a kernel's cost is not known better."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The compiled step and what is known of it. `backend` compiles another copy of the model in the same way."""

    call: Callable[..., Any]
    backend: Backend
    plan: InductorPlan


def plan_within(surveyed: Surveyed, budget: Budget, *, trials: int = MAX_TRIALS, **solve_fields: Any) -> Planned:
    """A compiled step whose measured peak is within the budget. The caller puts the model's state back.

    A share as budget is one of the plain compiled step's measured peak. Our schedule with the least predicted time
    among those that fit is taken if it is as fast as the plain step; otherwise it competes with the first setting of
    PyTorch's own partitioner that fits. Raises `InfeasibleBudget` where no trial fits, and `VerificationFailed` if none
    that does has the plain step's gradients up to rounding.
    """
    started = perf_counter()
    plain_peak = surveyed.plain.peak_bytes
    known = InductorPlan(
        plan=None,
        ops=len(surveyed.joint.graph),
        kernels=len(surveyed.sighting.kernels),
        recomputed=(),
        budget_bytes=budget.in_bytes(plain_peak),
        fixed_bytes=surveyed.bench.resident_bytes,
        plain_peak_bytes=plain_peak,
        predicted_peak_bytes=plain_peak,
        measured_peak_bytes=plain_peak,
    )
    if plain_peak <= known.budget_bytes:
        return Planned(call=surveyed.plain.call, backend=plain_backend(), plan=known)
    search = _Search(surveyed=surveyed, known=known)
    best = search.best(trials, {**PRECISION, **solve_fields})
    plan = replace(best.plan, trials=len(search.peaks_bytes), plan_s=perf_counter() - started)
    return replace(best, plan=plan)


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """A way to cut the step of which a rehearsal says that it is within the budget, and what is known of it so far."""

    backend: Backend
    plan: InductorPlan


@dataclass(kw_only=True)
class _Search:
    """Trials for one budget: of our own schedules, and of what PyTorch's partitioner does when told to save less."""

    surveyed: Surveyed
    known: InductorPlan
    peaks_bytes: list[int] = field(default_factory=list)
    """Of all ways that were tried."""
    refusal: Exception | None = None
    """Why a way that might have been within the budget was not taken, the latest."""

    def best(self, trials: int, fields: dict[str, Any]) -> Planned:
        """The fastest as measured of our best schedule and PyTorch's best cut."""
        schedules = chain.from_iterable(self._schedules(one, trials, fields) for one in self.surveyed.layouts)
        best = self._fastest(self._first_fitting(schedules))
        if best is None or best.plan.measured_overhead > NO_SLOWER:
            best = self._fastest(best, self._first_fitting(self._cuts()))
        if best is not None:
            return best
        if self.refusal is not None:
            raise self.refusal
        least_bytes = min((*self.peaks_bytes, self.known.plain_peak_bytes))
        raise InfeasibleBudget(
            f"inductor mode found no plan within {self.known.budget_bytes} bytes; "
            f"the least peak measured is {least_bytes}.",
            hint='Raise the budget. mode="exact" reaches lower peaks.',
            budget_bytes=self.known.budget_bytes,
            known_feasible_bytes=least_bytes,
            proof_scope="order",
        )

    def _fastest(self, *planned: Planned | None) -> Planned | None:
        """The one that takes the least time, with that noted; None if there is none."""
        contenders = [one for one in planned if one is not None]
        if not contenders:
            return None
        calls = [self.surveyed.plain.call, *(one.call for one in contenders)]
        plain_s, *seconds = self.surveyed.bench.seconds(calls)
        least_s, best = min(zip(seconds, contenders, strict=True), key=lambda pair: pair[0])
        return replace(best, plan=replace(best.plan, measured_overhead=least_s / plain_s - 1))

    def _first_fitting(self, candidates: Iterable[_Candidate]) -> Planned | None:
        """The first whose measured peak is within the budget and whose gradients are right, compiled."""
        plain = self.surveyed.plain.outcome
        for candidate in candidates:
            trial = self.surveyed.bench.run(candidate.backend, f"a candidate cut by {candidate.plan.cut_by}")
            if trial.peak_bytes > self.known.budget_bytes:
                continue
            difference, where = largest_difference(trial.outcome, plain)
            if difference <= tolerance(plain):
                plan = replace(candidate.plan, measured_peak_bytes=trial.peak_bytes, largest_difference=difference)
                return Planned(call=trial.call, backend=candidate.backend, plan=plan)
            self.refusal = VerificationFailed(
                f"the planned step differs from the plain compiled one by {difference:.1e} of the norm of {where}.",
                hint='That is more than rounding explains: report the model, and use mode="exact".',
                difference=where,
            )
        return None

    def _cuts(self) -> Iterator[_Candidate]:
        """PyTorch's cuts within the budget, those that recompute least first."""
        for memory_budget in MEMORY_BUDGETS:
            peak_bytes = self.surveyed.thrifty_peak(memory_budget)
            self.peaks_bytes.append(peak_bytes)
            if peak_bytes <= self.known.budget_bytes:
                settings = {"activation_memory_budget": memory_budget}
                plan = replace(self.known, settings=settings, predicted_peak_bytes=peak_bytes)
                yield _Candidate(backend=thrifty_backend(memory_budget), plan=plan)

    def _schedules(self, layout: Layout, trials: int, fields: dict[str, Any]) -> list[_Candidate]:
        """Our schedules within the budget, the fastest first, as predicted."""
        peaks = self._rehearse(layout, trials, fields)
        fitting = [plan for plan, peak_bytes in peaks.items() if peak_bytes <= self.known.budget_bytes]
        return [
            _Candidate(backend=layout.backend(plan.schedule), plan=self._described(plan, layout))
            for plan in sorted(fitting, key=lambda plan: plan.time_ns)
        ]

    def _rehearse(self, layout: Layout, trials: int, fields: dict[str, Any]) -> dict[Plan, int]:
        """Plans and their measured peaks."""
        budget_bytes = self.known.budget_bytes
        asked = budget_bytes + layout.excess_bytes
        peaks: dict[Plan, int] = {}
        for _ in range(trials):
            try:
                plan = self._solve(layout.fused.graph, asked, is_first=not peaks, fields=fields)
            except InfeasibleBudget:
                break
            except NoPlanInTime as error:
                self.refusal = error
                break
            if any(plan.schedule == known.schedule for known in peaks):
                break
            what = f"schedule {len(peaks) + 1} of at most {trials}, {plan.overhead:.1%} slower as predicted"
            peaks[plan] = measured = self.surveyed.bench.rehearsed_peak(layout.backend(plan.schedule), what)
            self.peaks_bytes.append(measured)
            is_free = plan.overhead <= PRECISION["gap"]
            if measured <= budget_bytes and (is_free or budget_bytes - measured <= CLOSE_ENOUGH * budget_bytes):
                break
            asked = min(asked, plan.peak_bytes) + budget_bytes - measured
            if asked <= self.known.fixed_bytes:
                break
        return peaks

    def _solve(self, graph: Graph, asked: int, *, is_first: bool, fields: dict[str, Any]) -> Plan:
        """A plan for `asked` bytes. The first may need more, since a prediction can be too high by what is reused."""
        with self.surveyed.bench.show("solving"):
            try:
                return solve(graph, budget_bytes=asked, **fields)
            except InfeasibleBudget:
                if not is_first:
                    raise
                return minimum_budget(graph, **fields).plan

    def _described(self, plan: Plan, layout: Layout) -> InductorPlan:
        graph = layout.fused.graph
        again = [
            Recomputed(name=graph.ops[op].name, recomputes=runs - 1, time_ns=(runs - 1) * graph.ops[op].time_ns)
            for op, runs in plan.run_counts.items()
            if runs > 1
        ]
        return replace(
            self.known,
            plan=plan,
            settings=layout.settings,
            recomputed=tuple(sorted(again, key=lambda kernel: (-kernel.time_ns, kernel.name))),
            predicted_peak_bytes=plan.peak_bytes - layout.excess_bytes,
        )
