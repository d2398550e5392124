"""Tracing what eager mode computes, where PyTorch's tracer would write an op in other words.

For some ops PyTorch registers a Python decomposition that takes the place of the kernel, and of its gradient, whenever
a graph is traced: bilinear upsampling becomes a dozen pointwise ops, say. Results differ from eager's in the last
bits. While our graphs are traced, those registrations are set aside, so that the tracer meets the very kernels that
eager mode runs. Dropout on the CPU keeps its decomposition, whose mask is a quarter as large as the noise that
eager mode saves, for those probabilities at which the two agree.

The registry is private to PyTorch and belongs to the process, so it is touched only while AOTAutograd traces one of our
graphs, and put back however that ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
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
        _DROPOUT.py_kernels.update({key: _exact_dropout(kernel) for key, kernel in dropouts.items()})
        _forget_dispatch()
        try:
            yield
        finally:
            for op, key, kernel in aside:
                op.py_kernels[key] = kernel
            _DROPOUT.py_kernels.update(dropouts)
            _forget_dispatch()


def _exact_dropout(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """Dropout as its decomposition if that gives eager's numbers, else as PyTorch's own code for the device."""

    def dropout(x: Tensor, p: float, train: bool) -> Any:
        if x.device.type == "cpu" and train and p != 0 and scales_alike(p, x.dtype):
            return decomposition(x, p, train)
        return _DROPOUT._op_dk(DispatchKey.CompositeImplicitAutograd, x, p, train)

    return dropout


def scales_alike(p: float, dtype: torch.dtype) -> bool:
    """Whether the CPU's two dropouts agree: one divides its noise by 1 - p, the other multiplies by 1 / (1 - p)."""
    if dtype != torch.float32 or p == 1:
        return True  # in half precision both round to the same factor (tried for every hundredth)
    return bool(np.float32(1 / (1 - p)) == np.float32(1) / np.float32(1 - p))


def _forget_dispatch() -> None:
    """An op remembers which kernel it dispatched to."""
    for op in (*_ops(), _DROPOUT):
        op._dispatch_cache.clear()


@cache
def _ops() -> tuple[torch._ops.OpOverload, ...]:
    packets = [getattr(torch.ops.aten, name) for name in _SET_ASIDE if hasattr(torch.ops.aten, name)]
    return tuple(getattr(packet, overload) for packet in packets for overload in packet.overloads())
