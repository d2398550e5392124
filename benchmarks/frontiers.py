"""python -m benchmarks.frontiers: what a whole frontier takes: 12 points on a transformer of about 1,500 ops."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from benchmarks.transformer_graph import Shape, transformer_graph
from remat_solver.frontier import frontier
from remat_solver.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Row:
    """One point; `found_s` is when it was found, since the frontier began. Overheads are shares of store-all time."""

    ops: int
    budget_bytes: int
    peak_bytes: int
    overhead: float
    bound_overhead: float
    gap: float
    found_s: float


def measure(layers: int, points: int, gap: float, time_limit_s: float, engine: str) -> list[Row]:
    """The points by ascending budget."""
    graph = transformer_graph(Shape(layers=layers))
    found_s: dict[int, float] = {}
    start = time.perf_counter()

    def note(plan: Plan) -> None:
        found_s[plan.budget_bytes] = time.perf_counter() - start

    plans = frontier(graph, points, gap=gap, time_limit_s=time_limit_s, engine=engine, on_point=note)
    return [
        Row(
            ops=len(graph),
            budget_bytes=plan.budget_bytes,
            peak_bytes=plan.peak_bytes,
            overhead=plan.overhead,
            bound_overhead=plan.bound_overhead,
            gap=plan.gap,
            found_s=round(found_s[plan.budget_bytes], 2),
        )
        for plan in plans
    ]


def as_table(rows: list[Row]) -> Table:
    """The rows for people."""
    table = Table(title=f"A frontier of {len(rows)} points on {rows[0].ops} ops")
    for heading in ("budget MiB", "overhead %", "bound %", "gap %", "found after s"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            str(row.budget_bytes // 2**20),
            f"{100 * row.overhead:.3f}",
            f"{100 * row.bound_overhead:.3f}",
            f"{100 * row.gap:.3f}",
            f"{row.found_s:.2f}",
        )
    return table


def main() -> int:
    """The command. Exit code 1 if the frontier is not monotone."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frontiers", description=__doc__)
    parser.add_argument("--layers", type=int, default=46, help="33 ops each")
    parser.add_argument("--points", type=int, default=12)
    parser.add_argument("--gap", type=float, default=1e-3)
    parser.add_argument("--time-limit", type=float, default=14.0, help="seconds for the whole frontier")
    parser.add_argument("--engine", default="cbc", choices=("cbc", "highs", "auto"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = measure(arguments.layers, arguments.points, arguments.gap, arguments.time_limit, arguments.engine)
    Console(width=None if sys.stdout.isatty() else 120).print(as_table(rows))
    if arguments.json:
        document = {"machine": describe_machine(), "command": sys.argv[1:], "rows": [asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    is_monotone = all(a.overhead >= b.overhead for a, b in itertools.pairwise(rows))
    return 0 if is_monotone else 1


if __name__ == "__main__":
    sys.exit(main())
