"""The quickest way to make a call from Python that does exactly what `torch.ops` would do.

`torch.ops.aten.mm.default` reads each call off the op's schema, which takes longer than a small kernel runs. The
functions behind `torch.mm` and `Tensor.view` were generated for their ops and take about half. They choose an overload
by the arguments' types, so each call is tried first: both ways must hand the dispatcher the same op with the same
arguments, or the slower way stays. Nothing is computed for that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from remat.torch.untraced import run_untraced

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""A target with its arguments."""


def quickest_targets(calls: Mapping[fx.Node, Call]) -> dict[fx.Node, Callable[..., Any]]:
    """For each node and the call that it stands for (stand-ins for its tensors), what to call instead of the target."""

    def choose(_stop: threading.Event) -> dict[fx.Node, Callable[..., Any]]:
        return {node: _quickest(*call) for node, call in calls.items()}

    return run_untraced(choose)  # free of whatever mode the compiler has on


def _quickest(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
    if type(target) is not torch._ops.OpOverload:
        return target  # type: ignore[no-any-return]
    wanted = _dispatched(target, args, kwargs)
    if wanted is not None and _has_tensor(args):  # without one, a default device would count
        for candidate in _candidates(target):
            if _is_same(_dispatched(candidate, args, kwargs), wanted):
                return candidate
    return target._op  # `OpOverload.__call__` does no more than call it


def _candidates(target: torch._ops.OpOverload) -> Iterator[Callable[..., Any]]:
    namespace, name = target._schema.name.split("::")
    if namespace != "aten":
        return
    for place in (torch, torch._C._nn):
        found = getattr(place, name, None)
        if isinstance(found, BuiltinFunctionType):
            yield found
    found = getattr(torch.Tensor, name, None)
    if isinstance(found, MethodDescriptorType):
        yield found


class _Dispatched(Exception):
    """No error: how a call is stopped before it computes anything."""

    def __init__(self, call: Call) -> None:
        self.call = call


class _Stop(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Stops at the first op that reaches the dispatcher, and tells which."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        raise _Dispatched((func, args, kwargs or {}))


def _dispatched(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """What calling `function` would run first; None if it would refuse."""
    try:
        with _Stop():  # type: ignore[no-untyped-call]
            function(*args, **kwargs)
    except _Dispatched as stopped:
        return stopped.call
    except (TypeError, RuntimeError, ValueError):
        return None
    return None


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if one is other:
        return True
    return type(one) is type(other) and not isinstance(one, torch.Tensor) and repr(one) == repr(other)


def _has_tensor(args: tuple[Any, ...]) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.arg_tree_leaves(*args))
