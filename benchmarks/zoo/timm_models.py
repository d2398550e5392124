"""Tiny configurations of architectures of `timm`, with random weights, on small images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.architecture import Architecture, Batch

PACKAGE = "timm"
IMAGES = 8
CLASSES = 4

_SMALL = {"img_size": 32, "patch_size": 4, "embed_dim": 48, "depth": 2, "num_heads": 4}

_MODELS: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "resnet10t": (64, {"drop_path_rate": 0.1}),
    "resnext26ts": (64, {}),
    "seresnext26ts": (64, {}),
    "regnetx_002": (64, {}),
    "densenet121": (64, {"growth_rate": 8, "block_config": (2, 2, 2)}),
    "repvgg_a0": (64, {}),
    "mobilenetv3_small_050": (64, {"drop_rate": 0.15}),
    "mnasnet_small": (64, {}),
    "ghostnet_050": (64, {}),
    "lcnet_035": (64, {}),
    "test_efficientnet": (64, {"drop_path_rate": 0.1}),
    "test_nfnet": (64, {}),
    "test_convnext": (64, {"drop_path_rate": 0.1}),
    "test_byobnet": (64, {}),
    "vit_tiny_patch16_224": (32, {**_SMALL, "drop_path_rate": 0.1}),
    "deit3_small_patch16_224": (32, _SMALL),
    "eva02_tiny_patch14_224": (32, _SMALL),
    "beitv2_base_patch16_224": (32, _SMALL),
    "swin_tiny_patch4_window7_224": (
        32,
        {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4)},
    ),
    "cait_xxs24_224": (32, _SMALL),
    "test_resnet": (64, {}),
    "test_efficientnet_gn": (64, {}),
    "test_mambaout": (64, {}),
}


def catalogue() -> list[Architecture]:
    """Every architecture of `timm` in the zoo."""
    return [
        Architecture(
            name=name, package=PACKAGE, kind="vision", model=_maker(name, fields), batch=_images(size), loss=_loss
        )
        for name, (size, fields) in _MODELS.items()
    ]


def _maker(name: str, fields: Mapping[str, Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm

        made: nn.Module = timm.create_model(name, num_classes=CLASSES, **fields)
        return made

    return make


def _images(size: int) -> Callable[[], Batch]:
    return lambda: {"x": torch.randn(IMAGES, 3, size, size)}


def _loss(scores: Any) -> Tensor:
    return functional.cross_entropy(scores, torch.arange(IMAGES, device=scores.device) % CLASSES)
