"""What pieces mode decided for a model: how each piece runs, what was predicted, and what was measured."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from remat.torch.printed import Printed, facts_table
from remat_solver.budget import format_bytes


@dataclass(frozen=True, kw_only=True)
class PiecePlan:
    """How one graph runs. `calls` are its runs in a step; bytes and time are those of one of them.

    `saved_bytes` is what it saves for its backward beyond what can't be made again.
    """

    ops: int
    calls: int
    ways: int
    saved_bytes: int
    recompute_ns: int


@dataclass(frozen=True, kw_only=True)
class PiecesPlan(Printed):
    """A plan for one input shape. Peaks are bytes with everything included.

    `measured_peak_bytes` is the highest of some trial steps; `kept_bytes` is what the model keeps from step to step
    beside its parameters and buffers, which is in the peaks and not in `fixed_bytes`.
    """

    pieces: tuple[PiecePlan, ...]
    budget_bytes: int
    fixed_bytes: int
    kept_bytes: int
    store_all_peak_bytes: int
    predicted_peak_bytes: int
    measured_peak_bytes: int
    trials: int

    @property
    def recompute_ns(self) -> int:
        """The time of all that runs again in a step."""
        return sum(piece.calls * piece.recompute_ns for piece in self.pieces)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The facts, then a line for each piece."""
        yield facts_table("pieces mode", self._facts())
        table = Table("piece", "ops", "runs", "ways known", "saves", "runs again", box=None, pad_edge=False)
        for number, piece in enumerate(self.pieces):
            again = f"{piece.recompute_ns / 1e6:.2f} ms"
            counts = (str(number), str(piece.ops), str(piece.calls), str(piece.ways))
            table.add_row(*counts, format_bytes(piece.saved_bytes), again)
        yield table

    def _facts(self) -> list[tuple[str, str]]:
        return [
            ("budget", f"{format_bytes(self.budget_bytes)}, {format_bytes(self.fixed_bytes)} of it fixed"),
            ("peak without recomputation", f"{format_bytes(self.store_all_peak_bytes)} (predicted)"),
            ("predicted peak", format_bytes(self.predicted_peak_bytes)),
            ("measured peak", f"{format_bytes(self.measured_peak_bytes)} in the last of {self.trials} trials"),
            ("pieces", f"{len(self.pieces)} graphs, {sum(piece.calls for piece in self.pieces)} runs a step"),
            ("recomputation", f"{self.recompute_ns / 1e6:.1f} ms"),
        ]
