"""Pieces mode on a model: compiled and planned at its first call with each input shape, and off again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from remat.torch.allocation import tensors_in
from remat.torch.both_ways import first_difference, restored, run_once
from remat.torch.breaks import explain
from remat.torch.eager.regions import own_call
from remat.torch.joint_capture import MAX_SHAPES, compiled_call, traced_backend
from remat.torch.measure import measure
from remat.torch.pieces.plan import PiecesPlan
from remat.torch.pieces.planning import Measure, Planned, make_plan
from remat.torch.step import Step
from remat_solver.budget import Budget
from remat_solver.errors import ApplyError, VerificationFailed

Key = tuple[tuple[tuple[int, ...], torch.dtype] | bool, ...]


class PiecesCall:
    """Stands in for the model's call. Each input shape has its own plan; without gradients the model runs as is."""

    def __init__(
        self,
        model: nn.Module,
        budget: Budget,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        loss_fn: Callable[[Any], Any] | None = None,
        reserve_bytes: int = 0,
        verify: bool = False,
        max_shapes: int = MAX_SHAPES,
        measure: Measure = measure,
        **solve_fields: Any,
    ) -> None:
        self.model = model
        self.budget = budget
        self.optimizer = optimizer
        self.loss_fn = loss_fn
        self.reserve_bytes = reserve_bytes
        self.is_to_be_verified = verify
        self.max_shapes = max_shapes
        self.measure = measure
        self.solve_fields = solve_fields
        self.planned: dict[Key, Planned] = {}

    @property
    def plans(self) -> tuple[PiecesPlan, ...]:
        """The plans made so far, in order."""
        return tuple(planned.plan for planned in self.planned.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            output = own_call(self.model)(*args, **kwargs)
            return output if self.loss_fn is None else self.loss_fn(output)
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
                planned = make_plan(
                    step, self.budget, reserve_bytes=self.reserve_bytes, measure=self.measure, **self.solve_fields
                )
                if self.is_to_be_verified:
                    self.is_to_be_verified = False
                    _verify(step, planned)
            self.planned[key] = planned
        except Exception as error:
            if not self.planned:
                self.model._compiled_call_impl = None  # nothing is left half-applied: the model is as it was
            explained = explain(error)
            if explained is None:
                raise
            raise explained.with_traceback(None) from None


def _verify(step: Step, planned: Planned) -> None:
    """Compares a step with what plain tracing makes of the same pieces; raises `VerificationFailed`.

    Where several pieces add to one gradient, eager mode adds in another order, so that it may differ in the last bits.
    """
    traced = compiled_call(step.model, traced_backend, step.loss_fn, one_graph=False)
    difference = first_difference(run_once(step, planned.call, None), run_once(step, traced, None))
    if difference:
        raise VerificationFailed(
            f"the planned step differs from the traced one: {difference}.",
            hint="Report the model: this is a bug.",
            difference=difference,
        )
