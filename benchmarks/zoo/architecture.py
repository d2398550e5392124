"""What the zoo knows of an architecture: how to make a tiny model of it, a batch, and a loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Batch = dict[str, Any]


def own_loss(output: Any) -> Tensor:
    """The loss that the model computes from its labels."""
    loss: Tensor = output.loss
    return loss


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One architecture. `model` is called with a seed set, and so is `batch`, whose shapes never change.

    `package` is the one that the model comes from; `kind` groups rows of the table.
    """

    name: str
    package: str
    kind: str
    model: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Callable[[Any], Tensor] = own_loss


def seeded_model(architecture: Architecture) -> nn.Module:
    """The architecture's model in training mode, the same every time."""
    torch.manual_seed(1)
    return architecture.model().train()
