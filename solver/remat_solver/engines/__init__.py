"""MIP engines behind one small interface (`base.Engine`), by name."""

from __future__ import annotations

from remat_solver.engines.auto import Auto
from remat_solver.engines.base import Engine
from remat_solver.engines.cbc import Cbc
from remat_solver.engines.highs import Highs
from remat_solver.errors import InvalidRequest

__all__ = ["engine_named"]


def engine_named(name: str) -> Engine:
    """The engine called "cbc", "highs" or "auto"; raises `InvalidRequest`.

    Whether its program is there shows only when it is asked: `EngineMissing`.
    """
    if name == "cbc":
        return Cbc()
    if name == "highs":
        return Highs()
    if name == "auto":
        return Auto()
    raise InvalidRequest(f"engine {name!r} is unknown.", hint="Choose one of cbc, highs, auto.", field="engine")
