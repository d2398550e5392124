"""Running one step several ways from the same state, and comparing what comes of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from remat.torch.allocation import main_device, tensors_in
from remat.torch.autocast import forget_casts, outside_autocast
from remat.torch.peak import measure_peak
from remat.torch.step import Step


@dataclass(kw_only=True)
class Outcome:
    """What one forward and backward left behind, by name, on the CPU; and its peak."""

    outputs: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    peak_bytes_above_start: int = 0


@contextmanager
def restored(step: Step) -> Iterator[None]:
    """Puts buffers, gradients, the random state and the model's plan back when the block ends."""
    model = step.model
    slot = model._compiled_call_impl
    leaves = _leaves(step)
    gradients = [leaf.grad for leaf in leaves.values()]
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with forked_randomness():
        try:
            yield
        finally:
            model._compiled_call_impl = slot
            _write_buffers(model, buffers)
            for leaf, gradient in zip(leaves.values(), gradients, strict=True):
                leaf.grad = gradient


@contextmanager
def forked_randomness(seed: int | None = None) -> Iterator[None]:
    """Every generator that a model may draw from is where it was when the block ends: PyTorch's, Python's, NumPy's.

    With `seed` they begin there.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with forked_generators():
        if seed is not None:
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


@contextmanager
def forked_generators() -> Iterator[None]:
    """PyTorch's generators alone are where they were when the block ends."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    with torch.random.fork_rng(devices=devices):
        yield


def run_unmeasured(step: Step, call: Callable[..., Any], loss_fn: Callable[[Any], Any] | None) -> None:
    """Forward and backward through `call` for its side effects on `call` alone: it plans, compiles or warms up."""
    with _clean_slate(step):
        _forward_and_backward(step, call, loss_fn)


def run_once(step: Step, call: Callable[..., Any], loss_fn: Callable[[Any], Any] | None) -> Outcome:
    """Forward and backward through `call`, from no gradients; buffers and random state are put back afterwards."""
    outcome = Outcome()
    with _clean_slate(step) as leaves:
        results: list[Any] = []
        measurement = measure_peak(
            lambda: results.append(_forward_and_backward(step, call, loss_fn)), main_device(leaves.values())
        )
        outcome.peak_bytes_above_start = measurement.peak_bytes_above_start
        outcome.outputs = {f"output {i}": t.detach().cpu() for i, t in enumerate(tensors_in(results.pop()))}
        outcome.gradients = {name: leaf.grad.cpu() for name, leaf in leaves.items() if leaf.grad is not None}
        outcome.buffers = {name: buffer.detach().clone().cpu() for name, buffer in step.model.named_buffers()}
    return outcome


@contextmanager
def _clean_slate(step: Step) -> Iterator[dict[str, Tensor]]:
    """No gradients inside the block nor after it; buffers and the random state are put back. Yields the leaves."""
    leaves = _leaves(step)
    buffers = {name: buffer.clone() for name, buffer in step.model.named_buffers()}
    with forked_randomness(), torch.enable_grad():
        for leaf in leaves.values():
            leaf.grad = None
        yield leaves
    for leaf in leaves.values():
        leaf.grad = None
    _write_buffers(step.model, buffers)


def _forward_and_backward(step: Step, call: Callable[..., Any], loss_fn: Callable[[Any], Any] | None) -> Any:
    forget_casts()
    output = call(*step.args, **dict(step.kwargs or {}))
    output = output if loss_fn is None else loss_fn(output)
    objective = _objective(output)
    with outside_autocast():
        objective.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return output


def first_difference(one: Outcome, other: Outcome) -> str:
    """Where two outcomes first differ, in words; empty if they are equal to the bit (NaN equals NaN)."""
    for kind in ("outputs", "gradients", "buffers"):
        left, right = getattr(one, kind), getattr(other, kind)
        lone = sorted(left.keys() ^ right.keys())
        if lone:
            return f"only one of them has {_label(kind, lone[0])}"
        for name in left:
            difference = _difference(left[name], right[name])
            if difference:
                return f"{_label(kind, name)}: {difference}"
    return ""


def _difference(left: Tensor, right: Tensor) -> str:
    if left.dtype != right.dtype or left.shape != right.shape:
        return f"{left.dtype} {list(left.shape)} against {right.dtype} {list(right.shape)}"
    if torch.equal(left, right):
        return ""
    if not (left.is_floating_point() or left.is_complex()):
        return f"{int((left != right).sum())} of {left.numel()} elements differ"
    unequal = (left != right) & ~(left.isnan() & right.isnan())
    if not unequal.any():
        return ""
    apart = (left[unequal] - right[unequal]).abs().max().item()
    return f"{int(unequal.sum())} of {left.numel()} elements differ, by up to {apart:.3g}"


def _label(kind: str, name: str) -> str:
    return name if kind == "outputs" else f"the {kind[:-1]} of {name}" if kind == "gradients" else f"buffer {name}"


def _leaves(step: Step) -> dict[str, Tensor]:
    """Everything that collects a gradient: parameters, and inputs that ask for one."""
    leaves: dict[str, Tensor] = dict(step.model.named_parameters())
    inputs = tensors_in((step.args, dict(step.kwargs or {})))
    leaves |= {f"input {i}": t for i, t in enumerate(inputs) if t.requires_grad and t.is_leaf}
    return leaves


def _write_buffers(model: torch.nn.Module, buffers: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])


def _objective(output: Any) -> Tensor:
    """The scalar to differentiate: the output's own loss, or the sum of all that carries a gradient.

    A loss is the only output, or what an output object calls so: nobody differentiates by the logits beside it.
    """
    loss = getattr(output, "loss", None)
    if isinstance(loss, Tensor) and loss.requires_grad and loss.numel() == 1:
        return loss
    tensors = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
    if len(tensors) == 1 and tensors[0].numel() == 1:
        return tensors[0]
    return torch.stack([tensor.sum() for tensor in tensors]).sum()
