"""What a model keeps from one step to the next beside its parameters and buffers: tables of positions, last results.

An allocator's events don't tell: that last step's copy is freed goes unseen where its allocation was not watched.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress

import torch

from remat.torch.allocation import distinct_bytes, storage_key


def bytes_kept_by(run: Callable[[], object], device: torch.device) -> int:
    """The bytes of all storages that `run` makes and that are alive when it has returned and its result is gone."""
    before = _living_tensors()  # held until the end, so that no new storage gets the key of an old one
    run()
    return distinct_bytes((tensor for key, tensor in _living_tensors().items() if key not in before), device)


def _living_tensors() -> dict[int, torch.Tensor]:
    """A tensor of each storage that Python knows of, by the storage's key."""
    gc.collect()
    found: dict[int, torch.Tensor] = {}
    for tensor in [each for each in gc.get_objects() if type(each) is torch.Tensor]:
        with suppress(NotImplementedError, RuntimeError):  # sparse and wrapped ones have no storage
            found[storage_key(tensor)] = tensor
    return found
