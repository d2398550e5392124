"""What each region does: its ops in order, what saving a result would hold, and what its backward keeps.

The model runs once as it trains, but that its regions keep nothing for a backward. When it comes to a region, that runs
beforehand on copies of its inputs, watched op by op; generators and buffers are put back. So no more is ever in memory
than one region's own activations and what lies outside of all.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from remat.torch import batch_norm, random_state
from remat.torch.allocation import main_device, storage_bytes, storage_key, tensors_in
from remat.torch.autocast import forget_casts
from remat.torch.both_ways import forked_generators, forked_randomness
from remat.torch.eager.plan import OpCall, nothing_saved
from remat.torch.eager.region_call import RegionCall
from remat.torch.eager.regions import Regions, own_call
from remat.torch.eager.rerun import rerun_ns
from remat.torch.mutation import is_mutable, named_arguments, returns_its_target, written_arguments
from remat.torch.signature import is_collective, signature_of
from remat.torch.step import Step
from remat_solver.errors import CaptureError
from remat_solver.graph import Graph, Op
from remat_solver.save_sets import Region, RegionOp


@dataclass(kw_only=True)
class SurveyedOp:
    """One op call. `signature` is empty where it takes no time (views)."""

    call: OpCall
    signature: str
    size_bytes: int
    savable: bool
    random: bool


@dataclass(frozen=True, kw_only=True)
class SurveyedRegion:
    """A region's ops up to the last that its backward needs, and the bytes that autograd keeps for it.

    `draws` are all its random ops, whether needed or not. `has_side_effects` says that it writes what lives outside.
    `obstacle` says why it can't be recomputed; empty if it can. `times_ns` are per op, once they were measured;
    `rerun_ns` is the time of all of it, run again as a recompute.
    """

    ops: tuple[SurveyedOp, ...]
    kept_bytes: int
    draws: tuple[OpCall, ...]
    has_side_effects: bool
    obstacle: str
    times_ns: tuple[int, ...] = ()
    rerun_ns: int = 0

    def as_problem(self) -> Region:
        """The region as the solver sees it. What can't be recomputed is in every trial's figures already."""
        ops = tuple(
            RegionOp(time_ns=time_ns, size_bytes=op.size_bytes, savable=op.savable, random=op.random)
            for op, time_ns in zip(self.ops, self.times_ns, strict=True)
        )
        return Region(
            ops=ops,
            kept_bytes=0 if self.obstacle else self.kept_bytes,
            overhead_ns=max(0, self.rerun_ns - sum(self.times_ns)),
            recomputable=not self.obstacle,
        )

    @property
    def smallest_saved(self) -> frozenset[OpCall]:
        """The least that a plan can save of it: one small result, or nothing."""
        savable = [op for op in self.ops if op.savable and not op.random]
        return frozenset({min(savable, key=lambda op: op.size_bytes).call} if savable else {})


def survey(step: Step, regions: Regions) -> dict[str, SurveyedRegion]:
    """What every region that ran just once does, by path, in the order in which they ran."""
    device = main_device(step.model.parameters())
    found: dict[str, SurveyedRegion] = {}
    calls: Counter[str] = Counter()
    timed: dict[str, int] = {}

    def watch(path: str, module: nn.Module) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[path] += 1
            if calls[path] == 1:
                found[path] = _survey_region(module, args, kwargs, device, timed)
                if not found[path].obstacle:
                    stand_in.plan = nothing_saved(has_side_effects=found[path].has_side_effects)
            return stand_in(*args, **kwargs)

        stand_in = RegionCall(path, module)
        return call

    for path, module in regions.items():
        module._compiled_call_impl = watch(path, module)
    try:
        with torch.enable_grad():
            own_call(step.model)(*step.args, **dict(step.kwargs or {}))
    finally:
        for module in regions.values():
            module._compiled_call_impl = None
    return {path: region for path, region in found.items() if calls[path] == 1}


def with_times(regions: dict[str, SurveyedRegion], measure: Any) -> dict[str, SurveyedRegion]:
    """The regions with the time of every op; each distinct op is measured once, alone, as in a captured graph."""
    signatures = sorted({op.signature for region in regions.values() for op in region.ops if op.signature})
    if not signatures:
        return {path: replace(region, times_ns=(0,) * len(region.ops)) for path, region in regions.items()}
    graph = Graph(ops=tuple(Op(name=text.split(",")[0], time_ns=0, signature=text) for text in signatures))
    times = {op.signature: op.time_ns for op in measure(graph).ops}
    return {
        path: replace(region, times_ns=tuple(times.get(op.signature, 0) for op in region.ops))
        for path, region in regions.items()
    }


def _survey_region(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device, timed: dict[str, int]
) -> SurveyedRegion:
    """Runs the region twice on the same copies: what a second run does otherwise, a recompute would do too.

    PyTorch's random numbers are the same in both, as they are in a recompute; those of Python and NumPy are not. Then
    it is timed, unless one with the same ops was `timed` already.
    """
    try:
        copies = _copies((args, kwargs))
    except (TypeError, RuntimeError) as error:
        return _unsurveyed(f"its arguments can't be copied ({error})")
    try:
        with forked_randomness():
            first, result = _record(module, copies, device)
            second, again = _record(module, copies, device)
            same_ops = [(op.call, op.signature) for op in first.ops] == [(op.call, op.signature) for op in second.ops]
            if not first.obstacle and not (same_ops and _are_equal(result, again)):
                first = replace(first, obstacle=_OTHERWISE)
            return first if first.obstacle or device.type != "cpu" else _timed(first, module, copies, timed)
    except Exception as error:  # whatever it raises: in the model itself it will run, or raise the same
        return _unsurveyed(f"it can't run twice by itself ({type(error).__name__}: {error})")


def _timed(region: SurveyedRegion, module: nn.Module, copies: Any, timed: dict[str, int]) -> SurveyedRegion:
    kind = repr([(op.call, op.signature) for op in region.ops])
    if kind not in timed:
        with _undone(module), torch.enable_grad():
            saved = region.smallest_saved
            timed[kind] = rerun_ns(module, copies, saved, has_side_effects=region.has_side_effects)
    return replace(region, rerun_ns=timed[kind])


_OTHERWISE = "it does something else when it runs a second time (a cache of keys and values? Set use_cache=False)"


def _record(module: nn.Module, copies: Any, device: torch.device) -> tuple[SurveyedRegion, list[Tensor]]:
    """What one run does, and its results without their history."""
    recorder = _Recorder(device=device)
    watching, _ = create_selective_checkpoint_contexts(recorder.note)  # type: ignore[no-untyped-call]
    forget_casts()  # as a recompute finds them
    with _undone(module), torch.enable_grad():
        recorder.outside.update(storage_key(tensor) for tensor in tensors_in(copies))
        with torch.autograd.graph.saved_tensors_hooks(recorder.note_saved, _never), watching:
            result = own_call(module)(*copies[0], **copies[1])
        return recorder.finish(result), [tensor.detach() for tensor in tensors_in(result)]


def _are_equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(
        left.shape == right.shape and torch.equal(left.nan_to_num(), right.nan_to_num())
        for left, right in zip(one, other, strict=True)
    )


def _unsurveyed(obstacle: str) -> SurveyedRegion:
    return SurveyedRegion(ops=(), kept_bytes=0, draws=(), has_side_effects=False, obstacle=obstacle)


def _copies(arguments: Any) -> Any:
    """Copies of all leaves; what comes more than once is one copy (attention asks whether keys *are* the queries)."""
    copies: dict[int, Any] = {}

    def copied(leaf: Any) -> Any:
        if id(leaf) not in copies:
            copies[id(leaf)] = _copy(leaf)
        return copies[id(leaf)]

    return pytree.tree_map(copied, arguments)


def _copy(leaf: Any) -> Any:
    """A copy of a tensor to differentiate by, or of an object that the region may change; modules stay."""
    if isinstance(leaf, Tensor):
        with torch.enable_grad():  # the copy is no leaf, so that it may be changed in place
            return leaf.detach().requires_grad_(leaf.is_floating_point()).clone()
    return leaf if isinstance(leaf, nn.Module) or callable(leaf) else copy.deepcopy(leaf)


def _never(_packed: Any) -> Tensor:
    raise RuntimeError("it takes a gradient inside")


@contextmanager
def _undone(module: nn.Module) -> Iterator[None]:
    """Puts the module's buffers and PyTorch's random states back."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    with forked_generators():
        yield
    with torch.no_grad():
        for buffer, former in buffers:
            buffer.copy_(former)


@dataclass(kw_only=True)
class _Recorder:
    """Notes ops as selective checkpointing counts them, so that plan and run agree on what the n-th call is."""

    device: torch.device
    ops: list[SurveyedOp] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    made: dict[int, int] = field(default_factory=dict)
    """Storage -> the op that made it."""
    sizes: dict[int, int] = field(default_factory=dict)
    alive: list[Any] = field(default_factory=list)
    """Keeps every storage, so that no key is used twice."""
    outside: set[int] = field(default_factory=set)
    read_outside: set[int] = field(default_factory=set)
    """By an op that does not write it: one that is passed over reads nothing."""
    written_outside: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)
    needed: int = 0
    """How many ops had run when autograd saved something for the last time."""
    draws: list[OpCall] = field(default_factory=list)
    has_side_effects: bool = False
    obstacle: str = ""

    def note(self, context: Any, op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        name = str(op)
        call = (name, self.seen[name])
        self.seen[name] += 1
        taken = {storage_key(tensor): tensor for tensor in tensors_in((args, kwargs))}
        for key in taken.keys() - self.made.keys() - self.outside:
            self.outside.add(key)
            self.alive.append(taken[key].untyped_storage())
        results = tensors_in(context.op_output)
        fresh = self._note_results(results)
        is_random = random_state.is_random(op, named_arguments(op, args, kwargs))
        surveyed = SurveyedOp(
            call=call,
            signature=_signature(op, args, kwargs) if fresh or op._schema.is_mutable else "",
            size_bytes=sum(fresh.values()),
            savable=bool(results) and all(storage_key(t) in fresh for t in results) and sum(fresh.values()) > 0,
            random=is_random,
        )
        self.ops.append(surveyed)
        self.draws.extend([call] if is_random else [])
        written = self._note_writes(op, args, kwargs) if is_mutable(op) else set()
        self.read_outside |= (taken.keys() & self.outside) - written
        return CheckpointPolicy.PREFER_RECOMPUTE

    def note_saved(self, tensor: Tensor) -> None:
        """Autograd saves `tensor`."""
        key = storage_key(tensor)
        if key in self.made:
            self.kept.add(key)
        self.needed = len(self.ops)

    def finish(self, result: Any) -> SurveyedRegion:
        """The region, when it has returned `result`: its own caller may change that in place, so it can't be saved."""
        for tensor in tensors_in(result):
            if storage_key(tensor) in self.made:
                self.ops[self.made[storage_key(tensor)]].savable = False
        if self.written_outside & self.read_outside and not self.obstacle:
            self.obstacle = "it changes a tensor in place that it also reads and that lives outside it"
        kept_bytes = sum(self.sizes[key] for key in self.kept)
        return SurveyedRegion(
            ops=tuple(self.ops[: self.needed]),
            kept_bytes=kept_bytes,
            draws=tuple(self.draws),
            has_side_effects=self.has_side_effects,
            obstacle=self.obstacle,
        )

    def _note_results(self, results: list[Tensor]) -> dict[int, int]:
        """The storages that the op made, with their sizes."""
        fresh: dict[int, int] = {}
        for tensor in results:
            key = storage_key(tensor)
            if key in self.outside or key in self.made:
                continue
            fresh[key] = storage_bytes(tensor, self.device)
            self.alive.append(tensor.untyped_storage())
        for key, size_bytes in fresh.items():
            self.made[key] = len(self.ops)
            self.sizes[key] = size_bytes
        return fresh

    def _note_writes(self, op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[int]:
        """The storages that the op writes."""
        keys = {storage_key(tensor) for tensor in tensors_in(written_arguments(op, args, kwargs))}
        for key in keys & self.made.keys():
            self.ops[self.made[key]].savable = False  # by the backward it is no longer what was saved
        outside = keys - self.made.keys()
        self.has_side_effects = self.has_side_effects or bool(outside)
        if batch_norm.writes_in_secret(op):
            return keys  # runs again without what it would write
        self.written_outside |= outside
        if outside and not returns_its_target(op, args, kwargs):
            self.obstacle = f"it writes outside itself through {op}"
        return keys


def _signature(op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Empty for what can't be measured alone: it then counts as free."""
    if is_collective(op):
        return ""
    try:
        return signature_of(op, args, kwargs)
    except CaptureError:
        return ""
