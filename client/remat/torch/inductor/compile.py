"""Inductor mode on a model: compiled and planned at its first call with each input shape, and off again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from remat.torch.allocation import tensors_in
from remat.torch.both_ways import restored
from remat.torch.breaks import explain
from remat.torch.inductor.partitioners import plain_backend
from remat.torch.inductor.plan import InductorPlan
from remat.torch.inductor.planning import Measure, Planned, make_plan
from remat.torch.joint_capture import MAX_SHAPES, compiled_call
from remat.torch.measure import measure
from remat.torch.step import Step
from remat_solver.budget import Budget
from remat_solver.errors import ApplyError

Key = tuple[tuple[tuple[int, ...], torch.dtype] | bool, ...]


class InductorCall:
    """Stands in for the model's call. Each input shape has a plan of its own, and so has each of its modes."""

    def __init__(
        self,
        model: nn.Module,
        budget: Budget,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        loss_fn: Callable[[Any], Any] | None = None,
        reserve_bytes: int = 0,
        max_shapes: int = MAX_SHAPES,
        measure: Measure = measure,
        **solve_fields: Any,
    ) -> None:
        self.model = model
        self.budget = budget
        self.optimizer = optimizer
        self.loss_fn = loss_fn
        self.reserve_bytes = reserve_bytes
        self.max_shapes = max_shapes
        self.measure = measure
        self.solve_fields = solve_fields
        self.planned: dict[Key, Planned] = {}
        self.evaluation: Callable[..., Any] | None = None
        """What runs where no gradients are asked for: compiled, with nothing to plan."""

    @property
    def plans(self) -> tuple[InductorPlan, ...]:
        """The plans made so far, in order."""
        return tuple(planned.plan for planned in self.planned.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            if self.evaluation is None:
                self.evaluation = compiled_call(self.model, plain_backend(), self.loss_fn, max_shapes=self.max_shapes)
            return self.evaluation(*args, **kwargs)
        shapes = tuple((tuple(t.shape), t.dtype) for t in tensors_in((args, kwargs)))
        key: Key = (*shapes, self.model.training)
        if key not in self.planned:
            self._add_plan(key, args, kwargs)
        return self.planned[key].call(*args, **kwargs)

    def _add_plan(self, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if len(self.planned) >= self.max_shapes:
            raise ApplyError(
                f"the model was called with more than {self.max_shapes} input shapes.",
                hint="Pad batches to a few shapes, each of which has its own plan, or raise max_shapes.",
            )
        step = Step(self.model, args, kwargs, self.loss_fn, self.optimizer)
        try:
            with restored(step):
                self.planned[key] = make_plan(
                    step, self.budget, reserve_bytes=self.reserve_bytes, measure=self.measure, **self.solve_fields
                )
        except Exception as error:
            if not self.planned:
                self.model._compiled_call_impl = None  # nothing is left half-applied: the model is as it was
            explained = explain(error)
            if explained is None:
                raise
            raise explained.with_traceback(None) from None
