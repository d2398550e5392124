"""Remat: optimal rematerialization plans for training steps.

    import remat
    model = remat.compile(model, budget="8GiB", optimizer=optimizer)

`import remat` is light: torch is imported only when a name that needs it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remat.client import Client as Client
    from remat.fit import fits as fits
    from remat.fit import largest_batch as largest_batch
    from remat.torch import Backend as Backend
    from remat.torch import Step as Step
    from remat.torch import apply as apply
    from remat.torch import capture as capture
    from remat.torch import compile as compile
    from remat.torch import measure as measure
    from remat.torch import remove as remove
    from remat.torch import report as report
    from remat.torch import verify as verify
    from remat.trade_off import frontier as frontier
    from remat_solver.errors import RematError as RematError
    from remat_solver.files import load as load
    from remat_solver.files import save as save
    from remat_solver.graph import Graph as Graph
    from remat_solver.graph import Op as Op
    from remat_solver.graph import Value as Value
    from remat_solver.options import SolveOptions as SolveOptions
    from remat_solver.plan import Plan as Plan
    from remat_solver.simulate import simulate as simulate
    from remat_solver.solve import minimum_budget as minimum_budget
    from remat_solver.solve import solve as solve

_HOMES = {
    "RematError": "remat_solver.errors",
    "load": "remat_solver.files",
    "save": "remat_solver.files",
    "Graph": "remat_solver.graph",
    "Op": "remat_solver.graph",
    "Value": "remat_solver.graph",
    "SolveOptions": "remat_solver.options",
    "Plan": "remat_solver.plan",
    "simulate": "remat_solver.simulate",
    "minimum_budget": "remat_solver.solve",
    "solve": "remat_solver.solve",
    "Client": "remat.client",
    "fits": "remat.fit",
    "largest_batch": "remat.fit",
    "frontier": "remat.trade_off",
    "Backend": "remat.torch",
    "Step": "remat.torch",
    "apply": "remat.torch",
    "capture": "remat.torch",
    "compile": "remat.torch",
    "measure": "remat.torch",
    "remove": "remat.torch",
    "report": "remat.torch",
    "verify": "remat.torch",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'remat' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "numpy"):
            raise
        raise ModuleNotFoundError(f"remat.{name} needs PyTorch: pip install 'remat[torch]'", name=error.name) from None


def __dir__() -> list[str]:
    return __all__
