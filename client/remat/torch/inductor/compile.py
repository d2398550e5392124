"""Inductor mode on a model: compiled and planned at its first call with each input shape, and off again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from torch import nn

from remat.torch.inductor.partitioners import plain_backend
from remat.torch.inductor.plan import InductorPlan
from remat.torch.inductor.planning import Planned, plan_within
from remat.torch.inductor.survey import survey
from remat.torch.joint_capture import compiled_call
from remat.torch.progress import Show
from remat.torch.shaped_call import ShapedCall
from remat.torch.step import Step
from remat_solver.budget import Budget


class InductorCall(ShapedCall[Planned]):
    """Stands in for the model's call. Without gradients the model runs compiled, with nothing to plan."""

    evaluation: Callable[..., Any] | None = None

    def __init__(self, model: nn.Module, budget: Budget, *, show: Show = nullcontext, **settings: Any) -> None:
        super().__init__(model, budget, **settings)
        self.show = show

    @property
    def plans(self) -> tuple[InductorPlan, ...]:
        """The plans made so far, in order."""
        return tuple(planned.plan for planned in self.planned.values())

    def plan(self, step: Step) -> Planned:
        surveyed = survey(step, reserve_bytes=self.reserve_bytes, measure=self.measure, show=self.show)
        return plan_within(surveyed, self.budget, **self.solve_fields)

    def evaluate(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.evaluation is None:
            self.evaluation = compiled_call(self.model, plain_backend(), self.loss_fn, max_shapes=self.max_shapes)
        return self.evaluation(*args, **kwargs)
