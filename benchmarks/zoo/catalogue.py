"""Every architecture of the zoo, by name."""

from __future__ import annotations

from benchmarks.zoo import timm_models, transformers_models
from benchmarks.zoo.architecture import Architecture


def architectures() -> dict[str, Architecture]:
    """All of them."""
    both = [*transformers_models.catalogue(), *timm_models.catalogue()]
    return {architecture.name: architecture for architecture in both}


def find(name: str) -> Architecture:
    """The one of that name; raises `KeyError`."""
    return architectures()[name]
