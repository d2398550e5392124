"""What stands in for a model's call where each input shape has a plan of its own, made by trial steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import nn

from remat.torch.allocation import tensors_in
from remat.torch.autocast import present_autocast
from remat.torch.both_ways import restored
from remat.torch.breaks import explain
from remat.torch.joint_capture import MAX_SHAPES
from remat.torch.measure import measure
from remat.torch.step import Step
from remat_solver.budget import Budget
from remat_solver.errors import ApplyError
from remat_solver.graph import Graph

ShapeKey = tuple[tuple[tuple[int, ...] | str, torch.dtype] | bool, ...]


class _HasCall(Protocol):
    """A planned step."""

    @property
    def call(self) -> Callable[..., Any]:
        """Runs it."""
        ...


_Planned = TypeVar("_Planned", bound=_HasCall)


def shape_key(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ShapeKey:
    """What calls that share a plan have in common.

    That is the shapes and types of their inputs, which modules are training, and the autocast around them.
    """
    shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors_in((args, kwargs)))
    return (*shapes, *present_autocast(), *(module.training for module in model.modules()))


def refuse_more_shapes(known: int, most: int) -> None:
    """Raises `ApplyError` if there are as many plans as there may be."""
    if known >= most:
        raise ApplyError(
            f"the model was called with more than {most} input shapes.",
            hint="Pad batches to a few shapes, each of which has its own plan, or raise max_shapes.",
        )


class ShapedCall(ABC, Generic[_Planned]):
    """Plans at the first call with each input shape; `planned` has what was planned, by shape."""

    def __init__(
        self,
        model: nn.Module,
        budget: Budget,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        loss_fn: Callable[[Any], Any] | None = None,
        reserve_bytes: int = 0,
        max_shapes: int = MAX_SHAPES,
        measure: Callable[[Graph], Graph] = measure,
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
        self.planned: dict[ShapeKey, _Planned] = {}

    @abstractmethod
    def plan(self, step: Step) -> _Planned:
        """Plans a step; what it changes is restored by the caller."""

    @abstractmethod
    def evaluate(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The model's call where no gradients are asked for."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.evaluate(args, kwargs)
        key = shape_key(self.model, args, kwargs)
        if key not in self.planned:
            self._add(key, args, kwargs)
        return self.planned[key].call(*args, **kwargs)

    def _add(self, key: ShapeKey, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        refuse_more_shapes(len(self.planned), self.max_shapes)
        step = Step(self.model, args, kwargs, self.loss_fn, self.optimizer)
        try:
            with restored(step):
                planned = self.plan(step)
            self.planned[key] = planned
        except Exception as error:
            if not self.planned:
                self.model._compiled_call_impl = None  # nothing is left half-applied: the model is as it was
            explained = explain(error)
            if explained is None:
                raise
            raise explained.with_traceback(None) from None
