"""What the commands print: progress on the way, tables at the end, errors on one line."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.status import Status
from rich.table import Table

from remat_solver.budget import format_bytes
from remat_solver.errors import RematError
from remat_solver.options import Progress
from remat_solver.plan import Plan

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def complain(error: RematError) -> None:
    """Prints an error as one line: what is wrong, then what to try."""
    text = " ".join(str(error).split())
    err.print(f"[bold red]remat:[/] {_escape(text)}", soft_wrap=True)


def _escape(text: str) -> str:
    return text.replace("[", r"\[")


class SolveWatch:
    """Shows a solve's progress, and turns the first Ctrl-C into "stop and keep the best plan"."""

    def __init__(self, status: Status, store_all_time_ns: int) -> None:
        self._status = status
        self._store_all_time_ns = store_all_time_ns
        self._stopped = False

    def on_progress(self, progress: Progress) -> None:
        """Updates the line under the spinner."""
        best = "no plan yet"
        if progress.incumbent_ns is not None:
            best = f"best +{self._overhead(progress.incumbent_ns):.2%}"
        self._status.update(
            f"solving: {best}, proven at least +{self._overhead(progress.bound_ns):.2%} "
            f"({progress.elapsed_s:.1f} s; Ctrl-C keeps the best)"
        )

    def should_stop(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._stopped

    def _overhead(self, time_ns: int) -> float:
        return (time_ns - self._store_all_time_ns) / self._store_all_time_ns if self._store_all_time_ns else 0.0

    def _interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        if self._stopped:
            raise KeyboardInterrupt
        self._stopped = True


@contextmanager
def watch_solve(store_all_time_ns: int, label: str = "solving") -> Iterator[SolveWatch]:
    """A spinner with the solve's progress while the block runs; a second Ctrl-C aborts."""
    with err.status(label) as status:
        watch = SolveWatch(status, store_all_time_ns)
        previous = signal.signal(signal.SIGINT, watch._interrupt)
        try:
            yield watch
        finally:
            signal.signal(signal.SIGINT, previous)


def plan_table(plans: list[tuple[str, Plan]]) -> Table:
    """Plans side by side, a row each."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("plan")
    for head in ("budget", "peak", "store-all peak", "overhead", "bound", "gap", "status", "recomputes", "solved in"):
        table.add_column(head, justify="right")
    for label, plan in plans:
        table.add_row(
            label,
            format_bytes(plan.budget_bytes),
            format_bytes(plan.peak_bytes),
            format_bytes(plan.store_all_peak_bytes),
            f"{plan.overhead:.2%}",
            f"{plan.bound_overhead:.2%}",
            f"{plan.gap:.2%}",
            plan.status,
            str(plan.recompute_count),
            f"{plan.provenance.solve_s:.2f} s",
        )
    return table
