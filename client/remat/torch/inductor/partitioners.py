"""Ways of cutting a joint graph for Inductor: as PyTorch does (watched, or told to save less), and as a schedule says.

Of PyTorch's private names it needs Inductor's `compile_fx`, `CustomPartitionerFn`, `_post_fusion_custom_pass` and
`CppScheduling`, and the partitioner that Inductor uses by default.
"""

from __future__ import annotations

import functools
import hashlib
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import fx
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch.utils.checkpoint import CheckpointPolicy

from remat.torch.build import build
from remat.torch.contract import JointGraph, contract
from remat.torch.inductor.products import keep_products_in_place
from remat_solver.errors import ApplyError, PlanMismatch

Modules = tuple[fx.GraphModule, fx.GraphModule]


@dataclass(kw_only=True, eq=False)
class Sighting:
    """What one compilation showed: the contracted joint graph, and the kernels of forward and backward.

    A kernel is the names of the joint graph's nodes in it. `stored` are the nodes whose results some kernel writes to
    memory; every other result exists in registers only.
    """

    joint: JointGraph | None = None
    kernels: list[frozenset[str]] = field(default_factory=list)
    stored: set[str] = field(default_factory=set)

    @property
    def seen(self) -> frozenset[str]:
        """Every node that came into a kernel."""
        return frozenset().union(*self.kernels)

    def note(self, nodes: list[Any]) -> None:
        """Takes in the scheduler's nodes of one graph, after fusion."""
        for node in nodes:
            parts = [part for part in node.get_nodes() if part.node is not None]
            self.kernels.append(frozenset(origin.name for part in parts for origin in part.node.get_origins()))
            inside = {node.get_name(), *(part.get_name() for part in parts)}
            for part in parts:
                users = {user.get_name() for buffer in part.get_outputs() for user in buffer.users}
                if not users <= inside:  # else fusing it with all its readers left it in registers
                    known = part.node.get_origin_node()
                    self.stored.update([known.name] if known is not None else _last(part.node.get_origins()))


def _last(origins: Iterable[fx.Node]) -> set[str]:
    """Those that none of the others reads."""
    nodes = set(origins)
    return {node.name for node in nodes if not nodes & node.users.keys()}


class _WatchedPartitioner(CustomPartitionerFn):
    """PyTorch's own partitioner; the joint graph is contracted on the way."""

    def __init__(self, sighting: Sighting) -> None:
        self.sighting = sighting

    def __call__(self, gm: fx.GraphModule, joint_inputs: Sequence[object], **hints: Any) -> Modules:
        self.sighting.joint = contract(gm, forward_output_count=hints["num_fwd_outputs"], eager_kernels=False)
        cut: Modules = min_cut_rematerialization_partition(gm, joint_inputs, **hints)
        return cut

    def uuid(self) -> str:
        return "remat watches"

    def __deepcopy__(self, _memo: Any) -> _WatchedPartitioner:
        return self  # configurations are copied, and what was seen is to end up here


class _ThriftyPartitioner(CustomPartitionerFn):
    """PyTorch's own partitioner with a setting of `activation_memory_budget`.

    Left to itself it would draw the noise of a dropout anew in the backward.
    """

    def __init__(self, memory_budget: float) -> None:
        self.memory_budget = memory_budget

    def __call__(self, gm: fx.GraphModule, joint_inputs: Sequence[object], **hints: Any) -> Modules:
        for node in gm.graph.nodes:
            if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
                node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        with torch._functorch.config.patch(activation_memory_budget=self.memory_budget):
            cut: Modules = min_cut_rematerialization_partition(gm, joint_inputs, **hints)
        return cut

    def uuid(self) -> str:
        return f"remat saves less: {self.memory_budget}"

    def __deepcopy__(self, _memo: Any) -> _ThriftyPartitioner:
        return self


class _PlannedPartitioner(CustomPartitionerFn):
    """Cuts as `schedule` says, which was made for a graph of the given structure."""

    def __init__(self, schedule: tuple[int, ...], structure_hash: str) -> None:
        self.schedule = schedule
        self.structure_hash = structure_hash

    def __call__(self, gm: fx.GraphModule, joint_inputs: Sequence[object], **hints: Any) -> Modules:
        joint = contract(gm, forward_output_count=hints["num_fwd_outputs"], eager_kernels=False)
        if joint.graph.structure_hash != self.structure_hash:
            raise PlanMismatch(
                "the model was traced to another graph than the one that was planned.",
                hint="Something that the trace depends on changed (requires_grad, a flag): compile the model anew.",
            )
        built = build(joint, self.schedule)
        keep_products_in_place(built.forward.graph)
        keep_products_in_place(built.backward.graph)
        return built.forward, built.backward

    def uuid(self) -> str:
        """What PyTorch's caches know the plan by."""
        return hashlib.sha256(repr(("one by one", self.structure_hash, self.schedule)).encode()).hexdigest()

    def __deepcopy__(self, _memo: Any) -> _PlannedPartitioner:
        return self


Backend = Callable[..., Any]
_DEFAULTS: Mapping[str, Any] = {}


def plain_backend(settings: Mapping[str, Any] = _DEFAULTS) -> Backend:
    """What `torch.compile` does by itself, or under further settings."""
    return _backend(settings)


def watched_backend(sighting: Sighting) -> Backend:
    """The same, with what happened noted in `sighting`."""

    def note(nodes: list[Any]) -> list[Any]:
        sighting.note(nodes)
        return nodes

    return _backend({"custom_partitioner_fn": _WatchedPartitioner(sighting), "_post_fusion_custom_pass": note})


def thrifty_backend(memory_budget: float) -> Backend:
    """What `torch.compile` does under this `activation_memory_budget`, with the noise of dropouts drawn once."""
    return _backend({"custom_partitioner_fn": _ThriftyPartitioner(memory_budget)})


def planned_backend(schedule: tuple[int, ...], structure_hash: str, settings: Mapping[str, Any] = _DEFAULTS) -> Backend:
    """Compiles what the schedule says, under further settings. Raises `PlanMismatch` where another graph arrives."""
    return _backend({"custom_partitioner_fn": _PlannedPartitioner(schedule, structure_hash), **settings}, _one_by_one)


def _backend(settings: Mapping[str, Any], compiling: Callable[[Backend], Backend] = lambda inner: inner) -> Backend:
    """A backend of its own, since Dynamo does not look at settings. PyTorch's cache of cut graphs can't know plans.

    `compiling` wraps what compiles a graph, be it the forward's at once or the backward's later.
    """

    def backend(module: fx.GraphModule, inputs: Sequence[Any], **_options: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner  # a second that other modes need not wait

        with torch._functorch.config.patch(enable_autograd_cache=False):
            return compile_fx(module, list(inputs), compiling(compile_fx_inner), config_patches=dict(settings))

    return backend


def _one_by_one(compile_graph: Backend) -> Backend:
    """On the CPU, a call for each kernel: Inductor would put all that stand between two library calls into one.

    Their buffers then all exist at once, those of a recomputed kernel beside those that its reader could free first.
    """

    @functools.wraps(compile_graph)
    def compile_one_by_one(*args: Any, **kwargs: Any) -> Any:
        from torch._inductor.codegen.cpp import CppScheduling

        with patch.object(CppScheduling, "MAX_FUSED_KERNEL_ARGS_NUM", 0):
            return compile_graph(*args, **kwargs)

    return compile_one_by_one


def require_compiler(device: torch.device) -> None:
    """Raises `ApplyError` where Inductor has nothing to compile with: it needs g++ and Python.h for the CPU."""
    if device.type != "cpu":
        return
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise ApplyError(
            "inductor mode needs a C++ compiler for the CPU, and none was found.",
            hint='Install one (apt-get install g++) or name it in CXX; mode="exact" needs none.',
        ) from None
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        raise ApplyError(
            "inductor mode needs Python's headers for the CPU, and Python.h was not found.",
            hint='Install them (apt-get install python3-dev); mode="exact" needs none.',
        )
