"""From a step and a budget to a compiled step whose measured peak is within the budget.

Inductor decides for itself what it fuses and when a buffer dies, so a prediction from kernels' sizes is only where the
search begins: each plan's peak is measured (on the CPU in a rehearsal, which compiles no kernels), and the next
question is shifted by what the prediction was off by. The plan that is taken is compiled, run, and measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import Any

import torch

from remat.torch.allocation import main_device, tensors_in
from remat.torch.both_ways import Outcome, forked_randomness, run_once, run_unmeasured
from remat.torch.contract import JointGraph
from remat.torch.inductor.difference import largest_difference, tolerance
from remat.torch.inductor.fusion import FusedGraph, fuse
from remat.torch.inductor.kernel_costs import with_kernel_times
from remat.torch.inductor.partitioners import (
    Backend,
    Sighting,
    plain_backend,
    planned_backend,
    require_compiler,
    watched_backend,
)
from remat.torch.inductor.plan import InductorPlan, Recomputed
from remat.torch.inductor.rehearsal import without_kernels
from remat.torch.joint_capture import compiled_call
from remat.torch.resident import fixed_bytes, model_tensors
from remat.torch.step import Step
from remat_solver.budget import Budget
from remat_solver.errors import ApplyError, InfeasibleBudget, NoPlanInTime, VerificationFailed
from remat_solver.graph import Graph
from remat_solver.plan import Plan
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.solve import minimum_budget, solve

MAX_TRIALS = 6
"""Plans whose peak is measured, at most."""
CLOSE_ENOUGH = 0.02
"""No further trial once a measured peak is within the budget by at most this share of it."""
SEED = 0
"""Of the noise that all trial steps draw, so that they can be compared, whatever is drawn between them."""
PRECISION = {"gap": 0.003, "time_limit_s": 20.0}
"""What is asked of the solver unless the caller says otherwise: a kernel's cost is not known better."""

Measure = Callable[[Graph], Graph]
Call = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The compiled step and what is known of it. `backend` compiles another copy of the model in the same way."""

    call: Call
    backend: Backend
    plan: InductorPlan


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """A compiled step that was run: what it left behind, and its peak with everything included."""

    call: Call
    outcome: Outcome
    peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """What all trials of one step have in common."""

    step: Step
    device: torch.device
    resident_bytes: int

    def run(self, backend: Backend) -> _Trial:
        """Compiles (in a first step), then runs a second one and takes its peak."""
        call = compiled_call(self.step.model, backend, self.step.loss_fn)
        run_unmeasured(self.step, call, None)
        with forked_randomness(SEED):
            outcome = run_once(self.step, call, None)
        return _Trial(call=call, outcome=outcome, peak_bytes=self.resident_bytes + outcome.peak_bytes_above_start)

    def rehearsed_peak(self, backend: Backend) -> int:
        """The peak that `run` would measure, at a fraction of its cost on the CPU."""
        if self.device.type != "cpu":
            return self.run(backend).peak_bytes
        with without_kernels():
            return self.run(backend).peak_bytes


@dataclass(kw_only=True, eq=False)
class Surveyed:
    """A step as Inductor compiles it by itself, from which plans are made for any budget."""

    bench: _Bench
    plain: _Trial
    joint: JointGraph
    sighting: Sighting
    measure: Measure

    @cached_property
    def fused(self) -> FusedGraph:
        """The graph of kernels, with their costs; measures ops when it is first asked for."""
        fused = fuse(self.joint, self.sighting.seen, self.sighting.stored)
        fused = with_kernel_times(fused, self.measure(self.joint.graph))
        return replace(fused, graph=replace(fused.graph, fixed_bytes=self.bench.resident_bytes))

    def backend(self, schedule: Sequence[int]) -> Backend:
        """Compiles a schedule of kernels."""
        return self._backend(schedule, self.settings)

    def _backend(self, schedule: Sequence[int], settings: Mapping[str, Any]) -> Backend:
        return planned_backend(self.fused.unfused(schedule), self.joint.graph.structure_hash, settings)

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """On the CPU Inductor copies the weights of convolutions for another layout, which a plan can't recompute.

        Without it they take about as long, and often less memory.
        """
        convolves = any("convolution" in op.name for op in self.joint.graph.ops)
        if self.bench.device.type != "cpu" or not convolves:
            return {}
        store_all = store_all_schedule(self.fused.graph)
        options: tuple[Mapping[str, Any], ...] = ({}, {"layout_optimization": False})
        return min(options, key=lambda settings: self.bench.rehearsed_peak(self._backend(store_all, settings)))

    def plan(self, budget: Budget, *, trials: int = MAX_TRIALS, **solve_fields: Any) -> Planned:
        """A compiled step whose measured peak is within the budget, as `make_plan` says."""
        started = perf_counter()
        plain_peak = self.plain.peak_bytes
        known = InductorPlan(
            plan=None,
            ops=len(self.joint.graph),
            kernels=len(self.sighting.kernels),
            recomputed=(),
            budget_bytes=budget.in_bytes(plain_peak),
            fixed_bytes=self.bench.resident_bytes,
            plain_peak_bytes=plain_peak,
            predicted_peak_bytes=plain_peak,
            measured_peak_bytes=plain_peak,
            largest_difference=0.0,
            trials=0,
            plan_s=0.0,
        )
        if plain_peak <= known.budget_bytes:
            return Planned(call=self.plain.call, backend=plain_backend(), plan=known)
        best = _Search(surveyed=self, known=known).best(trials, {**PRECISION, **solve_fields})
        return replace(best, plan=replace(best.plan, plan_s=perf_counter() - started))


def survey(step: Step, *, reserve_bytes: int = 0, measure: Measure) -> Surveyed:
    """Compiles `step` plainly, runs it, and notes what Inductor made of it. Raises `ApplyError` without a compiler."""
    device = main_device(step.model.parameters())
    require_compiler(device)
    tensors = [*model_tensors(step.model), *tensors_in((step.args, dict(step.kwargs or {})))]
    resident = fixed_bytes(tensors, [], step.optimizer, device) + reserve_bytes
    bench = _Bench(step=step, device=device, resident_bytes=resident)
    sighting = Sighting()
    plain = bench.run(watched_backend(sighting))
    if sighting.joint is None:
        raise ApplyError(
            "the compiled step has no backward to plan.", hint="Call the model in training mode, with gradients on."
        )
    return Surveyed(bench=bench, plain=plain, joint=sighting.joint, sighting=sighting, measure=measure)


def make_plan(step: Step, budget: Budget, *, reserve_bytes: int, measure: Measure, **solve_fields: Any) -> Planned:
    """Compiles `step` so that its measured peak is within the budget. The caller puts the model's state back.

    A share as budget is one of the plain compiled step's measured peak. Of the plans tried that fit, the one with the
    least predicted time is taken. Raises `ApplyError` without a compiler, `InfeasibleBudget` where no trial fits, and
    `VerificationFailed` if a planned step's gradients differ from the plain one's by more than rounding.
    """
    return survey(step, reserve_bytes=reserve_bytes, measure=measure).plan(budget, **solve_fields)


@dataclass(frozen=True, kw_only=True)
class _Search:
    """Trials of plans for one budget."""

    surveyed: Surveyed
    known: InductorPlan

    def best(self, trials: int, fields: dict[str, Any]) -> Planned:
        """The fastest plan, as predicted, of those whose measured peak is within the budget, compiled."""
        peaks, refusal = self._rehearse(trials, fields)
        budget_bytes = self.known.budget_bytes
        for plan in sorted(peaks, key=lambda plan: plan.time_ns):
            if peaks[plan] <= budget_bytes:
                planned = self._compiled(plan, len(peaks))
                peaks[plan] = planned.plan.measured_peak_bytes
                if peaks[plan] <= budget_bytes:
                    return planned
        if isinstance(refusal, NoPlanInTime):
            raise refusal
        least_seen = min((*peaks.values(), self.known.plain_peak_bytes))
        raise InfeasibleBudget(
            f"inductor mode found no plan within {budget_bytes} bytes; the least peak measured is {least_seen}.",
            hint='Raise the budget. mode="exact" reaches lower peaks.',
            budget_bytes=budget_bytes,
            known_feasible_bytes=least_seen,
            proof_scope="order",
        )

    def _rehearse(self, trials: int, fields: dict[str, Any]) -> tuple[dict[Plan, int], Exception | None]:
        """Plans and their measured peaks, and what ended the search if the solver did."""
        budget_bytes = self.known.budget_bytes
        # without recomputation a plan is about PyTorch's own cut: the first guess at what predictions are off by
        graph = self.surveyed.fused.graph
        asked = budget_bytes + simulate(graph, store_all_schedule(graph)).peak_bytes - self.known.plain_peak_bytes
        peaks: dict[Plan, int] = {}
        for _ in range(trials):
            try:
                plan = self._solve(asked, is_first=not peaks, fields=fields)
            except (InfeasibleBudget, NoPlanInTime) as error:
                return peaks, error
            if any(plan.schedule == known.schedule for known in peaks):
                break
            peaks[plan] = measured = self.surveyed.bench.rehearsed_peak(self.surveyed.backend(plan.schedule))
            is_free = plan.time_ns == self.surveyed.fused.graph.total_time_ns
            if measured <= budget_bytes and (is_free or budget_bytes - measured <= CLOSE_ENOUGH * budget_bytes):
                break
            asked = min(asked, plan.peak_bytes) + budget_bytes - measured
            if asked <= self.known.fixed_bytes:
                break
        return peaks, None

    def _solve(self, asked: int, *, is_first: bool, fields: dict[str, Any]) -> Plan:
        """A plan for `asked` bytes. The first may need more, since a prediction can be too high by what is reused."""
        try:
            return solve(self.surveyed.fused.graph, budget_bytes=asked, **fields)
        except InfeasibleBudget:
            if not is_first:
                raise
            return minimum_budget(self.surveyed.fused.graph, **fields).plan

    def _compiled(self, plan: Plan, trials: int) -> Planned:
        backend = self.surveyed.backend(plan.schedule)
        trial = self.surveyed.bench.run(backend)
        difference, where = largest_difference(trial.outcome, self.surveyed.plain.outcome)
        if not difference <= tolerance(self.surveyed.plain.outcome):
            raise VerificationFailed(
                f"the planned step differs from the plain compiled one by {difference:.1e} of the norm of {where}.",
                hint='That is more than rounding explains: report the model, and use mode="exact".',
                difference=where,
            )
        graph = self.surveyed.fused.graph
        again = [
            Recomputed(name=graph.ops[op].name, recomputes=runs - 1, time_ns=(runs - 1) * graph.ops[op].time_ns)
            for op, runs in plan.run_counts.items()
            if runs > 1
        ]
        record = replace(
            self.known,
            plan=plan,
            recomputed=tuple(sorted(again, key=lambda kernel: (-kernel.time_ns, kernel.name))),
            predicted_peak_bytes=plan.peak_bytes,
            measured_peak_bytes=trial.peak_bytes,
            largest_difference=difference,
            trials=trials,
        )
        return Planned(call=trial.call, backend=backend, plan=record)
