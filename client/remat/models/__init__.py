"""Three real networks, sized so that a laptop trains them: what the demo and the benchmarks plan.

Each factory returns a fresh `Step` with seeded weights and a seeded batch; `remat capture
remat.models:gpt_step` takes one by name. Activations outweigh parameters in all three.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from remat.models.gpt import Gpt, GptShape
from remat.models.resnet import ResNet, ResNetShape
from remat.models.unet import UNet, UNetShape
from remat.torch.step import Step

__all__ = [
    "DEMO_RESNET",
    "DEMO_STEPS",
    "Gpt",
    "GptShape",
    "ResNet",
    "ResNetShape",
    "UNet",
    "UNetShape",
    "gpt_step",
    "resnet_step",
    "unet_step",
]


def gpt_step(*, batch: int = 6, shape: GptShape | None = None, device: str = "cpu") -> Step:
    """One step of a GPT with dropout and tied weights, its loss inside the model, trained by AdamW."""
    shape = shape or GptShape()
    torch.manual_seed(0)
    model = Gpt(shape).to(device)
    tokens = torch.randint(shape.vocabulary, (batch, shape.context + 1)).to(device)
    return Step(
        model,
        args=(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
    )


DEMO_RESNET = ResNetShape(blocks=(2, 2, 2, 2))
"""ResNet-26's blocks: half of ResNet-50's, because PyTorch traces the step anew for every plan that the demo shows."""


def resnet_step(*, batch: int = 32, side: int = 128, shape: ResNetShape | None = None, device: str = "cpu") -> Step:
    """One step of a narrow ResNet on square images of `side` pixels, trained by SGD with momentum."""
    shape = shape or DEMO_RESNET
    torch.manual_seed(0)
    model = ResNet(shape).to(device)
    images = torch.randn(batch, 3, side, side).to(device)
    labels = torch.randint(shape.classes, (batch,)).to(device)
    return _image_step(model, images, labels)


def unet_step(*, batch: int = 4, side: int = 128, shape: UNetShape | None = None, device: str = "cpu") -> Step:
    """One step of a U-Net that labels every pixel of square images of `side` pixels, trained by SGD with momentum."""
    shape = shape or UNetShape()
    torch.manual_seed(0)
    model = UNet(shape).to(device)
    images = torch.randn(batch, 3, side, side).to(device)
    labels = torch.randint(shape.classes, (batch, side, side)).to(device)
    return _image_step(model, images, labels)


def _image_step(model: torch.nn.Module, images: Tensor, labels: Tensor) -> Step:
    return Step(
        model,
        args=(images,),
        loss_fn=partial(functional.cross_entropy, target=labels),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
    )


DEMO_STEPS: dict[str, Callable[[], Step]] = {"gpt": gpt_step, "resnet": resnet_step, "unet": unet_step}
"""The demo's steps by name."""
