"""A small model with every kind of state that verifying must leave alone, and one that misbehaves."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Small(nn.Module):
    """Convolution, BatchNorm, dropout and a chain that is worth recomputing."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.dropout = nn.Dropout(0.3)
        self.chain = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        """The loss."""
        x = self.norm(self.convolution(x))
        for layer in self.chain:
            x = torch.tanh(self.dropout(layer(x)))
        return x.square().mean()


class Unequal(nn.Module):
    """Its traced form computes other numbers than the eager one, as some of PyTorch's decompositions do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """The loss."""
        scale = 2.0 if torch.compiler.is_compiling() else 3.0
        return (self.layer(x) * scale).sum()


def batch() -> Tensor:
    """Images for `Small`."""
    return torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
