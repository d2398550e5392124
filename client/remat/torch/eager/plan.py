"""What eager mode decided for a model: what each region saves, what was predicted, and what was measured."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from remat.torch.printed import Printed, facts_table
from remat_solver.budget import format_bytes

OpCall = tuple[str, int]
"""An op overload and how many calls of it came before in the same run of the region."""


@dataclass(frozen=True, kw_only=True)
class RegionPlan:
    """How a recomputed region runs.

    `draws` are the random ops that it must run, no more and no less, where some of their results are saved.
    `has_side_effects` says that it writes what lives outside it, which a recompute must not do.
    """

    saved: frozenset[OpCall]
    draws: tuple[OpCall, ...]
    has_side_effects: bool
    saved_bytes: int
    recompute_ns: int


def nothing_saved(*, has_side_effects: bool) -> RegionPlan:
    """The plan by which all of a region runs again."""
    return RegionPlan(saved=frozenset(), draws=(), has_side_effects=has_side_effects, saved_bytes=0, recompute_ns=0)


@dataclass(frozen=True, kw_only=True)
class EagerPlan(Printed):
    """A plan for one input shape. Peaks are bytes with everything included.

    `regions` gives each region's plan; None where it is left alone, with the reason in `left_alone` if it had to be.
    `measured_peak_bytes` is the highest of some trial steps. `recompute_ns` is the time of all that runs again, and
    `bound_ns` the proven least for the budget that was asked of the solver, within this mode's memory model.
    `kept_bytes` is what the model keeps from step to step beside its parameters and buffers (a cached table of
    positions, say): it is in the peaks, and not in `fixed_bytes`.
    """

    regions: dict[str, RegionPlan | None]
    left_alone: dict[str, str]
    budget_bytes: int
    fixed_bytes: int
    kept_bytes: int
    store_all_peak_bytes: int
    predicted_peak_bytes: int
    measured_peak_bytes: int
    recompute_ns: int
    bound_ns: int
    trials: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The facts, then a line for each region."""
        yield facts_table("eager mode", self._facts())
        table = Table("region", "saves", "holds", "runs again", box=None, pad_edge=False)
        for path, region in self.regions.items():
            if region is None:
                table.add_row(path, "what autograd does", "", self.left_alone.get(path, "nothing"))
            else:
                again = f"{region.recompute_ns / 1e6:.2f} ms"
                table.add_row(path, f"{len(region.saved)} results", format_bytes(region.saved_bytes), again)
        yield table

    def _facts(self) -> list[tuple[str, str]]:
        recomputed = sum(region is not None for region in self.regions.values())
        return [
            ("budget", f"{format_bytes(self.budget_bytes)}, {format_bytes(self.fixed_bytes)} of it fixed"),
            ("peak without recomputation", f"{format_bytes(self.store_all_peak_bytes)} (predicted)"),
            ("predicted peak", format_bytes(self.predicted_peak_bytes)),
            ("measured peak", f"{format_bytes(self.measured_peak_bytes)} in the last of {self.trials} trials"),
            ("regions", f"{recomputed} of {len(self.regions)} recomputed"),
            ("recomputation", f"{self.recompute_ns / 1e6:.1f} ms, {self.bound_ns / 1e6:.1f} ms at least"),
        ]
