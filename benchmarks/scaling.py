"""python -m benchmarks.scaling: time and memory of a solve against the number of ops of transformers."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.machine import describe_machine
from benchmarks.transformer_graph import Shape, transformer_graph
from remat_solver.bounds import working_set_bound
from remat_solver.errors import SolveError
from remat_solver.options import Progress as SolveProgress
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.solve import solve

LAYERS = (3, 6, 12, 24, 48, 96, 192, 304, 600)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One depth at one budget; `peak_rss_bytes` is the solving process and its engine together, at most."""

    ops: int
    values: int
    share_of_range: float
    status: str
    overhead: float | None
    gap: float | None
    first_plan_s: float | None
    solve_s: float
    peak_rss_bytes: int
    engine: str


def measure_row(layers: int, share_of_range: float, engine: str, gap: float, time_limit_s: float) -> Row:
    """Solves a transformer at working-set bound + share x (store-all peak - bound)."""
    graph = transformer_graph(Shape(layers=layers))
    bound = working_set_bound(graph)
    peak = simulate(graph, store_all_schedule(graph)).peak_bytes
    first_plan_s: list[float] = []

    def watch(progress: SolveProgress) -> None:
        if progress.incumbent_ns is not None and not first_plan_s:
            first_plan_s.append(progress.elapsed_s)

    start = time.perf_counter()
    overhead = plan_gap = None
    try:
        budget = bound + int(share_of_range * (peak - bound))
        plan = solve(graph, budget_bytes=budget, engine=engine, gap=gap, time_limit_s=time_limit_s, on_progress=watch)
        status, overhead, plan_gap = plan.status, plan.overhead, plan.gap
    except SolveError as error:
        status = error.slug
    usage = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return Row(
        ops=len(graph),
        values=len(graph.sizes),
        share_of_range=share_of_range,
        status=status,
        overhead=overhead,
        gap=plan_gap,
        first_plan_s=round(first_plan_s[0], 3) if first_plan_s else None,
        solve_s=round(time.perf_counter() - start, 3),
        peak_rss_bytes=sum(usage) * 1024,
        engine=engine,
    )


def as_table(rows: list[Row]) -> Table:
    """The rows for people."""
    table = Table(title="Transformers of growing depth")
    for heading in ("ops", "share", "status", "overhead %", "gap %", "first plan s", "seconds", "RSS MiB"):
        table.add_column(heading, justify="left" if heading == "status" else "right")
    for row in rows:
        table.add_row(
            str(row.ops),
            f"{row.share_of_range:g}",
            row.status,
            "" if row.overhead is None else f"{100 * row.overhead:.3f}",
            "" if row.gap is None else f"{100 * row.gap:.3f}",
            "" if row.first_plan_s is None else f"{row.first_plan_s:.2f}",
            f"{row.solve_s:.2f}",
            str(row.peak_rss_bytes // 2**20),
        )
    return table


def main() -> int:
    """The command. Each row is measured in a process of its own."""
    arguments = _parse_arguments()
    shares = [float(share) for share in arguments.shares.split(",")]
    cases = [(layers, share) for layers in LAYERS for share in shares if layers <= arguments.max_layers]
    rows: list[Row] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(cases))
        for layers, share in cases:
            progress.update(task, description=f"{layers} layers at {share:g}")
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                case = (layers, share, arguments.engine, arguments.gap, arguments.time_limit)
                rows.append(pool.apply(measure_row, case))
            progress.advance(task)
    Console(width=None if sys.stdout.isatty() else 120).print(as_table(rows))
    if arguments.json:
        document = {"machine": describe_machine(), "command": sys.argv[1:], "rows": [asdict(row) for row in rows]}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--shares", default="0.5,0.15", help="budgets, as shares of the range above the bound")
    parser.add_argument("--engine", default="cbc", choices=("cbc", "highs", "auto"))
    parser.add_argument("--gap", type=float, default=2e-3)
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--max-layers", type=int, default=600)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
