"""Running one region by its plan, and refusing whatever would change gradients without a word.

A recomputed region runs under `torch.utils.checkpoint` (non-reentrant), which restores the generator state at its
entry. What that alone would get wrong is taken care of here:

* every result that the plan saves must turn up in the forward, or the call is refused;
* where random results are saved, the random ops must be those that were planned: one more behind them would get their
  numbers when it runs again;
* a BatchNorm runs again without its running statistics, and in-place ops on memory that the recompute did not make
  are passed over: both were done once;
* a parameter, a buffer or an argument that was changed in place between the two runs is refused, as PyTorch itself
  does with positional tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from remat.torch.allocation import tensors_in
from remat.torch.eager.plan import RegionPlan
from remat.torch.eager.regions import own_call
from remat.torch.eager.saving import Reusing, Saving
from remat_solver.errors import ApplyError

_ANOTHER_PATH = "The module takes another path than when it was planned: plan it again, or leave it out."


class Watcher(Protocol):
    """Is told when regions begin and end (in a trial step)."""

    def entered(self, path: str) -> None: ...
    def left(self, path: str) -> None: ...
    def recomputing(self, path: str) -> None: ...


class RegionCall:
    """Stands in for a module's call. `plan` is None where the region is left alone."""

    def __init__(self, path: str, module: nn.Module) -> None:
        self.path = path
        self.module = module
        self.plan: RegionPlan | None = None
        self.watcher: Watcher | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return own_call(self.module)(*args, **kwargs)
        if self.watcher:
            self.watcher.entered(self.path)
        result = own_call(self.module)(*args, **kwargs) if self.plan is None else self._checkpointed(args, kwargs)
        if self.watcher:
            self.watcher.left(self.path)
        return result

    def _checkpointed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert self.plan is not None
        nested = [argument for argument in args if not isinstance(argument, Tensor)]
        run = _Run(self, self.plan, [*tensors_in((nested, kwargs)), *self.module.parameters(), *self.module.buffers()])

        def call(_anchor: Tensor | None, *positional: Any) -> Any:
            return own_call(self.module)(*positional, **kwargs)

        # The device whose generator is kept is taken from positional tensors.
        anchor = next((t for t in tensors_in((args, kwargs)) if t.device.type != "cpu"), None)
        result = checkpoint(call, anchor, *args, use_reentrant=False, context_fn=run.contexts)
        run.check_forward()
        return result


class _Run:
    """One forward of a region and what belongs to it: counters of its own, and the versions of what it read."""

    def __init__(self, region: RegionCall, plan: RegionPlan, watched: list[Tensor]) -> None:
        self.path = region.path
        self.watcher = region.watcher
        self.plan = plan
        self.watched = watched
        self.versions = self._versions()
        self.has_side_effects = plan.has_side_effects
        self.saving = Saving(plan)

    def contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """What checkpoint enters around the forward, and around the recompute."""
        return self.saving if self.plan.saved else nullcontext(), _Entering(self._recomputing)

    def check_forward(self) -> None:
        """Raises `ApplyError` if the region took another path than the plan is for; then notes versions."""
        missing = self.plan.saved - self.saving.kept.keys()
        if missing:
            op, occurrence = min(missing)
            raise ApplyError(
                f"{self.path} did not run {op} a {occurrence + 1}. time, whose result the plan saves "
                f"({len(missing)} of {len(self.plan.saved)} missing).",
                hint=_ANOTHER_PATH,
            )
        if tuple(self.saving.draws) != self.plan.draws:
            raise ApplyError(
                f"{self.path} drew random numbers {len(self.saving.draws)} times, and not as in the "
                f"{len(self.plan.draws)} draws that were planned.",
                hint=_ANOTHER_PATH,
            )
        self.has_side_effects = self.plan.has_side_effects or self._versions() != self.versions
        self.versions = self._versions()

    def _versions(self) -> list[int]:
        return [tensor._version for tensor in self.watched]

    @contextmanager
    def _recomputing(self) -> Iterator[None]:
        for tensor, version, present in zip(self.watched, self.versions, self._versions(), strict=True):
            if present != version:
                raise ApplyError(
                    f"a tensor of shape {list(tensor.shape)} that {self.path} read was changed in place after it ran.",
                    hint="Run without in-place ops on the inputs or buffers of this module, or leave it out.",
                )
        if self.watcher:
            self.watcher.recomputing(self.path)
        try:
            if self.plan.saved or self.has_side_effects:
                with Reusing(self.plan, self.saving.kept, has_side_effects=self.has_side_effects):
                    yield
            else:
                yield
        finally:  # checkpoint stops a recompute early, by an exception
            self.versions = self._versions()  # writes that were passed over count too


class _Entering:
    """A context manager that can be entered again: a backward with `retain_graph=True` may be."""

    def __init__(self, make: Any) -> None:
        self.make = make
        self.open: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> None:
        self.open.append(self.make())
        self.open[-1].__enter__()

    def __exit__(self, *exception: Any) -> bool | None:
        return self.open.pop().__exit__(*exception)
