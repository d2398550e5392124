"""A step as Inductor compiles it by itself: what plans for any budget start from."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial

from remat.torch.allocation import main_device, tensors_in
from remat.torch.contract import JointGraph
from remat.torch.inductor.layouts import AS_THEY_LIE, Layout, Measure, is_convolution
from remat.torch.inductor.partitioners import (
    Sighting,
    plain_backend,
    require_compiler,
    thrifty_backend,
    watched_backend,
)
from remat.torch.inductor.trials import Bench, Trial
from remat.torch.progress import Show
from remat.torch.resident import fixed_bytes, model_tensors
from remat.torch.step import Step
from remat_solver.errors import ApplyError


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

    def thrifty_peak(self, memory_budget: float) -> int:
        """The rehearsed peak of PyTorch's own cut under this `activation_memory_budget`."""
        if memory_budget not in self.thrifty_peaks:
            self.thrifty_peaks[memory_budget] = self.bench.rehearsed_peak(
                thrifty_backend(memory_budget), f"PyTorch's own cut at {memory_budget}"
            )
        return self.thrifty_peaks[memory_budget]

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """Layouts to compile schedules under, each tried where nothing fits under those before.

        For channels last Inductor copies the weights of convolutions, into memory that a plan can't recompute. Some
        networks gain a tenth of their time by it; where nothing is gained they are left as they lie.
        """
        layout = partial(Layout, bench=self.bench, joint=self.joint, sighting=self.sighting, measure=self.measure)
        chosen_by_inductor = layout(settings={})
        if self.bench.device.type != "cpu" or not any(map(is_convolution, self.joint.graph.ops)):
            return (chosen_by_inductor,)
        as_they_lie = layout(settings=AS_THEY_LIE)
        lean = self.bench.run(plain_backend(AS_THEY_LIE), "the plain step with convolutions as they lie")
        copied_s, lean_s = self.bench.seconds([self.plain.call, lean.call])
        return (as_they_lie,) if lean_s <= copied_s else (chosen_by_inductor, as_they_lie)


def survey(step: Step, *, reserve_bytes: int = 0, measure: Measure, show: Show = nullcontext) -> Surveyed:
    """Compiles `step` plainly, runs it, and notes what Inductor made of it. Raises `ApplyError` without a compiler."""
    device = main_device(step.model.parameters())
    require_compiler(device)
    tensors = [*model_tensors(step.model), *tensors_in((step.args, dict(step.kwargs or {})))]
    resident = fixed_bytes(tensors, [], step.optimizer, device) + reserve_bytes
    bench = Bench(step=step, device=device, resident_bytes=resident, show=show)
    sighting = Sighting()
    plain = bench.run(watched_backend(sighting), "the plain step")
    if sighting.joint is None:
        raise ApplyError(
            "the compiled step has no backward to plan.", hint="Call the model in training mode, with gradients on."
        )
    return Surveyed(bench=bench, plain=plain, joint=sighting.joint, sighting=sighting, measure=measure)
