"""Pieces mode on a model: compiled and planned at its first call with each input shape, and off again."""

from __future__ import annotations

from typing import Any

from torch import nn

from remat.torch.both_ways import first_difference, run_once
from remat.torch.eager.regions import own_call
from remat.torch.joint_capture import compiled_call, traced_backend
from remat.torch.pieces.plan import PiecesPlan
from remat.torch.pieces.planning import Planned, make_plan
from remat.torch.shaped_call import ShapedCall
from remat.torch.step import Step
from remat_solver.budget import Budget
from remat_solver.errors import VerificationFailed


class PiecesCall(ShapedCall[Planned]):
    """Stands in for the model's call. Without gradients the model runs as is."""

    def __init__(self, model: nn.Module, budget: Budget, *, verify: bool = False, **settings: Any) -> None:
        super().__init__(model, budget, **settings)
        self.is_to_be_verified = verify

    @property
    def plans(self) -> tuple[PiecesPlan, ...]:
        """The plans made so far, in order."""
        return tuple(planned.plan for planned in self.planned.values())

    def plan(self, step: Step) -> Planned:
        planned = make_plan(
            step, self.budget, reserve_bytes=self.reserve_bytes, measure=self.measure, **self.solve_fields
        )
        if self.is_to_be_verified:
            self.is_to_be_verified = False
            _verify(step, planned)
        return planned

    def evaluate(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = own_call(self.model)(*args, **kwargs)
        return output if self.loss_fn is None else self.loss_fn(output)


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
