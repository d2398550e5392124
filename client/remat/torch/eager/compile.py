"""Eager mode on a model: planned at its first call with each input shape, and off again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from remat.torch.adapters import adapter_for
from remat.torch.allocation import tensors_in
from remat.torch.both_ways import first_difference, restored, run_once
from remat.torch.eager.plan import EagerPlan
from remat.torch.eager.planning import Measure, apply_regions, installed, make_plan, uninstall
from remat.torch.eager.region_call import RegionCall
from remat.torch.eager.regions import own_call
from remat.torch.joint_capture import MAX_SHAPES
from remat.torch.measure import measure
from remat.torch.shaped_call import refuse_more_shapes
from remat.torch.step import Step
from remat_solver.budget import Budget
from remat_solver.errors import VerificationFailed

ShapeKey = tuple[tuple[tuple[int, ...], torch.dtype], ...]


class EagerCall:
    """Stands in for the model's call. Plans run by the shapes of the inputs; each shape has its own."""

    def __init__(
        self,
        model: nn.Module,
        budget: Budget,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        loss_fn: Callable[[Any], Any] | None = None,
        reserve_bytes: int = 0,
        verify: bool = False,
        measure: Measure = measure,
        **solve_fields: Any,
    ) -> None:
        self.model = model
        self.adapter = adapter_for(model)
        self.budget = budget
        self.optimizer = optimizer
        self.loss_fn = loss_fn
        self.reserve_bytes = reserve_bytes
        self.is_to_be_verified = verify
        self.measure = measure
        self.solve_fields = solve_fields
        self.plans: dict[ShapeKey, EagerPlan] = {}
        self.calls: dict[str, RegionCall] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._run(args, kwargs)
        with self.adapter.recomputing():
            key = tuple((tuple(t.shape), t.dtype) for t in tensors_in((args, kwargs)))
            if key not in self.plans:
                try:
                    self._add_plan(key, args, kwargs)
                except BaseException:
                    self.remove()
                    if not self.plans:
                        self.model._compiled_call_impl = None  # nothing is left half-applied: the model is as it was
                    raise
            apply_regions(self.calls, self.plans[key].regions)
            return self._run(args, kwargs)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = own_call(self.model)(*args, **kwargs)
        return output if self.loss_fn is None else self.loss_fn(output)

    def remove(self) -> None:
        """Takes every region's stand-in out."""
        uninstall(dict(self.model.named_modules()))

    def _add_plan(self, key: ShapeKey, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        refuse_more_shapes(len(self.plans), MAX_SHAPES)
        self.remove()
        step = Step(self.model, args, kwargs, self.loss_fn, self.optimizer)
        with restored(step), self.adapter.skipping_nothing():
            plan = make_plan(
                step, self.budget, reserve_bytes=self.reserve_bytes, measure=self.measure, **self.solve_fields
            )
            if self.is_to_be_verified:
                self.is_to_be_verified = False
                _verify(step, plan)
        self.plans[key] = plan
        paths = {path for known in self.plans.values() for path in known.regions}
        self.calls = installed({path: module for path, module in self.model.named_modules() if path in paths})


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
