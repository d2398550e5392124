"""python -m benchmarks.public DIR: every public graph of DIR at several budgets, as a table and as JSON."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.cp_sat import Question, ask
from benchmarks.public_graphs import find_graphs, load_public_graph
from benchmarks.row_tables import as_markdown, as_table
from remat_solver.bounds import working_set_bound
from remat_solver.errors import InfeasibleBudget, NoPlanInTime, RematError
from remat_solver.graph import Graph
from remat_solver.options import ENGINES, SolveOptions
from remat_solver.options import Progress as SolveProgress
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.solve import solve


@dataclass(frozen=True, kw_only=True)
class Row:
    """One graph at one budget. Fractions are of the store-all time; None where there is no plan.

    What begins with `cp_sat` is the rival's answer (`benchmarks.moccasin`), if it was asked. `cpu_s` (of the solve) and
    `peak_rss_bytes` (at most) are those of the solving process and its engine together; None and 0 if not measured.
    """

    graph: str
    ops: int
    budget_fraction: float
    budget_bytes: int
    status: str
    overhead: float | None
    bound_overhead: float | None
    gap: float | None
    solve_s: float
    engine: str
    proof_scope: str = ""
    rounds: int = 0
    slots: int = 0
    reordered_peak_fraction: float | None = None
    budget_name: str = ""
    first_plan_s: float | None = None
    cpu_s: float | None = None
    peak_rss_bytes: int = 0
    cp_sat_status: str = ""
    cp_sat_overhead: float | None = None
    cp_sat_bound_overhead: float | None = None
    cp_sat_s: float | None = None


def measure_row(graph: Graph, budget_fraction: float, options: SolveOptions) -> Row:
    """Solves `graph` at the fraction of its store-all peak, which is the given order's; every ending is a row."""
    budget_bytes = options.budget_in_bytes(simulate(graph, store_all_schedule(graph)).peak_bytes) or 0
    start = time.perf_counter()
    known: dict[str, object] = {"graph": graph.name, "ops": len(graph), "budget_fraction": budget_fraction}
    known |= {"budget_bytes": budget_bytes, "engine": options.engine}
    first_plan_s: list[float] = []

    def watch(progress: SolveProgress) -> None:
        if progress.incumbent_ns is not None and not first_plan_s:
            first_plan_s.append(round(progress.elapsed_s, 3))

    try:
        plan = solve(graph, options, on_progress=watch)
    except (InfeasibleBudget, NoPlanInTime) as error:
        status = "infeasible" if isinstance(error, InfeasibleBudget) else "no_plan_in_time"
        scope = error.fields.get("proof_scope") or ""
        ending = {"status": status, "overhead": None, "bound_overhead": None, "gap": None, "proof_scope": scope}
    else:
        ending = {"status": plan.status, "overhead": plan.overhead, "bound_overhead": plan.bound_overhead}
        ending |= {"gap": plan.gap, "proof_scope": plan.proof_scope}
        if plan.is_reordered:
            ending |= {"reordered_peak_fraction": plan.provenance.reordered_peak_bytes / plan.store_all_peak_bytes}
        ending |= {"rounds": plan.provenance.rounds, "slots": plan.provenance.slots}
    solve_s = round(time.perf_counter() - start, 4)
    if not first_plan_s and ending["overhead"] is not None:
        first_plan_s.append(solve_s)
    known |= {"first_plan_s": first_plan_s[0] if first_plan_s else None}
    return Row(**known, **ending, solve_s=solve_s)  # type: ignore[arg-type]


def ask_cp_sat(row: Row, graph: Graph, *, limit_s: float, workers: int) -> Row:
    """The row with the rival's answer beside ours."""
    question = Question(graph=graph, budget_bytes=row.budget_bytes, time_limit_s=limit_s, workers=workers)
    answer = ask([question])[0]
    times = [None if ns is None else ns / graph.total_time_ns - 1 for ns in (answer.time_ns, answer.bound_ns)]
    return dataclasses.replace(
        row,
        cp_sat_status=answer.status,
        cp_sat_overhead=times[0],
        cp_sat_bound_overhead=times[1],
        cp_sat_s=answer.seconds,
    )


def contradicts(row: Row) -> bool:
    """Whether the rival found a schedule where ours proved that none exists, or that none is as fast."""
    if row.cp_sat_overhead is None or row.proof_scope not in ("order", "checkmate"):
        return False
    return row.bound_overhead is None or row.cp_sat_overhead < row.bound_overhead - 1e-9


def describe_machine() -> dict[str, str]:
    """Date, processor, cores and versions: what a committed table needs to be read later."""
    versions = {name: _version(name) for name in ("remat", "pulp", "highspy", "ortools")}
    cores = str(os.cpu_count())
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return {"date": date, "cores": cores, "python": platform.python_version(), "machine": _processor(), **versions}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


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


def publish(rows: list[Row], title: str, module: str, arguments: argparse.Namespace, console: Console) -> int:
    """Prints the rows and writes them where asked; exit code 1 if ours and the rival's contradict each other."""
    Console(width=None if sys.stdout.isatty() else 180).print(as_table(rows, title))
    machine = describe_machine()
    if arguments.json:
        document = {"machine": machine, "command": sys.argv[1:], "rows": [asdict(row) for row in rows]}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    if arguments.markdown:
        command = " ".join(["python -m", f"benchmarks.{module}", *sys.argv[1:]])
        arguments.markdown.parent.mkdir(parents=True, exist_ok=True)
        arguments.markdown.write_text(as_markdown(rows, title, command=command, machine=machine))
    contradictions = [row for row in rows if contradicts(row)]
    for row in contradictions:
        console.print(f"[red]{row.graph} at {row.budget_fraction:g}: CP-SAT's schedule contradicts our proof[/]")
    return 1 if contradictions else 0


def numbers(text: str) -> list[float]:
    """The numbers of a comma-separated list; "" holds none."""
    return [float(number) for number in text.split(",") if number]


def add_common_arguments(parser: argparse.ArgumentParser, *, gap: float) -> None:
    """What both benchmarks take: the engine, the limits, the rival, the files to write."""
    parser.add_argument("--engine", default="cbc", choices=ENGINES)
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each solve")
    parser.add_argument("--gap", type=float, default=gap, help="stop at this gap, a share of the store-all time")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--cp-sat-limit",
        type=float,
        default=0.0,
        metavar="S",
        help="also ask CP-SAT with retention intervals (needs the extra `benchmarks`), for S seconds each",
    )
    parser.add_argument("--cp-sat-workers", type=int, default=2, help="its threads")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--markdown", type=Path, help="write the table here")


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
