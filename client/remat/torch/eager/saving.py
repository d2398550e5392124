"""The dispatch modes around a region's forward, which keeps what the plan saves, and around its recompute.

They do what PyTorch's `create_selective_checkpoint_contexts` does, for a set of results that is known beforehand, so
that nobody is asked at each op. Of PyTorch's private names `Kept` needs `torch._C._SetExcludeDispatchKeyGuard`.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from remat.torch import batch_norm, random_state
from remat.torch.allocation import storage_key, tensors_in
from remat.torch.eager.plan import OpCall, RegionPlan
from remat.torch.mutation import is_mutable, named_arguments, written_arguments
from remat_solver.errors import ApplyError


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Knows how many calls of each op came before, as the survey counted them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen: Counter[str] = Counter()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What a compiled part of a region does inside is one op to it."""
        return True

    def _next_call(self, op: Any) -> OpCall:
        name = _name(op)
        count = self._seen[name]
        self._seen[name] = count + 1
        return name, count


class Saving(_Counting):  # type: ignore[no-untyped-call]
    """Keeps the results that `plan` saves in `kept`, and notes the random ops where the plan depends on them."""

    def __init__(self, plan: RegionPlan) -> None:
        super().__init__()
        self.plan = plan
        self.kept: dict[OpCall, Kept] = {}
        self.draws: list[OpCall] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        call = self._next_call(func)
        if call in self.plan.saved:
            self.kept[call] = Kept(result)
        if self.plan.draws and random_state.is_random(func, named_arguments(func, args, kwargs)):
            self.draws.append(call)
        return result


class Reusing(_Counting):  # type: ignore[no-untyped-call]
    """Gives the kept results out, each once, and passes over writes to memory that the recompute did not make."""

    def __init__(self, plan: RegionPlan, kept: dict[OpCall, Kept], *, has_side_effects: bool) -> None:
        super().__init__()
        self.plan = plan
        self.kept = kept
        self.has_side_effects = has_side_effects
        self.made: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = self._next_call(func)
        if call in self.plan.saved:
            result = self._kept(call)
        elif self.has_side_effects:
            kwargs = kwargs or {}
            if batch_norm.writes_in_secret(func):
                args = batch_norm.without_statistics(func, args)
            elif is_mutable(func) and not self._made_all(written_arguments(func, args, kwargs)):
                return args[0]
            result = func(*args, **kwargs)
        else:
            return func(*args, **(kwargs or {}))
        if self.has_side_effects and not func.is_view:
            self.made.update(storage_key(tensor) for tensor in tensors_in(result))
        return result

    def _kept(self, call: OpCall) -> Any:
        if call not in self.kept:
            raise ApplyError(
                f"a second backward came through a region whose results are saved ({call[0]}).",
                hint="Call backward once, or plan the model with a lower budget or none.",
            )
        return self.kept.pop(call).result(call)

    def _made_all(self, written: list[Any]) -> bool:
        return all(storage_key(tensor) in self.made for tensor in tensors_in(written))


class Kept:
    """A result, apart from the history that autograd gives to the original."""

    def __init__(self, result: Any) -> None:
        # In a dispatch mode a detached tensor would count its changes by itself.
        with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
            self._result = pytree.tree_map_only(Tensor, Tensor.detach, result)
        self._versions = _versions(self._result)

    def result(self, call: OpCall) -> Any:
        """The result; raises `ApplyError` if it was changed in place since."""
        if _versions(self._result) != self._versions:
            raise ApplyError(
                f"a result of {call[0]} that the plan saves was changed in place.",
                hint="The module takes another path than when it was planned: plan it again, or leave it out.",
            )
        return self._result


def _versions(result: Any) -> list[int]:
    return [tensor._version for tensor in tensors_in(result)]


@cache
def _name(op: Any) -> str:
    return str(op)
