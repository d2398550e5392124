"""What the commands that print rows share: their options, and how they publish."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks.machine import describe_machine
from benchmarks.row_tables import as_markdown, as_table
from benchmarks.rows import Row, contradicts
from remat_solver.options import ENGINES


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
