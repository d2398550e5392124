"""python -m benchmarks.captured: our captured networks, from easy budgets down to the floor.

A share s of the range is the budget floor + s * (store-all peak - floor), where the floor is the working-set bound,
below which nothing fits. `--floor` adds the multiples of the floor where planning is hardest.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks.capture_networks import GRAPHS
from benchmarks.public import Row, as_table, describe_machine, measure_row
from remat_solver.bounds import working_set_bound
from remat_solver.files import load
from remat_solver.graph import Graph
from remat_solver.options import ENGINES, SolveOptions
from remat_solver.simulate import simulate, store_all_schedule

FLOOR_MULTIPLES = (1.0, 1.05, 1.1, 1.2)


def budgets_of(graph: Graph, shares: list[float], *, floor: bool) -> list[int]:
    """The budgets to try, in bytes, the largest first."""
    least = working_set_bound(graph)
    peak = simulate(graph, store_all_schedule(graph)).peak_bytes
    budgets = {least + int(share * (peak - least)) for share in shares}
    if floor:
        budgets |= {int(multiple * least) for multiple in FLOOR_MULTIPLES if multiple * least < peak}
    return sorted(budgets, reverse=True)


def bench(names: list[str], arguments: argparse.Namespace, console: Console) -> list[Row]:
    """A row for each graph and budget."""
    rows = []
    for name in names:
        graph = load(Graph, GRAPHS / f"{name}.json.zst")
        peak = simulate(graph, store_all_schedule(graph)).peak_bytes
        shares = [float(share) for share in arguments.shares.split(",")]
        for budget_bytes in budgets_of(graph, shares, floor=arguments.floor):
            options = SolveOptions(
                budget_bytes=budget_bytes,
                gap=arguments.gap,
                time_limit_s=arguments.time_limit,
                threads=arguments.threads,
                engine=arguments.engine,
            )
            rows.append(measure_row(graph, round(budget_bytes / peak, 4), options))
            console.print(f"{name} at {budget_bytes / peak:.1%}: {rows[-1].status}, {rows[-1].solve_s:.2f} s")
    return rows


def main() -> int:
    """The command; exit code 1 if a graph is missing."""
    names = sorted(path.name.removesuffix(".json.zst") for path in GRAPHS.glob("*.json.zst"))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.captured", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; all by default")
    parser.add_argument("--shares", default="0.9,0.7,0.5,0.3,0.15", help="of the way from the floor to store-all")
    parser.add_argument("--floor", action="store_true", help="also 1.0, 1.05, 1.1 and 1.2 times the floor")
    parser.add_argument("--engine", default="cbc", choices=ENGINES)
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each solve")
    parser.add_argument("--gap", type=float, default=2e-3, help="stop at this gap, a share of the store-all time")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the rows here")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(names))
    if unknown or not names:
        parser.error(f"no graph {unknown[0] if unknown else ''!r} in {GRAPHS}: run benchmarks.capture_networks")
    rows = bench(arguments.names or names, arguments, Console(stderr=True))
    table = as_table(rows)
    table.title = "Captured networks"
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    if arguments.json:
        document = {"machine": describe_machine(), "command": sys.argv[1:], "rows": [asdict(row) for row in rows]}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
