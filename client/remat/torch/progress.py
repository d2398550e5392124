"""What the first step is busy with, on a terminal: it traces, measures and solves before it trains."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from remat_solver.graph import Graph
from remat_solver.options import Progress as SolveProgress
from remat_solver.plan import Plan

OnSolveProgress = Callable[[SolveProgress], None]
Show = Callable[[str], AbstractContextManager[object]]
"""Tells what is being done for as long as the block lasts."""


def is_watched() -> bool:
    """Whether someone looks on: stderr is a terminal, and of several ranks this is the first."""
    return sys.stderr.isatty() and os.environ.get("RANK", "0") == "0"


@contextmanager
def show_phase(description: str) -> Iterator[None]:
    """A bar that moves while the block lasts, for work of which nobody knows how much is left."""
    with _bar() as bar:
        bar.add_task(f"remat: {description}", total=None)
        yield


def measure_visibly(measure: Callable[..., Graph]) -> Callable[[Graph], Graph]:
    """`measure`, which takes `on_progress`, with a bar over the op runs."""

    def run(graph: Graph) -> Graph:
        with _bar() as bar:
            task = bar.add_task("remat: measuring ops", total=None)

            def advance(done: int, total: int, name: str) -> None:
                bar.update(task, completed=done, total=total, description=f"remat: measuring {name}")

            return measure(graph, on_progress=advance)

    return run


def solve_visibly(make_planner: Callable[[OnSolveProgress], Callable[[Graph], Plan]]) -> Callable[[Graph], Plan]:
    """A planner that shows the best plan and the bound while it works."""

    def solve(graph: Graph) -> Plan:
        with _bar() as bar:
            task = bar.add_task("remat: solving", total=None)

            def show(progress: SolveProgress) -> None:
                bar.update(task, description=f"remat: solving, {_describe(progress, graph.total_time_ns)}")

            return make_planner(show)(graph)

    return solve


def _describe(progress: SolveProgress, store_all_ns: int) -> str:
    if progress.incumbent_ns is None or not store_all_ns:
        return "no plan yet"
    best, least = (time_ns / store_all_ns - 1 for time_ns in (progress.incumbent_ns, progress.bound_ns))
    return f"best +{best:.1%}, at least +{max(least, 0):.1%}"


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=console.is_terminal)  # elsewhere the last line stays
