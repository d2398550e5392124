"""Training a few steps and writing down everything that must not change, and how high each step reached."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.zoo.architecture import Architecture, Batch
from remat.torch.peak import measure_peak

STEPS = 3


@dataclass(kw_only=True)
class Training:
    """Every number that came up, by name, and the peak of each step but the first (in which plans are made)."""

    seen: dict[str, Tensor] = field(default_factory=dict)
    peaks_above_start: list[int] = field(default_factory=list)


def seeded_batch(architecture: Architecture, step: int) -> Batch:
    """The batch of a step; all generators are left seeded by it."""
    torch.manual_seed(step)
    np.random.seed(step)
    random.seed(step)
    return architecture.batch()


def train(
    architecture: Architecture, model: nn.Module, loss_of: Callable[[Batch], Tensor], *, peaks: bool = False
) -> Training:
    """Trains `model` for some steps through `loss_of`, which calls it; measures peaks if they are asked for."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    training = Training()
    seen = training.seen
    for step in range(STEPS):
        batch = seeded_batch(architecture, step)
        optimizer.zero_grad()

        def forward_and_backward(batch: Batch = batch) -> Tensor:
            loss = loss_of(batch)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            return loss.detach()

        if step == 0 or not peaks:
            seen[f"{step} loss"] = forward_and_backward().clone()
        else:
            losses: list[Any] = []
            measured = measure_peak(lambda run=forward_and_backward, into=losses: into.append(run()), "cpu")
            training.peaks_above_start.append(measured.peak_bytes_above_start)
            seen[f"{step} loss"] = losses.pop().clone()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        seen |= {f"{step} gradient {name}": gradient.clone() for name, gradient in gradients.items()}
        seen |= {f"{step} buffer {name}": buffer.clone() for name, buffer in model.named_buffers()}
        optimizer.step()
        seen[f"{step} random"] = torch.rand(())  # the stream must be where eager leaves it
    seen |= {f"parameter {name}": parameter.detach() for name, parameter in model.named_parameters()}
    return training


def differences(left: Training, right: Training) -> list[str]:
    """The names under which two trainings differ; empty when they are equal bit for bit (NaN equals NaN)."""
    lone = sorted(left.seen.keys() ^ right.seen.keys())
    return lone + [name for name in left.seen if name in right.seen and not _equal(left.seen[name], right.seen[name])]


def _equal(left: Tensor, right: Tensor) -> bool:
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return torch.equal(left, right) or torch.equal(left.nan_to_num(nan=1234.5), right.nan_to_num(nan=1234.5))
