"""Convolutional networks: VGG-16, MobileNetV2 and DenseNet-121, each at its published layout."""

from __future__ import annotations

import torch
from torch import Tensor, nn

VGG_16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
"""Channels of each convolution; 0 is a pooling layer (Simonyan and Zisserman, 2015, configuration D)."""

MOBILENET_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels, blocks and stride of each stage (Sandler et al., 2018, table 2)."""

DENSENET_121 = (6, 12, 24, 16)
"""Layers of each dense block (Huang et al., 2017, table 1)."""
GROWTH = 32


def vgg16(classes: int = 100) -> nn.Module:
    """VGG-16 with dropout in its classifier; the convolutions end in global pooling, so that any image size fits."""
    layers: list[nn.Module] = []
    channels = 3
    for width in VGG_16:
        if width == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
        channels = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1024), nn.ReLU(inplace=True), nn.Dropout(0.5)]
    return nn.Sequential(*layers, nn.Linear(1024, classes))


class InvertedResidual(nn.Module):
    """Expand, filter each channel, project; with a shortcut where the shapes allow one."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = channels_in * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers += [nn.Conv2d(channels_in, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(inplace=True)]
        layers += [
            nn.Conv2d(hidden, hidden, 3, stride=stride, padding=1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, channels_out, 1, bias=False),
            nn.BatchNorm2d(channels_out),
        ]
        self.body = nn.Sequential(*layers)
        self.has_shortcut = stride == 1 and channels_in == channels_out

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels_in, height, width] to channels_out, height and width divided by the stride."""
        y: Tensor = self.body(x)
        return x + y if self.has_shortcut else y


def mobilenet_v2(classes: int = 100) -> nn.Module:
    """MobileNetV2 at width 1."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()]
    channels = 32
    for expansion, width, blocks, stride in MOBILENET_V2:
        for block in range(blocks):
            layers.append(InvertedResidual(channels, width, stride if block == 0 else 1, expansion))
            channels = width
    layers += [nn.Conv2d(channels, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, classes))


class DenseLayer(nn.Module):
    """Adds `GROWTH` channels computed from all those before it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, 4 * GROWTH, 1, bias=False),
            nn.BatchNorm2d(4 * GROWTH),
            nn.ReLU(inplace=True),
            nn.Conv2d(4 * GROWTH, GROWTH, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, height, width] to channels + GROWTH."""
        return torch.cat([x, self.body(x)], dim=1)


def densenet121(classes: int = 100) -> nn.Module:
    """DenseNet-121."""
    channels = 2 * GROWTH
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(channels)]
    layers += [nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, padding=1)]
    for position, count in enumerate(DENSENET_121):
        if position > 0:
            layers += [
                nn.BatchNorm2d(channels),
                nn.ReLU(inplace=True),
                nn.Conv2d(channels, channels // 2, 1, bias=False),
            ]
            layers.append(nn.AvgPool2d(2))
            channels //= 2
        for _ in range(count):
            layers.append(DenseLayer(channels))
            channels += GROWTH
    layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(channels, classes))
