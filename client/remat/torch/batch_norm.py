"""BatchNorm: recomputed without its running statistics, which it must update once only.

`_native_batch_norm_legit_functional` returns the new running mean and variance as its last two results.
Its recompute is `_native_batch_norm_legit.no_stats`: the same output, batch mean and inverse deviation, bit
for bit, and no statistics. The backward op reads the new statistics, so those come from the first run.
"""

from __future__ import annotations

from typing import Any

import torch

FUNCTIONAL = torch.ops.aten._native_batch_norm_legit_functional.default
WITHOUT_STATISTICS = torch.ops.aten._native_batch_norm_legit.no_stats
RECOMPUTED_RESULTS = 3
"""Results 0, 1, 2 (output, batch mean, inverse deviation) come anew; 3 and 4 only from the first run."""

_HIDDEN_WRITERS = (
    torch.ops.aten.native_batch_norm.default,
    torch.ops.aten.cudnn_batch_norm.default,
    torch.ops.aten.miopen_batch_norm.default,
)


def is_batch_norm(target: object, args: tuple[Any, ...]) -> bool:
    """Whether the call is a training BatchNorm that can be recomputed without its statistics."""
    return target is FUNCTIONAL and bool(args[5])


def writes_in_secret(target: object) -> bool:
    """Whether an op updates its arguments though its schema does not say so."""
    return target in _HIDDEN_WRITERS


def hidden_writes(names: list[str]) -> list[str]:
    """Which of the arguments with these names such an op updates."""
    return [name for name in names if name.startswith("running_")]


def recompute_call(args: tuple[Any, ...]) -> tuple[torch._ops.OpOverload, tuple[Any, ...]]:
    """The call that recomputes a BatchNorm called with `args`."""
    batch, weight, bias, _mean, _variance, training, momentum, epsilon = args
    return WITHOUT_STATISTICS, (batch, weight, bias, training, momentum, epsilon)


def without_statistics(target: torch._ops.OpOverload, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a training BatchNorm of eager mode, less the running statistics, which it would update."""
    names = [argument.name for argument in target._schema.arguments]
    named = dict(zip(names, args, strict=False))
    if not named.get("training"):
        return args
    return tuple(None if name.startswith("running_") else argument for name, argument in named.items())
