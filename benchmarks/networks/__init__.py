"""The networks whose graphs are benchmarked: a factory of a training step for each, by name.

Layouts are the published ones. Image sizes, widths of transformers and batches are reduced until a CPU
measures every op in seconds; what the planner sees is the number of ops and how they hang together.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from benchmarks.networks.convolutional import densenet121, mobilenet_v2, vgg16
from benchmarks.networks.encoders import PatchEncoder, TokenEncoder
from remat.models import GptShape, ResNet, ResNetShape, UNet, UNetShape, gpt_step
from remat.torch import Step

CLASSES = 100


def mlp_step() -> Step:
    """Twenty layers with dropout."""
    layers: list[nn.Module] = []
    for _ in range(20):
        layers += [nn.Linear(256, 256), nn.GELU(), nn.Dropout(0.1)]
    model = nn.Sequential(*layers, nn.Linear(256, CLASSES))
    labels = torch.randint(CLASSES, (4096,))
    return _step(model, torch.randn(4096, 256), labels)


def token_encoder_step() -> Step:
    """A BERT-like encoder of 12 layers."""
    model = TokenEncoder(layers=12, width=256, heads=4, sequence=128, vocabulary=4096)
    tokens = torch.randint(4096, (4, 128))
    return Step(model, args=(tokens, tokens.clone()), optimizer=torch.optim.AdamW(model.parameters()))


def patch_encoder_step() -> Step:
    """A ViT of 12 layers."""
    model = PatchEncoder(layers=12, width=192, heads=3, side=128, patch=8, classes=CLASSES)
    return _image_step(model, batch=4, side=128)


def unet_step() -> Step:
    """A U-Net of five resolutions."""
    model = UNet(UNetShape(width=16))
    labels = torch.randint(4, (4, 96, 96))
    return _step(model, torch.randn(4, 3, 96, 96), labels)


def _gpt(layers: int, *, width: int = 192) -> Callable[[], Step]:
    shape = GptShape(layers=layers, width=width, context=128, vocabulary=2048, attention_dropout=0.1)
    return lambda: gpt_step(batch=4, shape=shape)


def _image_network(make_model: Callable[[], nn.Module], *, batch: int, side: int) -> Callable[[], Step]:
    return lambda: _image_step(make_model(), batch=batch, side=side)


def _image_step(model: nn.Module, *, batch: int, side: int) -> Step:
    return _step(model, torch.randn(batch, 3, side, side), torch.randint(CLASSES, (batch,)))


def _step(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> Step:
    return Step(
        model,
        args=(inputs,),
        loss_fn=partial(functional.cross_entropy, target=labels),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
    )


NETWORKS: dict[str, Callable[[], Step]] = {
    "mlp20": mlp_step,
    "vgg16": _image_network(vgg16, batch=8, side=128),
    "unet": unet_step,
    "gpt2": _gpt(2),
    "gpt4": _gpt(4),
    "vit12": patch_encoder_step,
    "bert12": token_encoder_step,
    "mobilenet_v2": _image_network(mobilenet_v2, batch=16, side=96),
    "resnet50": _image_network(lambda: ResNet(ResNetShape(width=64)), batch=4, side=96),
    "gpt12": _gpt(12),
    "densenet121": _image_network(densenet121, batch=4, side=96),
    "gpt48": _gpt(48, width=128),
    "gpt180": _gpt(180, width=64),
}
"""Steps by name, about in order of their number of ops (a hundred to ten thousand). The number is that of layers."""
