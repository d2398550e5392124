"""python -m benchmarks.public DIR: every public graph of DIR at several budgets, as a table and as JSON."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.public_graphs import find_graphs, load_public_graph
from benchmarks.row_command import add_common_arguments, numbers, publish
from benchmarks.rows import Row, ask_cp_sat, measure_row
from remat_solver.bounds import working_set_bound
from remat_solver.errors import RematError
from remat_solver.graph import Graph
from remat_solver.options import SolveOptions
from remat_solver.simulate import simulate, store_all_schedule


def main() -> int:
    """The command; exit code 1 if DIR can't be read, a file is no graph, or a rival's schedule refutes a proof."""
    arguments = _parse_arguments()
    console = Console(stderr=True)
    try:
        graphs = [load_public_graph(path) for path in find_graphs(arguments.directory) if _is_wanted(path, arguments)]
    except RematError as error:
        console.print(f"[red]{error}[/]")
        return 1
    if not graphs:
        console.print(f"[red]no graph of {arguments.directory} matches --only {arguments.only}[/]")
        return 1
    questions = [(graph, name, options) for graph in graphs for name, options in _questions(graph, arguments)]
    rows: list[Row] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(questions))
        for graph, name, options in questions:
            peak = simulate(graph, store_all_schedule(graph)).peak_bytes
            budget = options.budget_fraction or round((options.budget_bytes or 0) / peak, 4)
            progress.update(task, description=f"{graph.name[:32]} at {name or budget}")
            row = dataclasses.replace(measure_row(graph, budget, options), budget_name=name)
            if arguments.cp_sat_limit:
                row = ask_cp_sat(row, graph, limit_s=arguments.cp_sat_limit, workers=arguments.cp_sat_workers)
            rows.append(row)
            progress.advance(task)
    return publish(rows, "Public graphs", "public", arguments, console)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.public", description=__doc__)
    parser.add_argument("directory", type=Path, metavar="DIR", help="folder of public graph files")
    parser.add_argument("--budgets", type=numbers, default="0.9,0.8,0.7,0.5", help="shares of the store-all peak")
    parser.add_argument(
        "--floor", type=numbers, default="", metavar="MULTIPLES", help="of the working-set bound, such as 1.0,1.1,1.2"
    )
    parser.add_argument(
        "--reorder", action="store_true", help="look for a better order first, for a quarter of the time at most"
    )
    parser.add_argument("--only", default="", help="only files whose name contains one of these, comma-separated")
    add_common_arguments(parser, gap=1e-4)
    return parser.parse_args()


def _is_wanted(path: Path, arguments: argparse.Namespace) -> bool:
    return any(part in path.name for part in arguments.only.split(","))


def _questions(graph: Graph, arguments: argparse.Namespace) -> list[tuple[str, SolveOptions]]:
    """What is asked of a graph; budgets that are no share of the peak have a name, and must lie below it."""
    asked = SolveOptions(
        budget_fraction=1.0,
        gap=arguments.gap,
        time_limit_s=arguments.time_limit,
        threads=arguments.threads,
        engine=arguments.engine,
        reorder=arguments.reorder,
    )
    shares = [("", dataclasses.replace(asked, budget_fraction=budget)) for budget in arguments.budgets]
    floor = working_set_bound(graph)
    peak = simulate(graph, store_all_schedule(graph)).peak_bytes
    return shares + [
        (f"{multiple:g} x floor", dataclasses.replace(asked, budget_fraction=None, budget_bytes=int(multiple * floor)))
        for multiple in arguments.floor
        if multiple * floor < peak
    ]


if __name__ == "__main__":
    sys.exit(main())
