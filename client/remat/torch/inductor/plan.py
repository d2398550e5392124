"""What inductor mode decided for a model, what was predicted, and what its trial steps measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from remat.torch.printed import Printed, facts_table
from remat_solver.budget import format_bytes
from remat_solver.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Recomputed:
    """A kernel that runs `recomputes` times more than once. `time_ns` is for all of these, as if it ran by itself."""

    name: str
    recomputes: int
    time_ns: int


@dataclass(frozen=True, kw_only=True)
class InductorPlan(Printed):
    """A plan for one input shape. Peaks are bytes with everything included.

    `plan` is the solver's, over kernels; None where PyTorch's own partitioner cut the step. `settings` are those of
    PyTorch under which it is compiled, where they differ from what they are by themselves. `plain_peak_bytes` is what
    the plain compiled step takes, measured. `measured_peak_bytes` is that of a trial step, `measured_overhead` its time
    beyond the plain one's.
    `largest_difference` is that of the planned step's outputs, gradients and buffers from the plain compiled one's: the
    norm of the difference over the norm, in the tensor where it is largest.
    """

    plan: Plan | None
    ops: int
    kernels: int
    recomputed: tuple[Recomputed, ...]
    budget_bytes: int
    fixed_bytes: int
    plain_peak_bytes: int
    predicted_peak_bytes: int
    measured_peak_bytes: int
    settings: Mapping[str, object] = field(default_factory=dict)
    measured_overhead: float = 0.0
    largest_difference: float = 0.0
    trials: int = 0
    plan_s: float = 0.0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The facts, then the costliest kernels that run again."""
        yield facts_table("inductor mode", self._facts())
        if self.recomputed:
            table = Table("kernel", "runs again", "time", box=None, pad_edge=False)
            for kernel in self.recomputed[:10]:
                table.add_row(kernel.name, str(kernel.recomputes), f"{kernel.time_ns / 1e6:.2f} ms")
            yield table

    def _facts(self) -> list[tuple[str, str]]:
        again = sum(kernel.recomputes for kernel in self.recomputed)
        overhead = f"{self.measured_overhead:.1%} measured over the plain compiled step"
        if self.plan is not None:
            overhead += f", {self.plan.overhead:.1%} predicted over no recomputation"
        return [
            ("budget", f"{format_bytes(self.budget_bytes)}, {format_bytes(self.fixed_bytes)} of it fixed"),
            ("plain compiled peak", f"{format_bytes(self.plain_peak_bytes)} (measured)"),
            ("predicted peak", format_bytes(self.predicted_peak_bytes)),
            ("measured peak", f"{format_bytes(self.measured_peak_bytes)} ({self.trials} ways tried)"),
            ("cut by", self.cut_by),
            ("compute overhead", overhead),
            ("kernels", f"{self.kernels} of {self.ops} ops; {again} kernel runs more than once"),
            ("exactness", "equal to the plain compiled step up to rounding, not to the bit"),
            ("largest difference", f"{self.largest_difference:.1e} of a tensor's norm"),
            ("planning took", f"{self.plan_s:.1f} s"),
        ]

    @property
    def cut_by(self) -> str:
        """Whose way of cutting the step was taken, and under which settings."""
        by = "a schedule of ours" if self.plan else "PyTorch's own partitioner"
        return ", ".join([by, *(f"{name}={value}" for name, value in self.settings.items())])
