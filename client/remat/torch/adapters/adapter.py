"""What an adapter may do: the default does nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Adapter:
    """Hints for one model."""

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """The arguments to trace and run the model with, before each call."""
        return args, kwargs

    @contextmanager
    def calling(self, kwargs: Mapping[str, Any]) -> Iterator[None]:
        """Surrounds each call with `kwargs`: what it sets holds while the model is traced and guards are checked."""
        yield

    @contextmanager
    def recomputing(self) -> Iterator[None]:
        """Surrounds each call in eager mode: what modules keep from one run to the next is switched off inside."""
        yield

    @contextmanager
    def skipping_nothing(self) -> Iterator[None]:
        """Surrounds trial steps: layers that are skipped at random all run inside, so that plans are for the most."""
        yield
