"""Out of memory in spite of a plan: the step is run again, by a plan with a smaller budget.

A plan bounds what PyTorch allocates. The device can still run out: others share it, memory is fragmented, or something
outside the model takes more than was set aside. In the forward the call is made again. In the backward no gradient has
arrived yet (those of a planned step are handed over together), so that the forward runs once more by the new plan, from
the random state and the buffers that it began with, and the backward after it. Nobody's state is touched.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, fx

from remat.torch import random_state
from remat.torch.contract import JointGraph
from remat.torch.executor import BoxedFunction, boxed_function

OnOom = Literal["raise", "replan"]

STEP = 0.1
"""How much smaller each further budget is, as a share of what it holds beyond the resident bytes."""

_REQUEST = re.compile(r"Tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """What was allocated when an allocation failed (None where nobody counts), and what was asked for on top."""

    held_bytes: int | None
    requested_bytes: int


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator failed. The CPU's raises a plain RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return type(error) is RuntimeError and "DefaultCPUAllocator: can't allocate memory" in str(error)


def shortage_of(error: BaseException, device: torch.device) -> Shortage:
    """What is known of a failure; to be asked before anything is freed."""
    found = _REQUEST.search(str(error))
    requested = int(float(found[1]) * _UNITS[found[2]]) if found else 0
    held = torch.cuda.memory_allocated(device) if device.type == "cuda" else None
    return Shortage(held_bytes=held, requested_bytes=requested)


def smaller_budget(peak_bytes: int, fixed_bytes: int, shortage: Shortage) -> int:
    """The budget after a plan with this peak failed, `fixed_bytes` included."""
    limit = peak_bytes
    if shortage.held_bytes is not None:
        limit = min(limit, shortage.held_bytes + shortage.requested_bytes)
    return limit - int(STEP * max(limit - fixed_bytes, 0)) - 1


def release_cached(device: torch.device) -> None:
    """Gives freed blocks back to the device, whose fragments may have been in the way."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def random_states(device: torch.device) -> dict[torch.device, Tensor]:
    """The states of the generators that a call on `device` may draw from."""
    return {drawn: random_state.read(drawn) for drawn in {torch.device("cpu"), device}}


def kept_bytes(joint: JointGraph) -> int:
    """What repeating takes beside the plan: copies of changing buffers, and two random states."""
    devices = {device.type: device for device in joint.random_devices.values()}
    return 2 * sum(map(random_state.state_bytes, devices.values())) + joint.mutated_bytes


Replan = Callable[[JointGraph, Shortage], tuple[fx.GraphModule, fx.GraphModule]]
"""Makes the forward and backward of a smaller budget; raises if nothing smaller fits."""


@dataclass(kw_only=True)
class Repeatable:
    """One planned graph whose backward, if it runs out of memory, begins anew by another plan."""

    joint: JointGraph
    replan: Replan
    inputs: list[Any] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    states: dict[torch.device, Tensor] = field(default_factory=dict)
    saved: list[int] = field(default_factory=list)
    """Where the last forward's saved tensors lie: a backward that brings others belongs to an earlier call."""

    def __deepcopy__(self, _memo: dict[int, Any]) -> Repeatable:
        """Itself: PyTorch copies the modules that carry it, and forward and backward must share it."""
        return self

    def guard(self, phase: str, run: BoxedFunction) -> BoxedFunction:
        """What is called in place of the "forward" or "backward" `run`."""
        return self.guard_forward(run) if phase == "forward" else self.guard_backward(run)

    def guard_forward(self, run: BoxedFunction) -> BoxedFunction:
        """`run`, which remembers what it began with."""

        def forward(args: list[Any]) -> tuple[Any, ...]:
            self._forget()
            changing = self.joint.mutated_inputs
            inputs = [arg.clone() if place in changing else arg for place, arg in enumerate(args)]
            versions = _versions(inputs)
            states = {device: random_state.read(device) for device in set(self.joint.random_devices.values())}
            results = run(args)
            self.inputs, self.versions, self.states = inputs, versions, states
            self.saved = _places(results[len(self.joint.forward_outputs) :])
            return results

        return _boxed(forward)

    def guard_backward(self, run: BoxedFunction) -> BoxedFunction:
        """`run`, and where it fails for lack of memory the whole step by a smaller plan."""

        def backward(args: list[Any]) -> tuple[Any, ...]:
            count = len(args) - self.joint.tangents
            tangents, saved = args[count:], _places(args[:count])
            try:
                gradients = run(args)
            except RuntimeError as error:
                if not is_out_of_memory(error) or not self._can_repeat(saved):
                    raise
                shortage = shortage_of(error, self.joint.device)
            else:
                self._forget()
                return gradients
            return self._repeat(shortage, tangents)  # outside of `except`: the traceback held what the run had made

        return _boxed(backward)

    def _can_repeat(self, saved: list[int]) -> bool:
        same_call = bool(self.inputs) and saved == self.saved
        return same_call and not self.joint.has_effects and _versions(self.inputs) == self.versions

    def _repeat(self, shortage: Shortage, tangents: list[Any]) -> tuple[Any, ...]:
        while True:
            release_cached(self.joint.device)
            forward, backward = self.replan(self.joint, shortage)
            try:
                gradients = self._run(boxed_function(forward), boxed_function(backward), tangents)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                shortage = shortage_of(error, self.joint.device)
            else:
                self._forget()
                return gradients

    def _run(self, forward: BoxedFunction, backward: BoxedFunction, tangents: list[Any]) -> tuple[Any, ...]:
        with torch.no_grad(), torch.autocast(self.joint.device.type, enabled=False):
            present = {device: random_state.read(device) for device in self.states}
            for device, state in self.states.items():
                random_state.write(state, device)
            try:
                arguments = list(forward(list(self.inputs)))
            finally:
                for device, state in present.items():
                    random_state.write(state, device)
            del arguments[: len(self.joint.forward_outputs)]
            arguments += tangents
            return backward(arguments)

    def _forget(self) -> None:
        self.inputs, self.versions, self.states, self.saved = [], [], {}, []


def _boxed(function: BoxedFunction) -> BoxedFunction:
    function._boxed_call = True  # type: ignore[attr-defined]
    return function


def _versions(inputs: list[Any]) -> list[int]:
    return [tensor._version for tensor in inputs if isinstance(tensor, Tensor) and not tensor.is_inference()]


def _places(tensors: Any) -> list[int]:
    return sorted(tensor.data_ptr() for tensor in tensors if isinstance(tensor, Tensor))
