"""MODULE:FACTORY on a command line: the function that returns a `remat.Step`."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING

from remat_solver.errors import InvalidRequest

if TYPE_CHECKING:
    from remat.torch import Step

EXAMPLE = "For example `remat capture mypackage.training:make_step`, or `remat.models:gpt_step`."


def load_step(reference: str) -> Step:
    """Imports MODULE (the working folder counts), calls FACTORY and returns its step.

    Raises `InvalidRequest` for a reference that leads nowhere, a factory that fails or one that returns something else.
    """
    module_name, colon, factory_name = reference.partition(":")
    if not (module_name and colon and factory_name):
        raise InvalidRequest(f"{reference!r} is not of the form MODULE:FACTORY.", hint=EXAMPLE, field="factory")
    require_torch()
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InvalidRequest(f"can't import {module_name}: {error}.", hint=EXAMPLE, field="factory") from None
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        raise InvalidRequest(f"{module_name} has no function {factory_name}.", hint=EXAMPLE, field="factory")
    try:
        step = factory()
    except Exception as error:
        raise InvalidRequest(
            f"{reference} raised {type(error).__name__}: {error}.",
            hint="Call it by itself in Python to see where.",
            field="factory",
        ) from error
    return _checked(step, reference)


def require_torch() -> None:
    """Raises `InvalidRequest` where PyTorch is not installed."""
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError:
        raise InvalidRequest("this command needs PyTorch.", hint="pip install 'remat[torch]'", field="torch") from None


def _checked(step: object, reference: str) -> Step:
    from remat.torch import Step

    if not isinstance(step, Step):
        raise InvalidRequest(
            f"{reference} returned {type(step).__name__}, not a remat.Step.",
            hint="Return remat.Step(model, args=(...), loss_fn=..., optimizer=...).",
            field="factory",
        )
    return step
