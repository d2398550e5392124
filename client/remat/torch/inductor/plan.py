"""What inductor mode decided for a model, what was predicted, and what its trial steps measured."""

from __future__ import annotations

from dataclasses import dataclass

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

    `plan` is the solver's, over kernels; None where what PyTorch compiles by itself is within the budget.
    `plain_peak_bytes` is what that takes, measured. `measured_peak_bytes` is that of a trial step.
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
    largest_difference: float
    trials: int
    plan_s: float

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
        overhead = "nothing is planned" if self.plan is None else f"{self.plan.overhead:.1%} predicted"
        return [
            ("budget", f"{format_bytes(self.budget_bytes)}, {format_bytes(self.fixed_bytes)} of it fixed"),
            ("plain compiled peak", f"{format_bytes(self.plain_peak_bytes)} (measured)"),
            ("predicted peak", format_bytes(self.predicted_peak_bytes)),
            ("measured peak", f"{format_bytes(self.measured_peak_bytes)} ({self.trials} plans tried)"),
            ("compute overhead", overhead),
            ("kernels", f"{self.kernels} of {self.ops} ops; {again} kernel runs more than once"),
            ("exactness", "equal to the plain compiled step up to rounding, not to the bit"),
            ("largest difference", f"{self.largest_difference:.1e} of a tensor's norm"),
            ("planning took", f"{self.plan_s:.1f} s"),
        ]
