"""Commands that run a model, and so need torch: demo, capture, verify. They import it only when called."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from remat.cli.console import err, out
from remat.cli.factory import load_step, require_torch
from remat.client import Client
from remat.page import render_page
from remat_solver.budget import format_bytes, parse_bytes
from remat_solver.files import load, save, write_whole
from remat_solver.plan import Plan
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.solve import frontier

if TYPE_CHECKING:
    from remat.demo.run import ModelResult

WIDE_TABLE_COLUMNS = 165

Factory = Annotated[
    str, typer.Argument(metavar="MODULE:FACTORY", help="A function that takes nothing and returns a remat.Step.")
]


def demo(
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the rows to this file.")] = None,
    html: Annotated[Path, typer.Option(help="Where the report page goes.")] = Path("remat-demo/report.html"),
    models: Annotated[list[str] | None, typer.Option("--model", help="Only this model. Repeatable.")] = None,
) -> None:
    """Train three real models under a memory budget, beside the unmodified ones, and check every claim.

    Starts a solver service of its own, plans each model at 80, 60 and 40% of its peak, and trains it. The exit
    code is 1 if anything differs by a bit, exceeds its budget by a byte, or misses what was predicted.
    """
    require_torch()
    results = _run_demo(models or [])
    rows = [row for result in results for row in result.rows]
    _print_demo_table(results)
    write_whole(html, _demo_page(results).encode())
    out.print(f"\nreport with memory timelines and frontiers: {html}")
    if json_file:
        write_whole(json_file, json.dumps({"rows": [dataclasses.asdict(row) for row in rows]}, indent=1).encode())
        out.print(f"rows: {json_file}")
    broken = [claim for row in rows for claim in row.broken_claims()]
    for claim in broken:
        err.print(f"[bold red]claim failed:[/] {claim}")
    if broken:
        raise typer.Exit(1)
    out.print(
        f"\nEvery claim held in {len(rows)} of {len(rows)} rows: loss, gradients, buffers and parameters equal bit for "
        "bit, measured peak within the budget."
    )


def capture(
    factory: Factory,
    output: Annotated[Path, typer.Option("--output", "-o", help="Graph file to write (.json or .json.zst).")],
    costs: Annotated[bool, typer.Option("--measure/--no-measure", help="Measure each op's time and workspace.")] = True,
    reserve: Annotated[str, typer.Option(help='Set this much aside for what runs outside of the step: "1GiB".')] = "0",
) -> None:
    """Turn one training step into a graph file: its ops, values, sizes and measured times.

    Example: remat capture mypackage.training:make_step -o step.json.zst
    """
    reserve_bytes = parse_bytes(reserve, field="reserve")
    step = load_step(factory)
    from remat.torch import capture as capture_step
    from remat.torch.measure import measure

    with err.status("capturing"):
        graph = capture_step(step)
    graph = dataclasses.replace(graph, fixed_bytes=graph.fixed_bytes + reserve_bytes)
    if costs:
        with _op_progress() as progress:
            task = progress.add_task("measuring", total=None)
            graph = measure(
                graph,
                on_progress=lambda done, total, name: progress.update(
                    task, completed=done, total=total, description=f"measuring {name}"
                ),
            )
    save(graph, output)
    peak_bytes = simulate(graph, store_all_schedule(graph)).peak_bytes
    out.print(
        f"{output}: {len(graph)} ops, store-all peak {format_bytes(peak_bytes)}, {graph.total_time_ns / 1e6:.1f} ms"
    )
    if graph.estimated:
        err.print("some ops could not be run alone: their times are estimates (the log names them)")


def verify(factory: Factory, plan_file: Annotated[Path, typer.Argument(help="A plan made for that step.")]) -> None:
    """Run one step with and without the plan and compare loss, gradients, buffers and the peak.

    Example: remat verify mypackage.training:make_step plan.json
    """
    plan = load(Plan, plan_file)
    step = load_step(factory)
    from remat.torch.verify import verify as verify_step

    with err.status("running the step both ways"):
        verification = verify_step(step, plan)
    out.print(verification)


def _op_progress() -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=err,
        transient=True,
    )


def _run_demo(names: list[str]) -> list[ModelResult]:
    import torch

    from remat.demo.local_service import running_service
    from remat.demo.run import run_demo, steps_to_announce
    from remat.models import DEMO_STEPS

    torch.set_num_threads(1)  # the same times again and again, whatever else the machine does
    unknown = sorted(set(names) - set(DEMO_STEPS))
    if unknown:
        raise typer.BadParameter(f"no model {unknown[0]!r}; there are {', '.join(DEMO_STEPS)}.")
    steps = {name: make for name, make in DEMO_STEPS.items() if not names or name in names}
    with _op_progress() as progress:
        task = progress.add_task("starting a solver service", total=steps_to_announce(len(steps)))
        with running_service() as address, Client(address, plan_cache=None) as client:

            def announce(text: str) -> None:
                progress.update(task, advance=1, description=text)

            return list(run_demo(client, steps, announce))


def _print_demo_table(results: list[ModelResult]) -> None:
    """One table where the terminal is wide enough; otherwise one for each model, a column for each budget."""
    from remat.demo.row import TABLE_HEAD

    rows = [row.cells() for result in results for row in result.rows]
    if out.width >= WIDE_TABLE_COLUMNS:
        out.print(_table(TABLE_HEAD, rows))
        return
    for result in results:
        model_rows = [row.cells() for row in result.rows]
        out.print(_table(TABLE_HEAD, model_rows, transposed=True))
        out.print()


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, transposed: bool = False) -> Table:
    lines = [head, *rows]
    if transposed:
        lines = list(zip(*lines, strict=True))
    table = Table(box=None, header_style="bold", pad_edge=False)
    for number, cell in enumerate(lines[0]):
        table.add_column(cell, justify="right" if number else "left", no_wrap=True)
    for line in lines[1:]:
        table.add_row(*line)
    return table


def _demo_page(results: list[ModelResult]) -> str:
    from remat.demo.row import MAX_GAP, TABLE_HEAD

    with err.status("frontiers for the report") as status:
        models = []
        for result in results:
            status.update(f"frontier of {result.name}")
            models.append(result.for_page(frontier(result.graph, points=9, gap=MAX_GAP, time_limit_s=1.5)))
    return render_page(
        "Remat demo",
        models,
        lead="Each model was captured, measured, planned by a solver service and trained beside the unmodified one. "
        "Overheads are against the plan without recomputation (store-all).",
        table_head=TABLE_HEAD,
        table_rows=[row.cells() for result in results for row in result.rows],
    )
