"""A U-Net: an encoder, a decoder, and a connection across at every resolution."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class UNetShape:
    """Sizes of a U-Net: how often the resolution is halved, and the channels at full resolution."""

    depth: int = 4
    width: int = 16
    classes: int = 4


def _double_convolution(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
        nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """Images [batch, 3, height, width] to class scores for each pixel (Ronneberger et al., 2015).

    Height and width are multiples of 2**depth.
    """

    def __init__(self, shape: UNetShape) -> None:
        super().__init__()
        widths = [shape.width * 2**level for level in range(shape.depth + 1)]
        pairs = list(itertools.pairwise(widths))
        self.first = _double_convolution(3, widths[0])
        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList(_double_convolution(upper, lower) for upper, lower in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(lower, upper, 2, stride=2) for upper, lower in reversed(pairs))
        self.merge = nn.ModuleList(_double_convolution(2 * upper, upper) for upper, _ in reversed(pairs))
        self.head = nn.Conv2d(widths[0], shape.classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores [batch, classes, height, width]."""
        x = self.first(images)
        across = []
        for down in self.down:
            across.append(x)
            x = down(self.pool(x))
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([across.pop(), up(x)], dim=1))
        return self.head(x)  # type: ignore[no-any-return]  # modules return Any
