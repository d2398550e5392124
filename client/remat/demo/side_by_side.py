"""The planned model beside the unmodified one: trained, compared bit for bit, and timed."""

from __future__ import annotations

import copy
import statistics
import time

import torch
from torch import Tensor

from remat.torch import Step, apply
from remat_solver.plan import Plan

TRAINING_STEPS = 3
TIMING_ROUNDS = 4


def planned_copy(step: Step, plan: Plan) -> Step:
    """The step on a copy of its model that will run `plan`."""
    planned = copy.deepcopy(step)
    apply(planned.model, plan, optimizer=planned.optimizer, loss_fn=planned.loss_fn)
    return planned


def run_planned(step: Step) -> Tensor:
    """Forward and backward of a step whose model runs a plan. Its output is the loss."""
    loss: Tensor = step.model(*step.args, **dict(step.kwargs or {}))
    loss.backward()  # type: ignore[no-untyped-call]
    return loss


def run_unmodified(step: Step) -> Tensor:
    """Forward and backward of a step as its author wrote it."""
    output = step.model(*step.args, **dict(step.kwargs or {}))
    loss: Tensor = step.loss_fn(output) if step.loss_fn else output
    loss.backward()  # type: ignore[no-untyped-call]
    return loss


def trains_identically(step: Step, planned: Step) -> bool:
    """Whether some optimizer steps of `planned` equal the unmodified ones: loss, gradients, buffers, parameters.

    `step` itself stays as it is; `planned`, a fresh `planned_copy` of it, is trained.
    """
    unmodified = copy.deepcopy(step)
    for seed in range(TRAINING_STEPS):
        losses = []
        for run, side in ((run_unmodified, unmodified), (run_planned, planned)):
            torch.manual_seed(seed)
            side.model.zero_grad(set_to_none=True)
            losses.append(run(side))
        if not torch.equal(losses[0], losses[1]) or not _gradients_equal(unmodified, planned):
            return False
        for side in (unmodified, planned):
            if side.optimizer is not None:
                side.optimizer.step()
        if not _states_equal(unmodified, planned):
            return False
    return True


def measured_overhead(base: Step, planned: Step) -> float:
    """How much longer forward and backward of `planned` take than those of `base`: median over interleaved rounds."""
    ratios = []
    for _ in range(TIMING_ROUNDS):
        base_s, planned_s = _time_step(base), _time_step(planned)
        ratios.append(planned_s / base_s - 1)
    return statistics.median(ratios)


def _time_step(step: Step) -> float:
    """Wall seconds of forward and backward, from no gradients."""
    step.model.zero_grad(set_to_none=True)
    _wait_for_device()
    start = time.perf_counter()
    run_planned(step)
    _wait_for_device()
    return time.perf_counter() - start


def _wait_for_device() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _gradients_equal(one: Step, other: Step) -> bool:
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    return all(_equal(left.grad, right.grad) for left, right in pairs)


def _states_equal(one: Step, other: Step) -> bool:
    left, right = one.model.state_dict(), other.model.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def _equal(left: Tensor | None, right: Tensor | None) -> bool:
    if left is None or right is None:
        return left is right
    return torch.equal(left, right)
