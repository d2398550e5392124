"""Training a model and writing down everything that must not change: losses, gradients, buffers, parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from remat.torch.attachment import attach, planned_graphs
from remat.torch.backend import Backend
from remat.torch.record import PlannedGraph
from tests.client.torch_exact.schedules import Scheduler, planner_of

STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, its batches, and how the loss comes about. `batch(i)` runs with seed i set."""

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[int], tuple[Any, ...]]
    loss: Callable[[Any], Tensor] = lambda output: output
    device: str = "cpu"


def train(case: Case, model: nn.Module, steps: int = STEPS) -> dict[str, Tensor]:
    """Trains and returns every number that came up, by name."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen: dict[str, Tensor] = {}
    for step in range(steps):
        torch.manual_seed(step)
        batch = batch_of(case, step)
        optimizer.zero_grad()
        loss = case.loss(model(*batch))
        loss.backward()
        seen[f"{step} loss"] = loss.detach().clone()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                seen[f"{step} gradient {name}"] = parameter.grad.clone()
        for position, tensor in enumerate(batch):
            if isinstance(tensor, Tensor) and tensor.grad is not None:
                seen[f"{step} input gradient {position}"] = tensor.grad.clone()
        seen |= {f"{step} buffer {name}": buffer.clone() for name, buffer in model.named_buffers()}
        optimizer.step()
        seen[f"{step} random"] = torch.rand((), device=case.device)  # the stream must be where eager leaves it
    return seen | {f"parameter {name}": parameter.detach() for name, parameter in model.named_parameters()}


def train_planned(case: Case, scheduler: Scheduler) -> tuple[dict[str, Tensor], tuple[PlannedGraph, ...]]:
    """Trains a fresh copy of the case's model under a schedule."""
    model = seeded_model(case)
    attach(model, Backend(model=model, planner=planner_of(scheduler), measure=lambda graph: graph))
    return train(case, model), planned_graphs(model)


def batch_of(case: Case, step: int) -> tuple[Any, ...]:
    """The batch of a step, on the case's device."""
    return tuple(part.detach().to(case.device).requires_grad_(part.requires_grad) for part in case.batch(step))


def seeded_model(case: Case) -> nn.Module:
    """The case's model, the same every time."""
    torch.manual_seed(1)
    return case.model().to(case.device)


def differences(left: dict[str, Tensor], right: dict[str, Tensor]) -> list[str]:
    """The names under which two trainings differ; empty when they are equal bit for bit."""
    missing = sorted(left.keys() ^ right.keys())
    return missing + [name for name in left.keys() & right.keys() if not torch.equal(left[name], right[name])]
