"""Which modules can be recomputed as a whole: disjoint parts of the module tree, coarse or fine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)

Regions = dict[str, nn.Module]
"""Modules by their dotted path in the model; none contains another."""


def own_call(module: nn.Module) -> Callable[..., Any]:
    """The module's call, hooks included, past the slot in which a stand-in may lie."""
    call: Callable[..., Any] = module._call_impl
    return call


def candidate_regions(model: nn.Module) -> list[Regions]:
    """Ways of cutting the model into regions: a few large ones (its blocks), and the smallest that hold several ops.

    The large ones come first. They hold few inputs and need much memory while they run again; small ones the other way
    round. A model without modules that hold modules has none.
    """
    candidates = [_blocks(model, ""), _smallest(model, "")]
    distinct: list[Regions] = []
    for regions in candidates:
        if regions and list(regions) not in [list(known) for known in distinct]:
            distinct.append(regions)
    return distinct


def _blocks(module: nn.Module, path: str) -> Regions:
    """What stands in lists and sequences of modules, outermost; elsewhere modules whose parts are all single ops."""
    found: Regions = {}
    for name, child in module.named_children():
        if not _has_children(child):
            continue
        child_path = f"{path}.{name}" if path else name
        if isinstance(module, _CONTAINERS) and not isinstance(child, _CONTAINERS):
            found[child_path] = child
            continue
        inner = _blocks(child, child_path)
        if not inner and _is_callable(child):
            inner = {child_path: child}
        found |= inner
    return found


def _smallest(module: nn.Module, path: str) -> Regions:
    found: Regions = {}
    for name, child in module.named_children():
        if _has_children(child):
            child_path = f"{path}.{name}" if path else name
            found |= _smallest(child, child_path) or ({child_path: child} if _is_callable(child) else {})
    return found


def _has_children(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _is_callable(module: nn.Module) -> bool:
    return not isinstance(module, (nn.ModuleList, nn.ModuleDict))
