"""Which plan a model runs: put on it, taken off again, and asked for.

The model stays the same object with the same parameters and `state_dict`; only calling it goes another way,
through the slot that `nn.Module.compile` uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from remat.torch.backend import Backend
from remat.torch.eager.compile import EagerCall
from remat.torch.eager.plan import EagerPlan
from remat.torch.exact_call import ExactCall
from remat.torch.inductor.compile import InductorCall
from remat.torch.inductor.plan import InductorPlan
from remat.torch.joint_capture import MAX_SHAPES
from remat.torch.pieces.compile import PiecesCall
from remat.torch.pieces.plan import PiecesPlan
from remat.torch.record import PlannedGraph
from remat_solver.errors import ApplyError
from remat_solver.plan import Plan

_Model = TypeVar("_Model", bound=nn.Module)

Mode = Literal["exact", "eager", "pieces", "inductor"]
Call = ExactCall | EagerCall | PiecesCall | InductorCall

_MODES: dict[type, Mode] = {
    ExactCall: "exact",
    EagerCall: "eager",
    PiecesCall: "pieces",
    InductorCall: "inductor",
}
_OURS = tuple(_MODES)


def put_on(model: nn.Module, call: Call) -> None:
    """Makes calls of `model` go through `call`. Raises `ApplyError` if something stands in the way."""
    _check_attachable(model)
    remove(model)
    model._compiled_call_impl = call


def attach(
    model: nn.Module,
    backend: Backend,
    loss_fn: Callable[[Any], Any] | None = None,
    *,
    check: Callable[..., object] | None = None,
    max_shapes: int = MAX_SHAPES,
) -> None:
    """Makes calls of `model` go through `backend`; `check` (`verify`, say) is asked once, at the first call."""
    put_on(model, ExactCall(model, backend, loss_fn, check=check, max_shapes=max_shapes))


def apply(
    model: _Model,
    plan: Plan | Sequence[Plan],
    *,
    optimizer: torch.optim.Optimizer | None = None,
    loss_fn: Callable[[Any], Any] | None = None,
) -> _Model:
    """Runs `plan` (one, or one per input shape) on `model` and returns the model.

    A plan fits every graph with the structure it was made for, whatever was measured; another graph raises
    `PlanMismatch` at the first call, and the model is as it was.
    """
    attach(model, Backend(plan=plan, model=model, optimizer=optimizer), loss_fn)
    return model


def remove(model: _Model) -> _Model:
    """Takes the plan off: the model runs as it did before `compile` or `apply`. Without one, nothing happens."""
    call = model._compiled_call_impl
    if isinstance(call, EagerCall):
        call.remove()
    if isinstance(call, _OURS):
        model._compiled_call_impl = None
    return model


def planned_mode(model: nn.Module) -> Mode | None:
    """The mode in which `model` is planned; None without a plan of ours."""
    return _MODES.get(type(model._compiled_call_impl))


def planned_graphs(model: nn.Module) -> tuple[PlannedGraph, ...]:
    """What was planned for `model` so far, one record per input shape; empty before its first call."""
    call = model._compiled_call_impl
    return call.backend.planned if isinstance(call, ExactCall) else ()


def eager_plans(model: nn.Module) -> tuple[EagerPlan, ...]:
    """The plans of eager mode that were made for `model` so far, one per input shape; empty in exact mode."""
    call = model._compiled_call_impl
    return call.plans if isinstance(call, EagerCall) else ()


def pieces_plans(model: nn.Module) -> tuple[PiecesPlan, ...]:
    """The plans of pieces mode that were made for `model` so far, one per input shape; empty in other modes."""
    call = model._compiled_call_impl
    return call.plans if isinstance(call, PiecesCall) else ()


def inductor_plans(model: nn.Module) -> tuple[InductorPlan, ...]:
    """The plans of inductor mode that were made for `model` so far, one per input shape; empty in other modes."""
    call = model._compiled_call_impl
    return call.plans if isinstance(call, InductorCall) else ()


def planned_loss_fn(model: nn.Module) -> Callable[[Any], Any] | None:
    """The loss function that was planned with `model`, which then returns the loss; None without one."""
    call = model._compiled_call_impl
    return call.loss_fn if isinstance(call, ExactCall) else None


def _check_attachable(model: nn.Module) -> None:
    if model._compiled_call_impl is not None and not isinstance(model._compiled_call_impl, _OURS):
        raise ApplyError("the model is compiled already.", hint="Give remat the model as it was before torch.compile.")
    if isinstance(model, torch._dynamo.eval_frame.OptimizedModule):
        raise ApplyError("this is torch.compile's wrapper, not the model.", hint="Give remat the model itself.")
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        name = type(model).__name__
        raise ApplyError(
            f"PyTorch can't trace through {name} as one graph.",
            hint=f"Plan the model inside and wrap the planned model: {name}(remat.compile(model, ...)).",
        )
