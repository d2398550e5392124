"""What a tensor costs its device: storages, and how the allocators round them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.utils import _pytree as pytree

CUDA_BLOCK_BYTES = 512
"""CUDA's caching allocator hands out multiples of this (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize)."""


def allocated_bytes(size_bytes: int, device: torch.device) -> int:
    """What the allocator of `device` holds for a request of `size_bytes`.

    The CPU's counts what was asked for; CUDA's rounds up to blocks of 512 bytes. Behind a large tensor it may leave up
    to 1 MiB of a cached block unsplit (kSmallSize), which depends on what was freed before and is not foreseen.
    """
    if device.type == "cuda":
        return -(-size_bytes // CUDA_BLOCK_BYTES) * CUDA_BLOCK_BYTES
    return size_bytes


def storage_key(tensor: torch.Tensor) -> int:
    """A number that two live tensors share when, and only when, they share a storage."""
    return int(tensor.untyped_storage()._cdata)


def storage_bytes(tensor: torch.Tensor, device: torch.device) -> int:
    """What the storage of `tensor` (real or fake) holds on `device`; nothing if it lies elsewhere."""
    if tensor.device.type != device.type:
        return 0
    return allocated_bytes(tensor.untyped_storage().nbytes(), device)


def distinct_bytes(tensors: Iterable[torch.Tensor], device: torch.device) -> int:
    """What `tensors` hold on `device` together, each storage counted once."""
    kept = list(tensors)  # keeps every storage alive, so that no key is used twice
    sizes = {storage_key(tensor): storage_bytes(tensor, device) for tensor in kept}
    return sum(sizes.values())


def tensors_in(tree: object) -> list[torch.Tensor]:
    """Every tensor in a nest of tuples, lists, dicts and other pytrees."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def main_device(tensors: Iterable[torch.Tensor]) -> torch.device:
    """The device that the budget is about: the accelerator if any tensor lies on one, else the CPU."""
    for tensor in tensors:
        if tensor.device.type != "cpu":
            return tensor.device
    return torch.device("cpu")
