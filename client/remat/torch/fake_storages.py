"""Where PyTorch's fake tensors say one thing and its kernels do another: what the allocator really holds.

Found by running PyTorch's own operator database both ways, and a zoo of models. Five kinds matter on the CPU:

* a loss that is reduced to a scalar lies in the buffer of its elements (`mse_loss` of n numbers holds n);
* a normalisation of half-precision inputs with float32 weights keeps its statistics in float32;
* `copy`, the functional form of `copy_`, clones the whole storage behind its first argument. It is run here
  as what its fake does: fill a tensor of the same strides;
* `bernoulli`, the functional form of `bernoulli_`, draws in another order where memory is not contiguous;
* some kernels lay their results out otherwise than the stand-ins say (attention on transposed inputs), so that a
  view of one is impossible. Then it is copied, as `reshape` does, rather than refused.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor

aten = torch.ops.aten

_REDUCED_IN_PLACE = (
    aten.mse_loss.default,
    aten.smooth_l1_loss.default,
    aten.binary_cross_entropy.default,
    aten.soft_margin_loss.default,
)
_NORMALISATIONS = (
    aten.native_layer_norm.default,
    aten.native_group_norm.default,
    aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit.no_stats,
)
_HALVES = (torch.float16, torch.bfloat16)

view_or_copy = torch.reshape
"""`aten.view`, or a copy of that shape where the strides allow no view."""


def correct_fakes(module: fx.GraphModule) -> None:
    """Gives the nodes of a joint graph stand-ins whose storages are as large as the real ones."""
    for node in module.graph.nodes:
        if node.target in _REDUCED_IN_PLACE:
            _correct_loss(node)
        elif node.target in _NORMALISATIONS:
            _correct_statistics(node)
        elif replacement(node) is functional_copy:
            _correct_copy(node)


def replacement(node: fx.Node) -> Any:
    """What to run in place of the node's target."""
    if node.target is aten.copy.default and _fills_its_storage_once(node.meta["val"]):
        return functional_copy
    if node.target is aten.bernoulli.p and _is_empty(node.args[0]):
        return bernoulli_in_place
    if node.target is aten.view.default:
        return view_or_copy
    return node.target


def bernoulli_in_place(onto: torch.Tensor, p: float, *, generator: torch.Generator | None = None) -> torch.Tensor:
    """`aten.bernoulli`, drawn in the memory order of `onto` as its in-place form does, whose trace this is."""
    return torch.empty_like(onto).bernoulli_(p, generator=generator)


def functional_copy(onto: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`aten.copy` without what lies around `onto` in its storage."""
    made = torch.empty_strided(onto.shape, onto.stride(), dtype=onto.dtype, device=onto.device)
    return made.copy_(source, non_blocking)


def _is_empty(argument: Any) -> bool:
    """Whether a tensor was made without contents, to be written in place."""
    return isinstance(argument, fx.Node) and argument.target is aten.empty_like.default


def _fills_its_storage_once(tensor: torch.Tensor) -> bool:
    """Whether no two elements share a place: sorted by stride, each dimension steps over the one below."""
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride < reach:
            return False
        reach = stride * (size - 1) + reach
    return True


def _correct_copy(node: fx.Node) -> None:
    """What `functional_copy` makes. PyTorch's own stand-in depends on what its cache of them holds already."""
    fake = node.meta["val"]
    with fake.fake_mode:
        node.meta["val"] = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
    _renew_views(node)


def _correct_loss(node: fx.Node) -> None:
    fake = node.meta["val"]
    source = node.args[0]
    if fake.device.type != "cpu" or fake.numel() != 1 or not isinstance(source, fx.Node):
        return
    compared = [argument.meta["val"] for argument in node.args[:2] if isinstance(argument, fx.Node)]
    with fake.fake_mode:
        count = functools.reduce(torch.add, compared).numel()
        node.meta["val"] = torch.empty(max(count, 1), dtype=fake.dtype, device=fake.device)[0]
    _renew_views(node)


def _correct_statistics(node: fx.Node) -> None:
    batch = _fake(node.args[0])
    weights = [_fake(argument) for argument in node.args if isinstance(argument, fx.Node)][1:]
    if batch is None or batch.device.type != "cpu" or batch.dtype not in _HALVES:
        return
    if not any(weight is not None and weight.dtype is torch.float32 for weight in weights):
        return
    results = list(node.meta["val"])
    for position in (1, 2):
        fake = results[position]
        with fake.fake_mode:
            results[position] = torch.empty_strided(fake.shape, fake.stride(), dtype=torch.float32, device=fake.device)
    node.meta["val"] = tuple(results)
    for user in node.users:
        if user.target is operator.getitem and user.args[1] in (1, 2):
            user.meta["val"] = results[user.args[1]]  # type: ignore[index]
            _renew_views(user)


def _renew_views(node: fx.Node) -> None:
    """Makes the stand-ins of a node's views anew, in its own new storage."""
    for user in node.users:
        if isinstance(user.target, torch._ops.OpOverload) and user.target.is_view:
            args, kwargs = fx.map_arg((user.args, user.kwargs), lambda source: source.meta["val"])
            with node.meta["val"].fake_mode:
                user.meta["val"] = user.target(*args, **kwargs)
            _renew_views(user)


def _fake(argument: Any) -> FakeTensor | None:
    fake = argument.meta.get("val") if isinstance(argument, fx.Node) else None
    return fake if isinstance(fake, FakeTensor) else None
