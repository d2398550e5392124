"""Under autocast the forward runs as it is called, and the backward as PyTorch asks for it: called outside.

A compiler must decide when it traces. `torch.compile` by default takes a backward to be called where its forward was,
and then casts also what a model computes in full precision (`autocast(enabled=False)` around a loss, say).

Steps on trial run in the midst of a call, maybe under the caller's autocast, which keeps each weight that it has cast
until its block ends. In a trial such blocks end where they would in a training loop.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

_log = logging.getLogger("remat")


@contextmanager
def backward_traced_outside() -> Iterator[None]:
    """Inside the block, backwards are traced without the autocast that surrounds the forward."""
    with torch._functorch.config.patch(backward_pass_autocast="off"):
        yield


@contextmanager
def outside_autocast() -> Iterator[None]:
    """Runs the block as if no autocast surrounded it, and what comes after it as if one began there."""
    forget_casts()
    with ExitStack() as stack:
        for device_type, _ in present_autocast():
            stack.enter_context(torch.autocast(device_type, enabled=False))
        yield
    forget_casts()


def forget_casts() -> None:
    """Weights are cast anew, as after the end of an autocast block."""
    torch.clear_autocast_cache()


def present_autocast() -> tuple[tuple[str, torch.dtype], ...]:
    """The kinds of devices for which autocast is on, each with what it casts to."""
    kinds = [kind for kind in torch._C._autocast_supported_devices() if torch.is_autocast_enabled(kind)]
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in kinds)


def watch_backward(output: Any) -> None:
    """Has a backward from `output` warn where it is called under autocast, if the forward was."""
    kinds = {kind for kind, _ in present_autocast()}
    for tensor in tree_leaves(output) if kinds else ():
        if isinstance(tensor, Tensor) and tensor.requires_grad and tensor.device.type in kinds:
            tensor.register_hook(  # type: ignore[no-untyped-call]
                partial(_warn_under_autocast, tensor.device.type)
            )


def _warn_under_autocast(device_type: str, _gradient: Tensor | None) -> None:
    if torch.is_autocast_enabled(device_type):
        _warn()


@cache
def _warn() -> None:
    """Says it once, not at each step."""
    _log.warning(
        "backward() was called under autocast. The plan runs it as if it were called outside, as PyTorch recommends; "
        "eager mode would cast some of its ops, so that gradients may differ from its by rounding. Call backward() "
        "after the autocast block."
    )
