"""From a step and a budget to an eager plan whose measured peak is within the budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from remat.torch.allocation import main_device, tensors_in
from remat.torch.both_ways import run_once
from remat.torch.eager.draws import MEASURED, full_draws, highest_peak, in_draw, leave_behind
from remat.torch.eager.kept import bytes_kept_by
from remat.torch.eager.plan import EagerPlan, RegionPlan
from remat.torch.eager.regions import Regions, candidate_regions, own_call
from remat.torch.eager.stand_ins import apply_regions, installed, uninstall
from remat.torch.eager.survey import SurveyedRegion, survey, with_times
from remat.torch.eager.trial import measure_intervals
from remat.torch.resident import fixed_bytes, model_tensors
from remat.torch.step import Step
from remat_solver.budget import Budget
from remat_solver.errors import ApplyError, InfeasibleBudget
from remat_solver.graph import Graph
from remat_solver.save_sets import Interval, SaveSets, predicted_peak, solve_save_sets

MAX_TRIALS = 4
"""Steps that are run to measure plans; the prediction is adjusted by what each of them showed."""

Measure = Callable[[Graph], Graph]


@dataclass(frozen=True, kw_only=True)
class _Cut:
    """One way of cutting the model into regions, surveyed, and the intervals of a step in which nothing is saved."""

    modules: dict[str, nn.Module]
    regions: dict[str, SurveyedRegion]
    intervals: tuple[Interval, ...]
    kept_bytes: int
    store_all_peak: int

    def solve(self, budget_bytes: int, fields: dict[str, Any]) -> SaveSets:
        problems = [region.as_problem() for region in self.regions.values()]
        return solve_save_sets(problems, self.intervals, budget_bytes=budget_bytes, **fields)


def make_plan(step: Step, budget: Budget, *, reserve_bytes: int, measure: Measure, **solve_fields: Any) -> EagerPlan:
    """A plan for `step`, found by running parts of it and a few trial steps. The caller puts the model's state back.

    The cut with the least recomputation wins. A plan counts only if its measured peak is within the budget, in several
    draws of the random numbers; the prediction is shifted by the difference, at most `MAX_TRIALS` times. Raises
    `ApplyError` for a model without regions, or one that skips modules by chance, and `InfeasibleBudget` where even
    with everything recomputed the measured peak is higher.
    """
    device = main_device(step.model.parameters())
    tensors = [*model_tensors(step.model), *tensors_in((step.args, dict(step.kwargs or {})))]
    resident = fixed_bytes(tensors, [], step.optimizer, device) + reserve_bytes
    candidates = candidate_regions(step.model)
    _refuse_compiled(candidates)
    with in_draw(0):
        kept_bytes = bytes_kept_by(lambda: leave_behind(step), device)
    draws = full_draws(step)
    cuts = [_cut(step, modules, draws[0], measure, resident, kept_bytes) for modules in candidates]
    cuts = [cut for cut in cuts if cut.regions]
    if not cuts:
        raise ApplyError(
            "eager mode found no module to recompute: the model has no modules that hold others and run once.",
            hint="Write its repeated part as modules of their own, in a ModuleList or Sequential.",
        )
    obstacles = {path: region.obstacle for cut in cuts for path, region in cut.regions.items()}
    if all(obstacles.values()):
        path, obstacle = next(iter(obstacles.items()))
        raise ApplyError(
            f"eager mode can recompute no module of this model. {path}, for one: {obstacle}.",
            hint="Change the model so that its modules can run twice.",
        )
    budget_bytes = budget.in_bytes(min(cut.store_all_peak for cut in cuts))
    cut = _best(cuts, budget_bytes, solve_fields)
    return _tried(step, cut, budget_bytes, resident, draws[:MEASURED], solve_fields)


def _refuse_compiled(candidates: Iterable[Regions]) -> None:
    """Raises `ApplyError` for what lies in the slot that stand-ins need."""
    for path, module in (region for regions in candidates for region in regions.items()):
        if module._compiled_call_impl is not None:
            raise ApplyError(f"{path} is compiled already.", hint="Give remat the model as it was before.")


def _cut(
    step: Step,
    modules: dict[str, nn.Module],
    draw: int,
    measure: Measure,
    resident_bytes: int,
    kept_bytes: int,
) -> _Cut:
    with in_draw(draw):
        regions = with_times(survey(step, modules), measure)
    order = list(regions)
    calls = installed({path: modules[path] for path in regions})
    apply_regions(calls, {path: _region_plan(region, frozenset()) for path, region in regions.items()})
    with in_draw(draw):
        found = measure_intervals(step, calls) if regions else []
    uninstall(modules)
    intervals = tuple(
        Interval(base_bytes=resident_bytes + kept_bytes + peak, held=tuple(order.index(path) for path in held))
        for peak, held in found
    )
    problems = [region.as_problem() for region in regions.values()]
    store_all = predicted_peak(problems, intervals, [None] * len(problems)) if regions else 0
    return _Cut(modules=modules, regions=regions, intervals=intervals, kept_bytes=kept_bytes, store_all_peak=store_all)


def _best(cuts: Sequence[_Cut], budget_bytes: int, fields: dict[str, Any]) -> _Cut:
    """The cut whose solution recomputes least; raises the mildest refusal if none has one."""
    solved: list[tuple[int, int]] = []
    refusals: list[InfeasibleBudget] = []
    for index, cut in enumerate(cuts):
        try:
            solved.append((cut.solve(budget_bytes, fields).recompute_ns, index))
        except InfeasibleBudget as error:
            refusals.append(error)
    if not solved:
        mildest = min(refusals, key=lambda error: int(error.fields["known_feasible_bytes"]))
        alone = {path: region.obstacle for cut in cuts for path, region in cut.regions.items() if region.obstacle}
        if alone:
            path, obstacle = next(iter(alone.items()))
            mildest.hint += f" {len(alone)} modules can't be recomputed; {path}, for one: {obstacle}."
        raise mildest
    return cuts[min(solved)[1]]


def _tried(
    step: Step, cut: _Cut, budget_bytes: int, resident: int, draws: Sequence[int], fields: dict[str, Any]
) -> EagerPlan:
    """Solves, runs and measures, and asks again for what the prediction was off by."""
    calls = installed({path: cut.modules[path] for path in cut.regions})
    asked = budget_bytes
    best: EagerPlan | None = None
    least_seen: int | None = None
    for trial in range(1, MAX_TRIALS + 1):
        try:
            found = cut.solve(asked, fields)
        except InfeasibleBudget:
            if best is None and trial == 1:
                raise
            break
        plan = _as_plan(cut, found, budget_bytes, resident, trial)
        apply_regions(calls, plan.regions)
        measured = resident + cut.kept_bytes + _highest_peak(step, draws, budget_bytes - resident - cut.kept_bytes)
        least_seen = measured if least_seen is None else min(least_seen, measured)
        plan = replace(plan, measured_peak_bytes=measured)
        if measured <= budget_bytes and (best is None or plan.recompute_ns < best.recompute_ns):
            best = plan
        if measured == budget_bytes or (measured <= budget_bytes and found.recompute_ns == 0):
            break
        shifted = asked + budget_bytes - measured
        if shifted == asked:
            break
        asked = shifted
    uninstall(cut.modules)
    if best is None:
        raise InfeasibleBudget(
            f"eager mode found no plan within {budget_bytes} bytes: the least peak that it measured is {least_seen}.",
            hint="Raise the budget, or make the model traceable: exact mode reaches lower peaks.",
            budget_bytes=budget_bytes,
            known_feasible_bytes=least_seen,
            proof_scope="order",
        )
    return best


def _highest_peak(step: Step, draws: Sequence[int], limit_bytes: int) -> int:
    """What to expect of the peaks, bytes above the start; one draw is enough to see that they are over the limit."""
    peaks: list[int] = []
    for draw in draws:
        with in_draw(draw):
            peaks.append(run_once(step, own_call(step.model), step.loss_fn).peak_bytes_above_start)
        if highest_peak(peaks) > limit_bytes:
            break
    return highest_peak(peaks)


def _as_plan(cut: _Cut, found: SaveSets, budget_bytes: int, resident: int, trial: int) -> EagerPlan:
    regions = {
        path: None if saved is None else _region_plan(region, saved)
        for (path, region), saved in zip(cut.regions.items(), found.saved, strict=True)
    }
    return EagerPlan(
        regions=regions,
        left_alone={path: region.obstacle for path, region in cut.regions.items() if region.obstacle},
        budget_bytes=budget_bytes,
        fixed_bytes=resident,
        kept_bytes=cut.kept_bytes,
        store_all_peak_bytes=cut.store_all_peak,
        predicted_peak_bytes=found.peak_bytes,
        measured_peak_bytes=0,
        recompute_ns=found.recompute_ns,
        bound_ns=found.bound_ns,
        trials=trial,
    )


def _region_plan(region: SurveyedRegion, saved: frozenset[int]) -> RegionPlan | None:
    if region.obstacle:
        return None
    return RegionPlan(
        saved=frozenset(region.ops[position].call for position in saved),
        draws=region.draws if any(region.ops[position].random for position in saved) else (),
        has_side_effects=region.has_side_effects,
        saved_bytes=sum(region.ops[position].size_bytes for position in saved),
        recompute_ns=region.as_problem().recompute_ns(saved),
    )
