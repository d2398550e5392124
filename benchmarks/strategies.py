"""python -m benchmarks.strategies DIR: what each strategy's plan costs, on the public networks, at several budgets."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console

from benchmarks.machine import describe_machine
from benchmarks.public_graphs import load_public_graph
from remat_solver.errors import InfeasibleBudget, NoPlanInTime, RematError
from remat_solver.graph import Graph
from remat_solver.solve import solve

NETWORKS = ("vgg16_train", "fcn8_train", "unet_train", "resnet50_train")
STRATEGIES = ("memory_cuts", "lp_rounding", "chen_greedy", "chen_sqrt", "recompute_all")
MOST_OPS_FOR_LP = 100
"""The dense relaxation of ResNet-50 (353 ops) has half a million rows."""


def cell(graph: Graph, budget_fraction: float, strategy: str, arguments: argparse.Namespace) -> str:
    """Overhead in percent and seconds, or why there is no plan."""
    if strategy == "lp_rounding" and len(graph) > MOST_OPS_FOR_LP:
        return "not run"
    start = time.perf_counter()
    try:
        plan = solve(
            graph,
            budget_fraction=budget_fraction,
            strategy=strategy,
            engine=arguments.engine,
            gap=1e-4,
            time_limit_s=arguments.time_limit,
        )
    except InfeasibleBudget:
        return "infeasible"
    except NoPlanInTime:
        return "none"
    return f"{100 * plan.overhead:.2f} / {time.perf_counter() - start:.2f}"


def as_markdown(rows: list[list[str]], arguments: argparse.Namespace) -> str:
    """The table that is committed."""
    machine = ", ".join(f"{key}: {value}" for key, value in describe_machine().items())
    lines = [
        "# Compute overhead of each strategy",
        "",
        f"`python -m benchmarks.strategies DIR --engine {arguments.engine}`: overhead in % of the store-all time / "
        f"seconds to find the plan. none: no plan within the budget. {machine}.",
        "",
        f"| graph (ops) | budget | {' | '.join(STRATEGIES)} |",
        "|---" * (2 + len(STRATEGIES)) + "|",
    ]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows), ""])


def main() -> int:
    """The command; exit code 1 if DIR can't be read."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.strategies", description=__doc__)
    parser.add_argument("directory", type=Path, metavar="DIR", help="folder of public graph files")
    parser.add_argument("--engine", default="cbc", choices=("cbc", "highs"))
    parser.add_argument("--budgets", default="0.9,0.7,0.5", help="shares of the store-all peak")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each solve")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    arguments = parser.parse_args()
    rows = []
    try:
        for name in NETWORKS:
            graph = load_public_graph(arguments.directory / f"{name}.json")
            for budget in map(float, arguments.budgets.split(",")):
                cells = [cell(graph, budget, strategy, arguments) for strategy in STRATEGIES]
                rows.append([f"{name} ({len(graph)})", f"{budget:g}", *cells])
    except RematError as error:
        Console(stderr=True).print(f"[red]{error}[/]")
        return 1
    text = as_markdown(rows, arguments)
    print(text)
    if arguments.markdown:
        arguments.markdown.parent.mkdir(parents=True, exist_ok=True)
        arguments.markdown.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
