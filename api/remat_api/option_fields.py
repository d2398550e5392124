"""Solve options as the plain fields that are stored with a job and sent to its worker."""

from __future__ import annotations

from typing import Any

from remat_solver.options import SolveOptions


def read_options(fields: dict[str, Any]) -> SolveOptions:
    """Options from their JSON object, where lists stand for tuples."""
    pins = {name: tuple(fields[name]) for name in ("keep", "recompute")}
    return SolveOptions(**{**fields, **pins})
