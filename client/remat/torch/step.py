"""What is captured: one training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Step:
    """A model, what it is called with, what turns its output into a loss, and who updates its weights.

    `loss_fn` takes the model's output and returns the loss, so that the loss's memory is planned with the
    rest; without it the loss is taken to be computed outside, or to be what the model returns.
    `optimizer` counts only through the memory of its state, which is estimated before its first step.
    """

    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None
    loss_fn: Callable[[Any], Any] | None = None
    optimizer: torch.optim.Optimizer | None = None
