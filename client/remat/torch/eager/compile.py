"""Eager mode on a model: planned at its first call with each input shape, and off again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from remat.torch.adapters import adapter_for
from remat.torch.both_ways import first_difference, run_once
from remat.torch.eager.plan import EagerPlan
from remat.torch.eager.planning import make_plan
from remat.torch.eager.region_call import RegionCall
from remat.torch.eager.regions import own_call
from remat.torch.eager.stand_ins import apply_regions, installed, uninstall
from remat.torch.shaped_call import ShapedCall
from remat.torch.step import Step
from remat_solver.budget import Budget
from remat_solver.errors import VerificationFailed


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan, and what runs the model by it."""

    call: Callable[..., Any]
    plan: EagerPlan


class EagerCall(ShapedCall[Planned]):
    """Stands in for the model's call. All plans share the regions' stand-ins, which run by that of the present call."""

    def __init__(self, model: nn.Module, budget: Budget, *, verify: bool = False, **settings: Any) -> None:
        super().__init__(model, budget, **settings)
        self.adapter = adapter_for(model)
        self.is_to_be_verified = verify
        self.calls: dict[str, RegionCall] = {}

    @property
    def plans(self) -> tuple[EagerPlan, ...]:
        """The plans made so far, in order."""
        return tuple(planned.plan for planned in self.planned.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.evaluate(args, kwargs)
        with self.adapter.recomputing():
            return super().__call__(*args, **kwargs)

    def plan(self, step: Step) -> Planned:
        self.remove()
        plans = self.plans
        try:
            with self.adapter.skipping_nothing():
                plan = make_plan(
                    step, self.budget, reserve_bytes=self.reserve_bytes, measure=self.measure, **self.solve_fields
                )
                if self.is_to_be_verified:
                    self.is_to_be_verified = False
                    _verify(step, plan)
            plans = (*plans, plan)
        finally:  # those made before are still good if this one could not be made
            self.remove()
            self._install(plans)
        return Planned(call=partial(self._run_by, plan), plan=plan)

    def evaluate(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = own_call(self.model)(*args, **kwargs)
        return output if self.loss_fn is None else self.loss_fn(output)

    def remove(self) -> None:
        """Takes every region's stand-in out."""
        uninstall(dict(self.model.named_modules()))

    def _install(self, plans: Iterable[EagerPlan]) -> None:
        paths = {path for plan in plans for path in plan.regions}
        self.calls = installed({path: module for path, module in self.model.named_modules() if path in paths})

    def _run_by(self, plan: EagerPlan, *args: Any, **kwargs: Any) -> Any:
        apply_regions(self.calls, plan.regions)
        return self.evaluate(args, kwargs)


def _verify(step: Step, plan: EagerPlan) -> None:
    """Runs the step both ways and compares; raises `VerificationFailed`."""
    unmodified = run_once(step, own_call(step.model), step.loss_fn)
    modules = {path: module for path, module in step.model.named_modules() if path in plan.regions}
    apply_regions(installed(modules), plan.regions)
    try:
        planned = run_once(step, own_call(step.model), step.loss_fn)
    finally:
        uninstall(modules)
    difference = first_difference(planned, unmodified)
    if difference:
        raise VerificationFailed(
            f"the planned step differs from the unmodified one: {difference}.",
            hint="A module does something that running it twice changes. Report the model.",
            difference=difference,
        )
