"""Runs checks, each in a process of its own, and keeps every row on disk as soon as it is there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.machine import describe_machine
from benchmarks.zoo.architecture import Architecture
from benchmarks.zoo.row import Planned, Row


def run_checks(wanted: Iterable[Architecture], path: Path, *, timeout_s: float, fresh: bool) -> list[Row]:
    """A row for each architecture wanted; those that `path` holds already are not run again, unless `fresh`.

    Stopped at any time (Ctrl-C), it has lost one row at most.
    """
    rows = {row.name: row for row in read_rows(path)}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    missing = [each for each in wanted if fresh or each.name not in rows]
    with Progress(*columns, transient=True) as progress:
        task = progress.add_task("zoo", total=len(missing))
        for architecture in missing:
            progress.update(task, description=architecture.name)
            rows[architecture.name] = _check_apart(architecture, timeout_s)
            write_rows(list(rows.values()), path)
            progress.advance(task)
    return list(rows.values())


def _check_apart(architecture: Architecture, timeout_s: float) -> Row:
    row = Row(name=architecture.name, package=architecture.package, kind=architecture.kind, seconds=timeout_s)
    command = [sys.executable, "-m", "benchmarks.zoo.check", architecture.name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        row.cause, row.reason = "time", f"not done after {timeout_s:.0f} s"
        return row
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        row.cause, row.reason = "us", f"the process ended with {done.returncode}: {last[0][:300]}"
        return row
    return _row_of(json.loads(lines[-1]))


def read_rows(path: Path) -> list[Row]:
    """The rows that a file holds; none if there is no file."""
    return [_row_of(plain) for plain in json.loads(path.read_text())["rows"]] if path.exists() else []


def write_rows(rows: list[Row], path: Path) -> None:
    """Writes the rows in one piece, with the machine and the date."""
    document = {
        "machine": describe_machine(),
        "rows": [asdict(row) for row in sorted(rows, key=lambda row: (row.package, row.kind, row.name))],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document, indent=1) + "\n")
    part.replace(path)


def _row_of(plain: dict[str, Any]) -> Row:
    return Row(**{**plain, "plans": [Planned(**each) for each in plain["plans"]]})
