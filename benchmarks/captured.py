"""python -m benchmarks.captured: our captured networks, from easy budgets down to the floor.

The floor is the working-set bound, below which nothing fits. A share s of the range is the budget
floor + s * (store-all peak - floor); `--floor` names multiples of the floor, where planning is hardest. Every row is
measured in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import resource
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.row_command import add_common_arguments, numbers, publish
from benchmarks.rows import Row, ask_cp_sat, measure_row
from remat_solver.bounds import working_set_bound
from remat_solver.files import load
from remat_solver.graph import Graph
from remat_solver.options import SolveOptions
from remat_solver.simulate import simulate, store_all_schedule

GRAPHS = Path(__file__).parent / "graphs"
"""Written by `benchmarks.capture_networks`."""


def budgets_of(graph: Graph, shares: list[float], multiples: list[float]) -> dict[str, int]:
    """The budgets to try, in bytes, by what they are called; multiples of the floor above the peak are left out."""
    floor = working_set_bound(graph)
    peak = simulate(graph, store_all_schedule(graph)).peak_bytes
    budgets = {f"{share:g} of the range": floor + int(share * (peak - floor)) for share in shares}
    return budgets | {
        f"{multiple:g} x floor": int(multiple * floor) for multiple in multiples if multiple * floor < peak
    }


def measure_alone(name: str, budget_name: str, budget_bytes: int, arguments: argparse.Namespace) -> Row:
    """One row, with the CPU time and the peak memory of this process and of the engines that it started."""
    graph = load(Graph, GRAPHS / f"{name}.json.zst")
    options = SolveOptions(
        budget_bytes=budget_bytes,
        gap=arguments.gap,
        time_limit_s=arguments.time_limit,
        threads=arguments.threads,
        engine=arguments.engine,
    )
    peak = simulate(graph, store_all_schedule(graph)).peak_bytes
    before_s, _ = _usage()
    row = measure_row(graph, round(budget_bytes / peak, 4), options)
    after_s, rss_bytes = _usage()
    row = dataclasses.replace(
        row, budget_name=budget_name, cpu_s=round(after_s - before_s, 3), peak_rss_bytes=rss_bytes
    )
    if arguments.cp_sat_limit:
        row = ask_cp_sat(row, graph, limit_s=arguments.cp_sat_limit, workers=arguments.cp_sat_workers)
    return row


def _usage() -> tuple[float, int]:
    """CPU seconds so far of this process and of the engines that it ran, and their peak memory in bytes, at most."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    return seconds, sum(usage.ru_maxrss for usage in usages) * 1024


def bench(names: list[str], arguments: argparse.Namespace, console: Console) -> list[Row]:
    """A row for each graph and budget."""
    rows = []
    for name in names:
        graph = load(Graph, GRAPHS / f"{name}.json.zst")
        for budget_name, budget_bytes in budgets_of(graph, arguments.shares, arguments.floor).items():
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                rows.append(pool.apply(measure_alone, (name, budget_name, budget_bytes, arguments)))
            console.print(f"{name} at {budget_name}: {rows[-1].status}, {rows[-1].solve_s:.2f} s")
    return sorted(rows, key=lambda row: row.ops)


def main() -> int:
    """The command; exit code 1 if a graph is missing, or a rival's schedule refutes a proof."""
    names = sorted(path.name.removesuffix(".json.zst") for path in GRAPHS.glob("*.json.zst"))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.captured", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; all by default")
    parser.add_argument(
        "--shares", type=numbers, default="0.9,0.7,0.5,0.3,0.15", help="of the way from the floor to store-all"
    )
    parser.add_argument(
        "--floor", type=numbers, default="", metavar="MULTIPLES", help="of the floor, such as 1.0,1.05,1.1,1.2"
    )
    add_common_arguments(parser, gap=2e-3)
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(names))
    if unknown or not names:
        parser.error(f"no graph {unknown[0] if unknown else ''!r} in {GRAPHS}: run benchmarks.capture_networks")
    console = Console(stderr=True)
    rows = bench(arguments.names or names, arguments, console)
    return publish(rows, "Captured networks", "captured", arguments, console)


if __name__ == "__main__":
    sys.exit(main())
