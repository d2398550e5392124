"""Strides that PyTorch's fake tensors get wrong, and what follows from them further down the graph.

Some CPU kernels write a contiguous result where their stand-ins say that it is laid out like the input (found by
running common ops both ways on transposed inputs). Sizes agree, so that bytes are right where it happens; but a view
of the result that the trace takes for free may be a copy in truth. Each node behind such a result is therefore
run again on corrected stand-ins, and a view that its strides don't allow becomes `reshape`: an op that makes a copy.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor
from torch.utils import _pytree as pytree

aten = torch.ops.aten

_CONTIGUOUS = (
    aten.elu_backward.default,
    aten.hardswish_backward.default,
    aten.huber_loss_backward.default,
    aten.log_sigmoid_forward.default,
    aten.mse_loss_backward.default,
    aten.native_layer_norm_backward.default,
    aten.smooth_l1_loss_backward.default,
)
_CONTIGUOUS_OR_CHANNELS_LAST = (
    aten._native_batch_norm_legit_functional.default,
    aten.native_batch_norm_backward.default,
)


def correct_layouts(module: fx.GraphModule) -> None:
    """Gives the nodes of a joint graph stand-ins with the strides that CPU kernels produce."""
    moved: set[fx.Node] = set()
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        laid_out = node.meta.get("val")
        if any(source in moved for source in node.all_input_nodes):
            laid_out = _run_again(node)
        if node.target in _CONTIGUOUS:
            laid_out = _with_contiguous_first(laid_out, keep_channels_last=False)
        elif node.target in _CONTIGUOUS_OR_CHANNELS_LAST:
            laid_out = _with_contiguous_first(laid_out, keep_channels_last=True)
        if laid_out is not node.meta.get("val"):
            node.meta["val"] = laid_out
            moved.add(node)


def _run_again(node: fx.Node) -> Any:
    """The node's result on its inputs' present stand-ins; the old one if nothing about it changed."""
    before = node.meta.get("val")
    args: Any
    kwargs: Any
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: source.meta.get("val"))
    if node.target is operator.getitem:
        return args[0][args[1]]
    fakes = [leaf for leaf in pytree.tree_leaves(before) if isinstance(leaf, FakeTensor)]
    if not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.is_mutable or not fakes:
        return before
    with fakes[0].fake_mode:
        try:
            after = node.target(*args, **kwargs)
        except (RuntimeError, ValueError):
            if node.target not in (aten.view.default, aten._unsafe_view.default):
                raise
            node.target = aten.reshape.default
            after = node.target(*args, **kwargs)
    strides = [[leaf.stride() for leaf in pytree.tree_leaves(tree) if isinstance(leaf, FakeTensor)]
               for tree in (before, after)]  # fmt: skip
    return before if strides[0] == strides[1] and not node.target.is_view else after


def _with_contiguous_first(result: Any, *, keep_channels_last: bool) -> Any:
    """The result (or the first of several), contiguous; unchanged where it is so already, or not on the CPU."""
    first, rest = (result[0], tuple(result[1:])) if isinstance(result, (tuple, list)) else (result, None)
    if not isinstance(first, FakeTensor) or first.device.type != "cpu" or first.is_contiguous():
        return result
    if keep_channels_last and _is_channels_last(first):
        return result
    with first.fake_mode:
        made = torch.empty(first.shape, dtype=first.dtype, device=first.device)
    return made if rest is None else (made, *rest)


def _is_channels_last(tensor: torch.Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.dim() in formats and tensor.is_contiguous(memory_format=formats[tensor.dim()])
