"""The networks, each with the blocks around which a person would put a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from benchmarks.networks.encoders import EncoderBlock, PatchEncoder
from remat.models import GptShape, ResNetShape, UNetShape, gpt_step, resnet_step, unet_step
from remat.models.gpt import Block
from remat.models.resnet import Bottleneck
from remat.models.unet import UNet
from remat.torch import Step


@dataclass(frozen=True, kw_only=True)
class Network:
    """`make_step` gives a fresh step; `blocks` are the parts of its model to checkpoint, in order."""

    make_step: Callable[[], Step]
    blocks: Callable[[nn.Module], list[nn.Module]]


def _of_type(kind: type[nn.Module]) -> Callable[[nn.Module], list[nn.Module]]:
    return lambda model: [module for module in model.modules() if isinstance(module, kind)]


def _unet_blocks(model: nn.Module) -> list[nn.Module]:
    assert isinstance(model, UNet)
    return [model.first, *model.down, *model.merge]


def _gpt(layers: int, width: int, batch: int) -> Network:
    shape = GptShape(layers=layers, width=width, context=256, vocabulary=2048, attention_dropout=0.1)
    return Network(make_step=partial(gpt_step, batch=batch, shape=shape), blocks=_of_type(Block))


def _vit_step() -> Step:
    torch.manual_seed(0)
    model = PatchEncoder(layers=12, width=192, heads=3, side=128, patch=8, classes=100)
    images, labels = torch.randn(8, 3, 128, 128), torch.randint(100, (8,))
    return Step(
        model,
        args=(images,),
        loss_fn=partial(functional.cross_entropy, target=labels),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
    )


NETWORKS: dict[str, Network] = {
    "gpt4": _gpt(4, width=256, batch=8),
    "gpt12": _gpt(12, width=192, batch=4),
    "resnet50": Network(make_step=partial(resnet_step, shape=ResNetShape()), blocks=_of_type(Bottleneck)),
    "unet": Network(make_step=partial(unet_step, batch=8, shape=UNetShape()), blocks=_unet_blocks),
    "vit12": Network(make_step=_vit_step, blocks=_of_type(EncoderBlock)),
}
"""GPTs of 4 and 12 layers with dropout, a narrow ResNet-50, a U-Net and a ViT of 12 layers."""
