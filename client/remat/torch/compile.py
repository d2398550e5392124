"""`compile`: a model under a memory budget. The training loop does not change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from remat.torch.attachment import Mode, attach, put_on
from remat.torch.backend import Backend
from remat.torch.eager.compile import EagerCall
from remat.torch.inductor.compile import InductorCall
from remat.torch.joint_capture import MAX_SHAPES
from remat.torch.measure import measure
from remat.torch.pieces.compile import PiecesCall
from remat.torch.progress import is_watched, measure_visibly, show_phase
from remat.torch.question import OnProgress
from remat.torch.running_out import OnOom
from remat.torch.shapes import Shapes, check_shapes
from remat.torch.verify import verify as verify_step
from remat_solver.budget import parse_budget, parse_bytes
from remat_solver.errors import InvalidRequest
from remat_solver.plan import Plan

_Model = TypeVar("_Model", bound=nn.Module)

_TRIALS: dict[str, type[EagerCall | PiecesCall | InductorCall]] = {
    "eager": EagerCall,
    "pieces": PiecesCall,
    "inductor": InductorCall,
}
"""The modes that plan by trial steps."""
_TRIAL_FIELDS = {"engine", "gap", "time_limit_s"}
"""What they take of `SolveOptions`."""


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
    if mode == "exact":
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
        attach(model, backend, loss_fn, check=verify_step if verify else None, max_shapes=max_shapes)
        return model
    only_exact = {
        "max_overhead": max_overhead,
        "plan": plan,
        "endpoint": endpoint,
        "on_progress": on_progress,
        "module_budgets": module_budgets or None,
        "on_oom": on_oom if on_oom != "raise" else None,
        "shapes": shapes if shapes != "exact" else None,
    }
    given = {name for name, value in only_exact.items() if value is not None}
    _refuse_for_trials(mode, given.union(solve_fields))
    if budget is None:
        raise InvalidRequest(f"{mode} mode needs a budget.", hint='For example budget="8GiB".', field="budget")
    settings: dict[str, Any] = {
        "optimizer": optimizer,
        "loss_fn": loss_fn,
        "reserve_bytes": parse_bytes(reserve, field="reserve"),
        "max_shapes": max_shapes,
        **solve_fields,
    }
    if is_watched() if progress is None else progress:
        settings["measure"] = measure_visibly(measure)
        if mode == "inductor":
            settings["show"] = show_phase
    if mode != "inductor":  # which compares its first call anyway
        settings["verify"] = verify
    put_on(model, _TRIALS[mode](model, parse_budget(budget), **settings))
    return model


def _refuse_for_trials(mode: str, given: set[str]) -> None:
    """Raises `InvalidRequest` if `mode` does not plan by trial steps, or takes no field that was given."""
    if mode not in _TRIALS:
        raise InvalidRequest(
            f"mode {mode!r} is unknown.", hint=f"Choose one of {', '.join(('exact', *_TRIALS))}.", field="mode"
        )
    unknown = sorted(given - _TRIAL_FIELDS)
    if unknown:
        raise InvalidRequest(
            f"{mode} mode takes no {unknown[0]}.", hint='Leave it out, or use mode="exact".', field=unknown[0]
        )
