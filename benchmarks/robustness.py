"""python -m benchmarks.robustness: what a plan loses when its costs were measured in another run.

Several processes measure the ops of the same step afresh. The plan made from each run's costs is priced with each
other run's, and compared with that run's own plan for the same budget: the loss is in points of the store-all time.
Plans differ from run to run; what counts is how little that matters.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from benchmarks.networks.steps import STEPS
from remat.torch import capture
from remat.torch.measure import measure
from remat_solver.graph import Graph
from remat_solver.simulate import simulate
from remat_solver.solve import solve

GAP = 2e-3
"""How far from the optimum each plan may be, so that no loss smaller than this says anything."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Losses over all ordered pairs of runs, in points; how far the runs' totals are apart; how many plans differ."""

    model: str
    budget_fraction: float
    runs: int
    least_total_ms: float
    most_total_ms: float
    distinct_plans: int
    median_loss: float
    largest_loss: float


def measure_afresh(model: str) -> Graph:
    """The model's graph with costs of this process's own."""
    torch.set_num_threads(1)
    return measure(capture(STEPS[model]()), cache=None)


def compare(model: str, graphs: list[Graph], budget_fraction: float, time_limit_s: float) -> Row:
    """Plans each run's graph and prices every plan with every other run's costs."""
    plans = [solve(graph, budget_fraction=budget_fraction, gap=GAP, time_limit_s=time_limit_s) for graph in graphs]
    losses = []
    for (_, theirs), (graph, own) in itertools.permutations(zip(graphs, plans, strict=True), 2):
        losses.append(100 * (simulate(graph, theirs.schedule).time_ns - own.time_ns) / graph.total_time_ns)
    totals = [graph.total_time_ns / 1e6 for graph in graphs]
    return Row(
        model=model,
        budget_fraction=budget_fraction,
        runs=len(graphs),
        least_total_ms=min(totals),
        most_total_ms=max(totals),
        distinct_plans=len({plan.schedule for plan in plans}),
        median_loss=statistics.median(losses),
        largest_loss=max(losses),
    )


def as_table(rows: list[Row]) -> Table:
    """The rows for people."""
    table = Table(title="Plans from one run's costs, priced with another's")
    table.add_column("model")
    for heading in ("budget", "runs", "store-all ms", "distinct plans", "median loss, points", "largest loss, points"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row.model,
            f"{row.budget_fraction:.0%}",
            str(row.runs),
            f"{row.least_total_ms:.0f} to {row.most_total_ms:.0f}",
            str(row.distinct_plans),
            f"{row.median_loss:.2f}",
            f"{row.largest_loss:.2f}",
        )
    return table


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.robustness", description=__doc__)
    parser.add_argument("--models", default="gpt,resnet,unet,vit12", help=f"which of {', '.join(STEPS)}")
    parser.add_argument("--budgets", default="0.6,0.4", help="shares of the store-all peak")
    parser.add_argument("--runs", type=int, default=5, help="processes that measure")
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds for each solve")
    parser.add_argument("--json", type=Path, help="write the rows here")
    arguments = parser.parse_args()
    rows = []
    started = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    for model in arguments.models.split(","):
        graphs = []
        for _ in range(arguments.runs):
            with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
                graphs.append(pool.submit(measure_afresh, model).result())
        budgets = [float(budget) for budget in arguments.budgets.split(",")]
        rows += [compare(model, graphs, budget, arguments.time_limit) for budget in budgets]
    Console(width=None if sys.stdout.isatty() else 140).print(as_table(rows))
    if arguments.json:
        machine = {**describe_machine(), "torch": torch.__version__, "threads": "1", "started": started}
        document = {"machine": machine, "command": sys.argv[1:], "rows": [asdict(row) for row in rows]}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
