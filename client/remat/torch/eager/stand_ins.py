"""Putting something else into the place of modules' calls, and taking it out again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from remat.torch.eager.plan import RegionPlan, nothing_saved
from remat.torch.eager.region_call import RegionCall
from remat.torch.eager.regions import Regions, own_call


def installed(modules: dict[str, nn.Module]) -> dict[str, RegionCall]:
    """Puts a `RegionCall` into every module's slot; all left alone at first."""
    calls = {path: RegionCall(path, module) for path, module in modules.items()}
    for path, module in modules.items():
        module._compiled_call_impl = calls[path]
    return calls


def apply_regions(calls: dict[str, RegionCall], plans: dict[str, RegionPlan | None]) -> None:
    """Makes each region run by its plan; one without a plan is left alone."""
    for path, call in calls.items():
        call.plan = plans.get(path)


def uninstall(modules: dict[str, nn.Module]) -> None:
    """Takes the `RegionCall`s out again."""
    for module in modules.values():
        if isinstance(module._compiled_call_impl, RegionCall):
            module._compiled_call_impl = None


class _Lenient(RegionCall):
    """Runs the module as it is where PyTorch's checkpoint can't run it (transforms of functions inside, say)."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except RuntimeError:
            return own_call(self.module)(*args, **kwargs)


@contextmanager
def recomputed(modules: Regions) -> Iterator[None]:
    """While the block runs, these modules keep nothing for their backward."""
    former = {path: module._compiled_call_impl for path, module in modules.items()}
    for path, module in modules.items():
        module._compiled_call_impl = stand_in = _Lenient(path, module)
        stand_in.plan = nothing_saved(has_side_effects=False)
    try:
        yield
    finally:
        for path, module in modules.items():
            module._compiled_call_impl = former[path]
