"""`verify`: one training step with and without the plan, compared bit for bit.

The reference is the model as its author wrote it, run eagerly. Where PyTorch's own tracing already changes
a model's arithmetic (a decomposition that eager does not use, say), no plan can equal eager; then the
reference is `torch.compile(backend="aot_eager")`, PyTorch's trace without any plan, and the result says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from rich.console import Console, ConsoleOptions, RenderResult
from torch import nn

from remat.torch import random_state
from remat.torch.attachment import Mode, apply, planned_graphs, planned_loss_fn, planned_mode
from remat.torch.autocast import backward_traced_outside
from remat.torch.both_ways import Outcome, first_difference, restored, run_once, run_unmeasured
from remat.torch.joint_capture import compiled_call
from remat.torch.record import PlannedGraph
from remat.torch.step import Step
from remat_solver.budget import format_bytes
from remat_solver.errors import ApplyError, InvalidRequest, VerificationFailed
from remat_solver.plan import Plan

PEAK_TOLERANCE = 0.005
"""Largest accepted |predicted - measured| peak, as a share of the measured one; for tiny models, one random
generator's state, for which room is kept at every random op though only replays need it."""

_COMPARED_AT_FIRST_CALL: dict[Mode | None, str] = {
    "eager": "Give verify=True to remat.compile: the first call is then compared with the unmodified model.",
    "pieces": "Give verify=True to remat.compile: the first call is then compared with the model under aot_eager.",
    "inductor": "The first call was compared with the plain compiled step: remat.report(model) has the difference.",
}
"""What stands for `verify` in modes whose plans are made and compared at the first call."""


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was equal, to the bit. Peaks are bytes with everything included.

    `identical_to` names the reference. If it is not "eager", `eager_difference` says where the first
    difference to eager lies, which PyTorch's tracing makes and not the plan.
    """

    identical_to: Literal["eager", "aot_eager"]
    outputs: int
    gradients: int
    buffers: int
    predicted_peak_bytes: int
    measured_peak_bytes: int
    unmodified_peak_bytes: int
    budget_bytes: int
    eager_difference: str = ""

    @property
    def peak_error(self) -> float:
        """(predicted - measured) / measured peak."""
        return (self.predicted_peak_bytes - self.measured_peak_bytes) / self.measured_peak_bytes

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The verification in a few lines."""
        yield (
            f"identical to {self.identical_to}: {self.outputs} outputs, {self.gradients} gradients and "
            f"{self.buffers} buffers, bit for bit"
        )
        if self.eager_difference:
            yield f"PyTorch's tracing itself differs from eager: {self.eager_difference}"
        yield (
            f"peak: predicted {format_bytes(self.predicted_peak_bytes)}, measured "
            f"{format_bytes(self.measured_peak_bytes)} ({self.peak_error:+.3%}), budget "
            f"{format_bytes(self.budget_bytes)}, unmodified {format_bytes(self.unmodified_peak_bytes)}"
        )


def verify(
    model: nn.Module | Step,
    plan: Plan | Sequence[Plan] | None = None,
    *args: Any,
    loss_fn: Callable[[Any], Any] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    **kwargs: Any,
) -> Verification:
    """Runs forward and backward of `model(*args, **kwargs)` with `plan` and without, and compares.

    plan: what to run; None verifies the plan that `model` runs already. A `Step` may stand for the model,
        its arguments, loss and optimizer. Where there is no `loss_fn`, the sum of the outputs is differentiated.

    Weights, buffers, gradients, the random state and whatever plan the model ran are afterwards as they were.
    Raises `VerificationFailed` naming the first difference in outputs, gradients or buffers, or a peak that
    exceeds the budget or misses its prediction by more than 0.5%; `ApplyError` if there is no plan, or one of another
    mode than exact.
    """
    if isinstance(model, Step) and (args or kwargs or loss_fn or optimizer):
        raise InvalidRequest("a Step brings its own arguments.", hint="Give either a Step or a model.", field="model")
    step = model if isinstance(model, Step) else Step(model, args, kwargs, loss_fn, optimizer)
    mode = planned_mode(step.model)
    if mode in _COMPARED_AT_FIRST_CALL:
        raise ApplyError(
            f"verify compares plans of exact mode, and the model is planned in {mode} mode.",
            hint=_COMPARED_AT_FIRST_CALL[mode],
        )
    with restored(step):
        record, planned, loss_fn = _run_planned(step, plan)
        eager = run_once(step, step.model._call_impl, loss_fn)
        eager_difference = first_difference(planned, eager)
        if eager_difference:
            _compare_with_trace(step, planned, loss_fn)
    fixed_bytes = record.graph.fixed_bytes
    verification = Verification(
        identical_to="aot_eager" if eager_difference else "eager",
        eager_difference=eager_difference,
        outputs=len(planned.outputs),
        gradients=len(planned.gradients),
        buffers=len(planned.buffers),
        predicted_peak_bytes=record.predicted_peak_bytes,
        measured_peak_bytes=fixed_bytes + planned.peak_bytes_above_start,
        unmodified_peak_bytes=fixed_bytes + eager.peak_bytes_above_start,
        budget_bytes=record.plan.budget_bytes,
    )
    _check_peak(verification, loss_is_outside=record.loss_is_outside)
    return verification


def _run_planned(
    step: Step, plan: Plan | Sequence[Plan] | None
) -> tuple[PlannedGraph, Outcome, Callable[[Any], Any] | None]:
    """The record of the plan that ran, what came of it, and the loss function that belongs to the step."""
    model = step.model
    loss_fn = step.loss_fn
    if plan is None:
        known = planned_graphs(model)
        loss_fn = planned_loss_fn(model) or loss_fn
        if len(known) > 1:  # which of them this batch runs is seen only by applying them afresh
            plan = [record.plan for record in known]
    planned_loss = None if plan is not None or planned_loss_fn(model) else loss_fn
    if plan is not None:
        apply(model, plan, optimizer=step.optimizer, loss_fn=loss_fn)
    run_unmeasured(step, model, planned_loss)  # plans and builds
    records = planned_graphs(model)
    if not records:
        raise ApplyError(
            "the model runs no plan.",
            hint="Give verify a plan, or call remat.compile(model, ...) first and verify in training mode.",
        )
    return records[-1], run_once(step, model, planned_loss), loss_fn


def _compare_with_trace(step: Step, planned: Outcome, loss_fn: Callable[[Any], Any] | None) -> None:
    traced_call = compiled_call(step.model, torch._dynamo.lookup_backend("aot_eager"), loss_fn)
    with backward_traced_outside():  # as all trial steps call it
        difference = first_difference(planned, run_once(step, traced_call, None))
    if difference:
        raise VerificationFailed(
            f"the planned step differs from the unmodified one: {difference}.",
            hint="Take the plan off with remat.remove(model), and report the model: this is a bug.",
            difference=difference,
        )


def _check_peak(verification: Verification, *, loss_is_outside: bool) -> None:
    measured = verification.measured_peak_bytes
    tolerance = max(PEAK_TOLERANCE * measured, random_state.state_bytes(torch.device("cpu")))
    difference = ""
    if measured > verification.budget_bytes:
        difference = f"the measured peak, {measured} bytes, exceeds the budget, {verification.budget_bytes}"
    elif abs(verification.predicted_peak_bytes - measured) > tolerance and not loss_is_outside:
        difference = f"the peak was predicted as {verification.predicted_peak_bytes} bytes and measured as {measured}"
    if difference:
        hint = "A loss outside the model is not in the plan: give loss_fn=." if loss_is_outside else ""
        raise VerificationFailed(
            f"{difference}.",
            hint=hint or "Measure the graph again on this machine (the cost cache may be of another), or set reserve=.",
            difference=difference,
        )
