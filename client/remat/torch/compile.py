"""`compile`, `apply`, `remove`: a plan on a model, and off again. The training loop does not change.

The model stays the same object with the same parameters and `state_dict`; only calling it goes another way,
through the slot that `nn.Module.compile` uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from remat.torch import random_state
from remat.torch.allocation import main_device, tensors_in
from remat.torch.backend import Backend
from remat.torch.breaks import explain
from remat.torch.eager.compile import EagerCall
from remat.torch.eager.plan import EagerPlan
from remat.torch.inductor.compile import InductorCall
from remat.torch.inductor.plan import InductorPlan
from remat.torch.joint_capture import MAX_SHAPES, compiled_call
from remat.torch.measure import measure
from remat.torch.pieces.compile import PiecesCall
from remat.torch.pieces.plan import PiecesPlan
from remat.torch.progress import is_watched, measure_visibly
from remat.torch.question import OnProgress
from remat.torch.record import PlannedGraph
from remat.torch.running_out import OnOom, is_out_of_memory, random_states, release_cached, shortage_of
from remat.torch.shapes import Shapes, check_shapes
from remat.torch.sharding import is_sharded
from remat_solver.budget import parse_budget, parse_bytes
from remat_solver.errors import ApplyError, InvalidRequest, VerificationFailed
from remat_solver.plan import Plan

_Model = TypeVar("_Model", bound=nn.Module)

Mode = Literal["exact", "eager", "pieces", "inductor"]

_MEASURING_FIELDS = {"engine", "gap", "time_limit_s"}
"""What the modes that plan by trial steps take of `SolveOptions`."""


class _PlannedCall:
    """Stands in for the model's call: plans at the first call with a new input shape, then runs the plan."""

    def __init__(
        self,
        model: nn.Module,
        backend: Backend,
        loss_fn: Callable[[Any], Any] | None,
        *,
        verify: bool,
        max_shapes: int,
    ) -> None:
        self.model = model
        self.backend = backend
        self.loss_fn = loss_fn
        self.is_to_be_verified = verify
        self.max_shapes = max_shapes
        self.compiled: Callable[..., Any] | None = None
        """Made at the first call: what is done to the model until then (sharding, say) counts."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_to_be_verified and torch.is_grad_enabled():
            self.is_to_be_verified = False
            self._verify(args, kwargs)
        self.backend.inputs = (args, kwargs)
        try:
            return self._run(args, kwargs)
        except Exception as error:
            explained = explain(error)
            if explained is None:
                raise
            if not self.backend.planned:
                remove(self.model)  # nothing is left half-applied: the model is as it was
            raise explained.with_traceback(None) from None
        finally:
            self.backend.inputs = None

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.backend.replans:
            return self._compiled()(*args, **kwargs)
        device = main_device([*self.model.parameters(), *tensors_in((args, kwargs))])
        states = random_states(device)
        while True:
            try:
                return self._compiled()(*args, **kwargs)
            except RuntimeError as error:
                may_repeat = self.backend.can_repeat and not is_sharded(self.model)  # whose hooks wait for other ranks
                if not is_out_of_memory(error) or not may_repeat:
                    raise
                shortage = shortage_of(error, device)
            release_cached(device)
            self.backend.lower_budget(shortage)  # outside of `except`: the traceback held what the forward had made
            for device, state in states.items():
                random_state.write(state, device)

    def _compiled(self) -> Callable[..., Any]:
        if self.backend.is_outdated:
            self.backend.forget_records()
            self.backend.is_outdated, self.compiled = False, None
        if self.compiled is None:
            self.compiled = compiled_call(self.model, self.backend, self.loss_fn, max_shapes=self.max_shapes)
        return self.compiled

    def _verify(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        from remat.torch.verify import verify  # which itself compiles

        try:
            verify(self.model, None, *args, **kwargs)
        except VerificationFailed:
            remove(self.model)
            raise


_MODES: dict[type, Mode] = {
    _PlannedCall: "exact",
    EagerCall: "eager",
    PiecesCall: "pieces",
    InductorCall: "inductor",
}
_OURS = tuple(_MODES)


def compile(  # noqa: A001 (the name that torch.compile taught everyone)
    model: _Model,
    *,
    budget: str | int | None = None,
    mode: Mode = "exact",
    max_overhead: str | float | None = None,
    plan: Plan | Sequence[Plan] | None = None,
    endpoint: str | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    loss_fn: Callable[[Any], Any] | None = None,
    reserve: str | int = 0,
    verify: bool = False,
    shapes: Shapes = "exact",
    max_shapes: int = MAX_SHAPES,
    module_budgets: Mapping[str, str | int] | None = None,
    on_oom: OnOom = "raise",
    on_progress: OnProgress | None = None,
    progress: bool | None = None,
    **solve_fields: Any,
) -> _Model:
    """Puts `model` under a memory budget and returns it; plans are made at its first call with each input shape.

    budget: the highest allowed peak of forward and backward, everything included ("8GiB", "80%" of the
        store-all peak, or bytes). Instead of it, `max_overhead` ("10%" more time than store-all) asks for the
        least memory, and `plan` brings plans made before.
    mode: "exact" captures the step as one graph and plans every op. The other modes plan by running trial steps at the
        first call, in several draws of the random numbers; they take neither `max_overhead`, `plan`, `endpoint` nor
        pins. "eager" captures nothing: some modules run under PyTorch's checkpoint, each saving what a plan chose. It
        takes any model and reaches less than exact mode. A forward that communicates (FSDP, tensor parallel) must be
        planned on every rank alike, which trial steps don't promise: plan the modules inside. "pieces" is for models
        that PyTorch captures as several graphs: it plans each op by op, all under one budget, and is equal to the bit
        to `torch.compile(backend="aot_eager")`. Graphs that first come up in later steps run with nothing saved, and a
        warning. "inductor" compiles the step to fused kernels, as `torch.compile` does by default, and plans those:
        results are equal to the plain compiled step's up to rounding, not to the bit, which the first call checks (so
        that `verify` changes nothing). It needs a C++ compiler on the CPU.
    endpoint: the URL of a solver service, where measured costs are shared too, so that the next job of the same model
        finds its plan; without it plans are made in this process.
    optimizer: whose state counts as memory; estimated before its first step.
    loss_fn: turns the model's output into the loss. The model then returns the loss, planned with the rest.
    reserve: bytes (or "1GiB") to set aside for what runs outside: a loss that is no part of the model, fragmentation.
    verify: whether to run the first step both ways and compare, bit for bit (see `remat.verify`).
    progress: whether to show on stderr what the first step is busy with; by default where that is a terminal.
    shapes: "exact" solves for each input shape; "bucket" takes the plan solved for a slightly larger one, if it fits
        the budget. No more than `max_shapes` are captured (evaluation counts as one): pad batches to a few.
    module_budgets: how much modules, or ops, may hold from the forward for the backward, by name pattern as in
        {"encoder": "2GiB"}: bytes of the values that their ops make and that are not made again. What to make again
        is chosen by time for each byte, as pins, so that the proof is about the question with those pins.
    on_oom: "replan" runs a forward or backward that runs out of memory again, by a plan with a smaller budget, and
        goes on with that. Gradients, buffers and the random state come out as if it had fitted. It keeps the batch and
        copies of changing buffers until the backward is over; a backward after a later forward can't be repeated, nor
        a graph with effects (collectives), nor the forward of a sharded model. Memory that runs out elsewhere (in the
        optimizer) raises as before.
    solve_fields: further fields of `SolveOptions`, such as `time_limit_s`, or the pins `keep` and `recompute`: modules
        or ops, by name pattern ("blocks.0", "*.attention"), that are never run twice, or never kept for the backward.

    Raises `InvalidRequest` at once; the first call may raise `GraphBreak`, `InfeasibleBudget`, `NoPlanInTime`,
    `PlanMismatch` or `VerificationFailed`, and then leaves the model as it was.
    """
    check_shapes(shapes, max_shapes)
    if mode in ("eager", "pieces", "inductor"):
        given: dict[str, Any] = {
            "max_overhead": max_overhead,
            "plan": plan,
            "endpoint": endpoint,
            "on_progress": on_progress,
        }
        given = {name: value for name, value in given.items() if value is not None}
        given |= {"on_oom": on_oom} if on_oom != "raise" else {}
        given |= {"module_budgets": module_budgets} if module_budgets else {}
        given |= {"shapes": shapes} if shapes != "exact" else {}
        _refuse_for_trials(mode, {**given, **solve_fields})
        shows = is_watched() if progress is None else progress
        settings = {
            "optimizer": optimizer,
            "loss_fn": loss_fn,
            "reserve_bytes": parse_bytes(reserve, field="reserve"),
            **({"measure": measure_visibly(measure)} if shows else {}),
            **solve_fields,
        }
        if mode == "eager":
            _attach_trials(EagerCall, model, budget, mode, verify=verify, max_shapes=max_shapes, **settings)
        elif mode == "pieces":
            _attach_trials(PiecesCall, model, budget, mode, verify=verify, max_shapes=max_shapes, **settings)
        else:
            _attach_trials(InductorCall, model, budget, mode, max_shapes=max_shapes, **settings)
        return model
    if mode != "exact":
        raise InvalidRequest(
            f"mode {mode!r} is unknown.", hint="Choose one of exact, eager, pieces, inductor.", field="mode"
        )
    backend = Backend(
        budget,
        max_overhead=max_overhead,
        plan=plan,
        endpoint=endpoint,
        model=model,
        optimizer=optimizer,
        reserve=reserve,
        shapes=shapes,
        module_budgets=module_budgets,
        on_oom=on_oom,
        on_progress=on_progress,
        progress=progress,
        **solve_fields,
    )
    attach(model, backend, loss_fn, verify=verify, max_shapes=max_shapes)
    return model


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
    return compile(model, plan=plan, optimizer=optimizer, loss_fn=loss_fn)


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
    return call.backend.planned if isinstance(call, _PlannedCall) else ()


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
    return call.loss_fn if isinstance(call, _PlannedCall) else None


def attach(
    model: nn.Module,
    backend: Backend,
    loss_fn: Callable[[Any], Any] | None = None,
    *,
    verify: bool = False,
    max_shapes: int = MAX_SHAPES,
) -> None:
    """Makes calls of `model` go through `backend`. Raises `ApplyError` if something stands in the way."""
    _check_attachable(model)
    remove(model)
    model._compiled_call_impl = _PlannedCall(model, backend, loss_fn, verify=verify, max_shapes=max_shapes)


def _attach_trials(
    kind: type[EagerCall | PiecesCall | InductorCall],
    model: nn.Module,
    budget: str | int | None,
    mode: Mode,
    **settings: Any,
) -> None:
    if budget is None:
        raise InvalidRequest(f"{mode} mode needs a budget.", hint='For example budget="8GiB".', field="budget")
    _check_attachable(model)
    remove(model)
    model._compiled_call_impl = kind(model, parse_budget(budget), **settings)


def _refuse_for_trials(mode: Mode, given: dict[str, Any]) -> None:
    unknown = sorted(set(given) - _MEASURING_FIELDS)
    if unknown:
        raise InvalidRequest(
            f"{mode} mode takes no {unknown[0]}.", hint='Leave it out, or use mode="exact".', field=unknown[0]
        )


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
