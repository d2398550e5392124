"""What an op does to its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import torch

from remat.torch import batch_norm


def is_mutable(target: object) -> TypeGuard[torch._ops.OpOverload]:
    """Whether an op changes some argument, be it behind its schema's back."""
    return isinstance(target, torch._ops.OpOverload) and (
        target._schema.is_mutable or batch_norm.writes_in_secret(target)
    )


def named_arguments(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments (fx nodes or tensors, as they came) by the schema's names."""
    return {**dict(zip((argument.name for argument in op._schema.arguments), args, strict=False)), **kwargs}


def written_arguments(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Those that a mutable op changes."""
    arguments = op._schema.arguments
    if batch_norm.writes_in_secret(op):
        names = batch_norm.hidden_writes([argument.name for argument in arguments])
    else:
        names = [argument.name for argument in arguments if argument.alias_info and argument.alias_info.is_write]
    named = named_arguments(op, args, kwargs)
    return [named[name] for name in names if name in named]


def returns_its_target(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether passing over a call that was made before comes to returning its first argument."""
    written = written_arguments(op, args, kwargs)
    return len(op._schema.returns) <= 1 and bool(args and written) and written[0] is args[0]
