"""Every architecture of the zoo, by name."""

from __future__ import annotations

from benchmarks.zoo import transformers_models
from benchmarks.zoo.architecture import Architecture


def architectures() -> dict[str, Architecture]:
    """All of them."""
    return {architecture.name: architecture for architecture in transformers_models.catalogue()}


def find(name: str) -> Architecture:
    """The one of that name; raises `KeyError`."""
    return architectures()[name]
