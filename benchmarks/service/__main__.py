"""python -m benchmarks.service: the service's promises, measured on SQLite and on a PostgreSQL of its own.

`--only` picks parts; `--json FILE` writes the figures. It starts everything that it needs and takes
some minutes. CPU figures are free of what other processes take; seconds are not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from benchmarks.service.burst import burst
from benchmarks.service.costs import job_cost, read_cost, start_cost
from benchmarks.service.mishaps import survive
from tests.integration.deployments import Clustered, Deployment, Embedded, running
from tests.integration.postgres_server import PostgresServer
from tests.integration.training_graphs import uneven_chain

PARTS = ("burst", "mishaps", "jobs", "reads", "start")
DATABASES = ("sqlite", "postgresql")


class Bench:
    """Runs the parts, each on a deployment of its own."""

    def __init__(self, folder: Path, postgres: PostgresServer) -> None:
        self._folder = folder
        self._postgres = postgres
        self._count = 0

    def run(self, part: str, arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
        """The name and figures of each measurement."""
        if part == "start":
            yield "start, sqlite", asdict(start_cost(self._own_folder(), starts=arguments.starts))
        elif part == "mishaps":
            # One job may be hit by several blows here: that is no reason to give it up.
            deployment = Clustered(self._own_folder(), self._postgres, REMAT_MAX_ATTEMPTS="10")
            with running(deployment):
                yield "mishaps, postgresql", asdict(survive(deployment, self._postgres, count=arguments.jobs))
        else:
            for database in DATABASES:
                with self._deployed(database) as deployment:
                    yield f"{part}, {database}", self._measure(part, deployment, arguments)

    def _measure(self, part: str, deployment: Deployment, arguments: argparse.Namespace) -> dict[str, Any]:
        if part == "burst":
            return asdict(burst(deployment, uneven_chain(arguments.ops // 2, seed=9), asked=arguments.asked))
        if part == "jobs":
            return asdict(job_cost(deployment, jobs=arguments.jobs))
        return asdict(read_cost(deployment, reads=arguments.reads))

    @contextlib.contextmanager
    def _deployed(self, database: str) -> Iterator[Deployment]:
        folder = self._own_folder()
        deployment: Deployment = Embedded(folder) if database == "sqlite" else Clustered(folder, self._postgres)
        with running(deployment):
            yield deployment

    def _own_folder(self) -> Path:
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        return folder


def main(arguments: list[str]) -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(prog="benchmarks.service", description=__doc__)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS))
    parser.add_argument("--asked", type=int, default=1000, help="identical requests at once")
    parser.add_argument("--ops", type=int, default=1000, help="ops of the graph that they ask for")
    parser.add_argument("--jobs", type=int, default=200, help="distinct jobs")
    parser.add_argument("--reads", type=int, default=2000)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    console, measured = Console(width=120), {}
    postgres = PostgresServer()
    try:
        postgres.start()
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(Path(folder), postgres)
            for part in chosen.only:
                for name, figures in bench.run(part, chosen):
                    measured[name] = figures
                    console.print(_table(name, figures))
                    if chosen.json is not None:
                        result = {"machine": describe_machine(), "command": arguments, "measured": measured}
                        chosen.json.write_text(json.dumps(result, indent=1) + "\n")
    finally:
        postgres.remove()


def _table(name: str, figures: dict[str, Any]) -> Table:
    table = Table(title=name, title_justify="left", show_header=False)
    for figure, value in figures.items():
        table.add_row(figure, f"{value:.2f}" if isinstance(value, float) else str(value))
    return table


if __name__ == "__main__":
    main(sys.argv[1:])
