"""Tracing what eager mode computes, where PyTorch's tracer would write an op in other words.

For some ops PyTorch registers a Python decomposition that takes the place of the kernel, and of its gradient, whenever
a graph is traced: bilinear upsampling becomes a dozen pointwise ops, say. Results differ from eager's in the last
bits. While our graphs are traced, those registrations are set aside, so that the tracer meets the very kernels that
eager mode runs. Dropout on the CPU is written as the same numbers in three steps: a mask of bytes, which are drawn, the
noise that it is scaled to, and the product. The noise is what eager mode saves; the mask is a quarter as large, and
makes it again in no time. PyTorch's decomposition gives other numbers for most probabilities, and is slower:
its mask is of bools, which are turned into floats one by one.

The registry is private to PyTorch and belongs to the process, so it is touched only while AOTAutograd traces one of our
graphs, and put back however that ends.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey

_SET_ASIDE = (
    "hardshrink",
    "multi_margin_loss",
    "multilabel_margin_loss_forward",
    "softshrink",
    "upsample_bicubic2d",
    "upsample_bilinear2d",
    "upsample_linear1d",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "upsample_trilinear3d",
    "_upsample_bicubic2d_aa",
    "_upsample_bilinear2d_aa",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
)
"""Ops of which every overload is traced as its kernel. Batch normalisation and recurrent nets stay as they are."""

_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
_DROPOUT = torch.ops.aten.dropout.default
_tracing = threading.RLock()


@contextmanager
def eager_kernels() -> Iterator[None]:
    """Inside the block, tracing meets kernels instead of decompositions. One thread at a time."""
    with _tracing:
        aside = [(op, key, op.py_kernels.pop(key)) for op in _ops() for key in _KEYS if key in op.py_kernels]
        dropouts = {key: _DROPOUT.py_kernels[key] for key in _KEYS if key in _DROPOUT.py_kernels}
        _DROPOUT.py_kernels.update(dict.fromkeys(dropouts, dropout_in_steps))
        _forget_dispatch()
        try:
            yield
        finally:
            for op, key, kernel in aside:
                op.py_kernels[key] = kernel
            _DROPOUT.py_kernels.update(dropouts)
            _forget_dispatch()


def dropout_in_steps(x: Tensor, p: float, train: bool) -> Any:
    """Dropout; on the CPU in steps between which a plan can choose what to keep."""
    if x.device.type == "cpu" and x.is_floating_point() and train and 0 < p < 1:
        mask = torch.empty_like(x, dtype=torch.uint8).bernoulli_(1 - p)
        return x * mask.to(x.dtype).div(1 - p)
    return _DROPOUT._op_dk(DispatchKey.CompositeImplicitAutograd, x, p, train)


def _forget_dispatch() -> None:
    """An op remembers which kernel it dispatched to."""
    for op in (*_ops(), _DROPOUT):
        op._dispatch_cache.clear()


@cache
def _ops() -> tuple[torch._ops.OpOverload, ...]:
    packets = [getattr(torch.ops.aten, name) for name in _SET_ASIDE if hasattr(torch.ops.aten, name)]
    return tuple(getattr(packet, overload) for packet in packets for overload in packet.overloads())
