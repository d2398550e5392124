"""python -m benchmarks.dense DIR: memory cuts against dense Checkmate, same engine, same proven optimum.

Each case is solved by both strategies with the same engine, gap and threads. A dense solve that ends at its
limit gives a lower bound on the ratio ("> 40"). Memory cuts are timed several times, the median counts.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from benchmarks.captured import GRAPHS, budgets_of
from benchmarks.machine import describe_machine
from benchmarks.public_graphs import load_public_graph
from remat_solver.errors import InfeasibleBudget, NoPlanInTime, RematError
from remat_solver.files import load
from remat_solver.formulation.checkmate import build_dense
from remat_solver.graph import Graph
from remat_solver.plan import OPTIMAL_GAP
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.solve import solve

PUBLIC_CASES = (
    ("vgg16_train", 0.9),
    ("fcn8_train", 0.9),
    ("fcn8_train", 0.8),
    ("fcn8_train", 0.7),
    ("unet_train", 0.9),
    ("unet_train", 0.8),
    ("unet_train", 0.5),
)
"""Public graphs, at shares of the store-all peak."""
CAPTURED = ("mlp20", "gpt2")
"""Graphs of ours, halfway from the floor to the store-all peak."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One strategy's solve. Overheads are shares of the store-all time; None where there is no plan."""

    status: str
    overhead: float | None
    bound_overhead: float | None
    seconds: float
    rows: int
    columns: int


@dataclass(frozen=True, kw_only=True)
class Case:
    """A graph at a budget, solved twice. `ratio` is dense / cuts seconds; `is_proven` if both proved it."""

    graph: str
    ops: int
    budget: str
    cuts: Side
    dense: Side

    @property
    def ratio(self) -> float:
        """How many times longer the dense program took."""
        return self.dense.seconds / max(self.cuts.seconds, 1e-6)

    @property
    def is_proven(self) -> bool:
        """Whether the dense program ended with a proof; if not, the ratio is a lower bound."""
        return self.dense.status == "optimal"

    @property
    def agrees(self) -> bool:
        """Whether neither side contradicts the other: equal optima up to the gap, bounds below the other's plan."""
        cuts, dense = self.cuts, self.dense
        if cuts.overhead is None or dense.overhead is None:
            return self.dense.status == "no_plan_in_time" or cuts.status == dense.status
        if cuts.status == dense.status == "optimal" and abs(cuts.overhead - dense.overhead) > OPTIMAL_GAP:
            return False
        assert cuts.bound_overhead is not None
        assert dense.bound_overhead is not None
        return (
            cuts.bound_overhead <= dense.overhead + OPTIMAL_GAP and dense.bound_overhead <= cuts.overhead + OPTIMAL_GAP
        )


def measure(graph: Graph, budget_bytes: int, strategy: str, engine: str, time_limit_s: float, gap: float) -> Side:
    """One solve, whatever its ending."""
    start = time.perf_counter()
    try:
        plan = solve(
            graph,
            budget_bytes=budget_bytes,
            strategy=strategy,
            engine=engine,
            time_limit_s=time_limit_s,
            gap=gap,
        )
    except (InfeasibleBudget, NoPlanInTime) as error:
        status = "infeasible" if isinstance(error, InfeasibleBudget) else "no_plan_in_time"
        seconds = time.perf_counter() - start
        return Side(status=status, overhead=None, bound_overhead=None, seconds=seconds, rows=0, columns=0)
    return Side(
        status=plan.status,
        overhead=plan.overhead,
        bound_overhead=plan.bound_overhead,
        seconds=time.perf_counter() - start,
        rows=plan.provenance.rows,
        columns=plan.provenance.columns,
    )


def cases_of(directory: Path) -> Iterator[tuple[Graph, str, int]]:
    """Every graph with what its budget is called and the budget in bytes; raises `RematError` for a missing file."""
    for name, fraction in PUBLIC_CASES:
        graph = load_public_graph(directory / f"{name}.json")
        yield graph, f"{fraction:g}", int(fraction * simulate(graph, store_all_schedule(graph)).peak_bytes)
    for name in CAPTURED:
        graph = load(Graph, GRAPHS / f"{name}.json.zst")
        for budget_name, budget_bytes in budgets_of(graph, [0.5], []).items():
            yield graph, budget_name, budget_bytes


def compare(graph: Graph, budget: str, budget_bytes: int, arguments: argparse.Namespace) -> Case:
    """Both strategies on one case; memory cuts several times, of which the median is kept."""
    common = {"engine": arguments.engine, "gap": arguments.gap}
    repeats = [
        measure(graph, budget_bytes, "memory_cuts", time_limit_s=arguments.dense_limit, **common)
        for _ in range(arguments.repeats)
    ]
    cuts = sorted(repeats, key=lambda side: side.seconds)[len(repeats) // 2]
    dense = measure(graph, budget_bytes, "checkmate", time_limit_s=arguments.dense_limit, **common)
    if not dense.rows:  # it has no plan to tell its size
        program = build_dense(graph, budget_bytes).program
        dense = replace(dense, rows=program.row_count, columns=program.column_count)
    return Case(graph=graph.name, ops=len(graph), budget=budget, cuts=cuts, dense=dense)


def as_markdown(cases: list[Case], machine: dict[str, str], arguments: argparse.Namespace) -> str:
    """The table that is committed."""
    lines = [
        "# Memory cuts against dense Checkmate",
        "",
        f"`python -m benchmarks.dense DIR --engine {arguments.engine} --dense-limit {arguments.dense_limit:g}`, "
        f"gap {arguments.gap:g}, 1 thread, on a shared machine. {', '.join(f'{k}: {v}' for k, v in machine.items())}.",
        "",
        "| graph (ops) | budget | cuts: overhead % | seconds | rows x columns | dense: overhead % [bound] | seconds "
        "| rows x columns | times longer |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_markdown_row(case) for case in cases]
    ratios = [case.ratio for case in cases]
    mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
    open_ended = sum(not case.is_proven for case in cases)
    note = (
        f" (at least: {open_ended} dense solves ended at their limit, and a longer one can only raise the mean)"
        if open_ended
        else ""
    )
    lines += ["", f"Geometric mean of times longer: **{mean:.0f}**{note}.", ""]
    return "\n".join(lines)


def _markdown_row(case: Case) -> str:
    cuts, dense = case.cuts, case.dense
    ratio = f"{case.ratio:.0f}" if case.is_proven else f"> {case.ratio:.0f}"
    has_plan = dense.overhead is not None
    found = f"{_percent(dense.overhead)} [{_percent(dense.bound_overhead)}]" if has_plan else dense.status
    return (
        f"| {case.graph} ({case.ops}) | {case.budget} | {_percent(cuts.overhead)} | {cuts.seconds:.3f} "
        f"| {cuts.rows} x {cuts.columns} | {found} | {dense.seconds:.1f} | {dense.rows} x {dense.columns} | {ratio} |"
    )


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.3f}"


def main() -> int:
    """The command; exit code 1 if DIR can't be read or the two strategies contradict each other."""
    arguments = _parse_arguments()
    console = Console(stderr=True)
    cases = []
    try:
        with Progress(console=console) as progress:
            task = progress.add_task("", total=len(PUBLIC_CASES) + len(CAPTURED))
            for graph, budget, budget_bytes in cases_of(arguments.directory):
                progress.update(task, description=f"{graph.name} at {budget}")
                cases.append(compare(graph, budget, budget_bytes, arguments))
                progress.advance(task)
    except RematError as error:
        console.print(f"[red]{error}[/]")
        return 1
    machine = describe_machine()
    text = as_markdown(cases, machine, arguments)
    print(text)
    if arguments.json:
        rows = [{**asdict(case), "ratio": case.ratio} for case in cases]
        arguments.json.write_text(
            json.dumps({"machine": machine, "command": sys.argv[1:], "rows": rows}, indent=1) + "\n"
        )
    if arguments.markdown:
        arguments.markdown.parent.mkdir(parents=True, exist_ok=True)
        arguments.markdown.write_text(text)
    contradictions = [case for case in cases if not case.agrees]
    for case in contradictions:
        console.print(f"[red]{case.graph} at {case.budget}: the strategies contradict each other[/]")
    return 1 if contradictions else 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dense", description=__doc__)
    parser.add_argument("directory", type=Path, metavar="DIR", help="folder of public graph files")
    parser.add_argument("--engine", default="cbc", choices=("cbc", "highs"))
    parser.add_argument("--dense-limit", type=float, default=600.0, help="seconds for each dense solve")
    parser.add_argument("--gap", type=float, default=1e-4, help="stop at this gap, a share of the store-all time")
    parser.add_argument("--repeats", type=int, default=5, help="solves by memory cuts, of which the median counts")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
