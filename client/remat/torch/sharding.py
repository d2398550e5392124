"""Modules that `fully_shard` (FSDP2) has sharded: their weights are gathered by hooks around their own forward."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from remat_solver.errors import ApplyError


def is_sharded(module: nn.Module) -> bool:
    """Whether hooks of `fully_shard`, which can't be traced, surround this very module's forward."""
    library = sys.modules.get("torch.distributed.fsdp")
    return library is not None and isinstance(module, library.FSDPModule)


def refuse_sharded_parts(model: nn.Module) -> None:
    """Raises `ApplyError` if a module inside `model` is sharded: the hooks would cut the graph there."""
    for name, module in model.named_modules():
        if name and is_sharded(module):
            raise ApplyError(
                f"its part {name!r} is sharded by fully_shard, so the model is no single graph.",
                hint="Plan each sharded block instead: for block in blocks: remat.compile(block, ...).",
            )


def within_hooks(module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls `module` with all its hooks, and `forward` in place of its own."""
    own = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    finally:
        if own is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = own
