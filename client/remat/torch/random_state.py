"""Random ops: they are replayed from the generator state of their first run, so that they draw the same numbers.

The state is saved before the first run and restored around each recompute; the stream that later first
runs see is untouched. On the CPU a state is a tensor of 5056 bytes in the same memory as everything else;
CUDA's lies on the host and costs the device nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from remat_solver.errors import ApplyError

_ATTENTION_PREFIX = "_scaled_dot_product"


def is_random(target: object, arguments: dict[str, Any]) -> bool:
    """Whether the call draws from a generator. Attention without dropout is tagged random and is not."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    without_dropout = arguments.get("dropout_p", 0.0) == 0.0
    return not (_ATTENTION_PREFIX in str(target) and without_dropout)


@cache
def state_bytes(device: torch.device) -> int:
    """What one saved generator state occupies on `device`."""
    return int(torch.get_rng_state().nbytes) if device.type == "cpu" else 0


def read(device: torch.device) -> torch.Tensor:
    """The state of the default generator of `device`. Raises `ApplyError` while a CUDA graph is being recorded."""
    if device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():
            raise ApplyError(
                "a random op that is recomputed can't be recorded in a CUDA graph: its generator's state is saved.",
                hint='Pin random ops with keep= ("*dropout*"), or train without CUDA graphs.',
            )
        return torch.cuda.get_rng_state(device)
    return torch.get_rng_state()


def write(state: torch.Tensor, device: torch.device) -> None:
    """Sets the state of the default generator of `device`."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


@dataclass(frozen=True)
class SaveState:
    """Returns the generator state of its device. Runs right before the first run of a random op."""

    device: torch.device
    __name__ = "save_random_state"

    def __call__(self) -> torch.Tensor:
        return read(self.device)


@dataclass(frozen=True)
class Replay:
    """Runs the random op `target` from a saved state, and leaves the generator as it was."""

    device: torch.device
    target: Callable[..., Any]
    __name__ = "replay_random"

    def __call__(self, state: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        present = read(self.device)
        write(state, self.device)
        try:
            return self.target(*args, **kwargs)
        finally:
            write(present, self.device)
