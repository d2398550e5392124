"""A step as Inductor compiles it by itself: what plans for any budget start from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from remat.torch.allocation import main_device, tensors_in
from remat.torch.contract import JointGraph
from remat.torch.inductor.fusion import FusedGraph, fuse
from remat.torch.inductor.kernel_costs import with_kernel_times
from remat.torch.inductor.partitioners import (
    Backend,
    Sighting,
    plain_backend,
    planned_backend,
    require_compiler,
    thrifty_backend,
    watched_backend,
)
from remat.torch.inductor.trials import Bench, Trial
from remat.torch.resident import fixed_bytes, model_tensors
from remat.torch.step import Step
from remat_solver.errors import ApplyError
from remat_solver.graph import Graph
from remat_solver.simulate import simulate, store_all_schedule

Measure = Callable[[Graph], Graph]
Settings = Mapping[str, Any]
"""Of Inductor, to change."""


@dataclass(kw_only=True, eq=False)
class Surveyed:
    """The plain compiled step, and what was learned of ways to cut it, for all budgets."""

    bench: Bench
    plain: Trial
    joint: JointGraph
    sighting: Sighting
    measure: Measure
    thrifty_peaks: dict[float, int] = field(default_factory=dict)
    """Peaks of PyTorch's own cuts, by memory budget, as far as they were asked for."""
    excesses_bytes: dict[tuple[tuple[str, Any], ...], int] = field(default_factory=dict)
    """What `excess_bytes` found, by settings."""

    @cached_property
    def fused(self) -> FusedGraph:
        """The graph of kernels, with their costs; measures ops when it is first asked for."""
        fused = fuse(self.joint, self.sighting.seen, self.sighting.stored)
        fused = with_kernel_times(fused, self.measure(self.joint.graph))
        return replace(fused, graph=replace(fused.graph, fixed_bytes=self.bench.resident_bytes))

    def backend(self, schedule: Sequence[int], settings: Settings) -> Backend:
        """Compiles a schedule of kernels."""
        return planned_backend(self.fused.unfused(schedule), self.joint.graph.structure_hash, settings)

    def excess_bytes(self, settings: Settings) -> int:
        """How much higher than rehearsed the peak of the schedule without recomputation is predicted."""
        key = tuple(settings.items())
        if key not in self.excesses_bytes:
            schedule = store_all_schedule(self.fused.graph)
            rehearsed = self.bench.rehearsed_peak(self.backend(schedule, settings))
            self.excesses_bytes[key] = simulate(self.fused.graph, schedule).peak_bytes - rehearsed
        return self.excesses_bytes[key]

    def thrifty_peak(self, memory_budget: float) -> int:
        """The rehearsed peak of PyTorch's own cut under this `activation_memory_budget`."""
        if memory_budget not in self.thrifty_peaks:
            self.thrifty_peaks[memory_budget] = self.bench.rehearsed_peak(thrifty_backend(memory_budget))
        return self.thrifty_peaks[memory_budget]

    @cached_property
    def layouts(self) -> tuple[Settings, ...]:
        """Settings to compile schedules under, each tried where nothing fits under those before.

        On the CPU Inductor copies the weights of convolutions for another layout, into memory that a plan can't
        recompute. Some networks gain a tenth of their time by it; where nothing is gained they are left as they lie.
        """
        if self.bench.device.type != "cpu" or not any("convolution" in op.name for op in self.joint.graph.ops):
            return ({},)
        as_they_lie = {"layout_optimization": False}
        lean = self.bench.run(plain_backend(as_they_lie))
        copied_s, lean_s = self.bench.seconds([self.plain.call, lean.call])
        return (as_they_lie,) if lean_s <= copied_s else ({}, as_they_lie)


def survey(step: Step, *, reserve_bytes: int = 0, measure: Measure) -> Surveyed:
    """Compiles `step` plainly, runs it, and notes what Inductor made of it. Raises `ApplyError` without a compiler."""
    device = main_device(step.model.parameters())
    require_compiler(device)
    tensors = [*model_tensors(step.model), *tensors_in((step.args, dict(step.kwargs or {})))]
    resident = fixed_bytes(tensors, [], step.optimizer, device) + reserve_bytes
    bench = Bench(step=step, device=device, resident_bytes=resident)
    sighting = Sighting()
    plain = bench.run(watched_backend(sighting))
    if sighting.joint is None:
        raise ApplyError(
            "the compiled step has no backward to plan.", hint="Call the model in training mode, with gradients on."
        )
    return Surveyed(bench=bench, plain=plain, joint=sighting.joint, sighting=sighting, measure=measure)
