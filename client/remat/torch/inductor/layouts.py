"""Memory orders that Inductor may choose for convolutions, and what kernels cost under each.

On the CPU, unless told not to, Inductor hands every two-dimensional convolution its images with channels last, whatever
order the model keeps. There a convolution needs next to no workspace, where one on channels first may copy all that it
reads, and its time is another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from remat.torch.contract import JointGraph
from remat.torch.inductor.fusion import FusedGraph, fuse
from remat.torch.inductor.kernel_costs import with_kernel_times
from remat.torch.inductor.partitioners import Backend, Sighting, planned_backend
from remat.torch.inductor.trials import Bench
from remat.torch.signature import TensorSpec, decode, signature_of
from remat_solver.graph import Graph, Op
from remat_solver.simulate import simulate, store_all_schedule

Measure = Callable[[Graph], Graph]
Settings = Mapping[str, Any]
"""Of Inductor, to change."""

AS_THEY_LIE: Settings = {"layout_optimization": False}
"""Convolutions read images and weights in the order in which the model keeps them."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A memory order, named by the settings that bring it about: what kernels cost under it, and how plans compile."""

    settings: Settings
    bench: Bench
    joint: JointGraph
    sighting: Sighting
    measure: Measure

    @cached_property
    def fused(self) -> FusedGraph:
        """The graph of kernels, with their costs; measures ops when it is first asked for."""
        graph = self.joint.graph
        if self.bench.device.type == "cpu" and self.settings != AS_THEY_LIE:
            graph = with_channels_last(graph)
        fused = fuse(self.joint, self.sighting.seen, self.sighting.stored)
        fused = with_kernel_times(fused, self.measure(graph))
        return replace(fused, graph=replace(fused.graph, fixed_bytes=self.bench.resident_bytes))

    def backend(self, schedule: Sequence[int]) -> Backend:
        """Compiles a schedule of kernels."""
        return planned_backend(self.fused.unfused(schedule), self.joint.graph.structure_hash, self.settings)

    @cached_property
    def excess_bytes(self) -> int:
        """How much higher than rehearsed the simulator puts the peak of the schedule without recomputation.

        Every other schedule is off by about as much.
        """
        schedule = store_all_schedule(self.fused.graph)
        return simulate(self.fused.graph, schedule).peak_bytes - self.bench.rehearsed_peak(
            self.backend(schedule), "the step without recomputation"
        )


def with_channels_last(graph: Graph) -> Graph:
    """The graph whose two-dimensional convolutions, and their backwards, read everything with channels last."""
    return replace(graph, ops=tuple(_with_channels_last(op) if is_convolution(op) else op for op in graph.ops))


def is_convolution(op: Op) -> bool:
    """Whether the op is a convolution, or the backward of one."""
    return op.signature.startswith('["aten.convolution')


def _with_channels_last(op: Op) -> Op:
    target, args, kwargs = decode(op.signature)
    laid = [_channels_last(argument) for argument in args]
    return replace(op, signature=signature_of(target, laid, kwargs))


def _channels_last(argument: Any) -> Any:
    if not isinstance(argument, TensorSpec) or len(argument.shape) != 4:
        return argument
    _, channels, height, width = argument.shape
    stride = (channels * height * width, 1, width * channels, channels)
    storage_bytes = argument.numel * argument.dtype.itemsize
    return replace(argument, stride=stride, storage_offset=0, storage_bytes=storage_bytes)
