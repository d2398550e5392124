"""A ResNet with bottleneck blocks, BatchNorm and in-place ReLUs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

EXPANSION = 4
"""A bottleneck's output has this many times its inner channels."""


@dataclass(frozen=True, kw_only=True)
class ResNetShape:
    """Sizes of a ResNet: blocks per stage (ResNet-50's by default) and the channels of the stem."""

    blocks: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 16
    classes: int = 100


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut around them (He et al., 2016)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        channels_out = channels * EXPANSION
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels_out, 1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=False),
                nn.BatchNorm2d(channels_out),
            )
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels_in, height, width] to channels_out, height and width divided by the stride."""
        y = self.body(x)
        y += self.shortcut(x)
        return self.activation(y)  # type: ignore[no-any-return]  # modules return Any


class ResNet(nn.Module):
    """Images [batch, 3, height, width] to class scores [batch, classes]."""

    def __init__(self, shape: ResNetShape) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, shape.width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(shape.width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        stages: list[nn.Module] = []
        channels_in = shape.width
        for stage, count in enumerate(shape.blocks):
            channels = shape.width * 2**stage
            for block in range(count):
                stages.append(Bottleneck(channels_in, channels, stride=2 if stage > 0 and block == 0 else 1))
                channels_in = channels * EXPANSION
        self.stages = nn.Sequential(*stages)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels_in, shape.classes))

    def forward(self, images: Tensor) -> Tensor:
        """Class scores."""
        return self.head(self.stages(self.stem(images)))  # type: ignore[no-any-return]  # modules return Any
