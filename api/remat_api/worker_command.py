"""`remat worker`: solves the jobs of services that share a PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Annotated

import typer

from remat_api.settings import Settings, read_settings
from remat_solver.errors import InvalidRequest


def worker(
    workers: Annotated[int | None, typer.Option(help="Solves at the same time.  [default: cores - 1]")] = None,
) -> None:
    """Solve jobs of the services on a shared PostgreSQL (REMAT_DATABASE_URL); as many as you like, on any machine."""
    settings = read_settings(os.environ, workers=workers)
    if not settings.is_clustered:
        raise InvalidRequest(
            "workers of their own need a PostgreSQL; with SQLite the service solves by itself.",
            hint="Set REMAT_DATABASE_URL=postgresql://user:password@host/name, or just run `remat serve`.",
            field="database_url",
        )
    from remat_api.observation import configure_logs
    from remat_api.tracing import configure_tracing

    configure_logs(level=settings.log_level, as_json=settings.logs_json)
    configure_tracing(settings)
    asyncio.run(_work(settings))


async def _work(settings: Settings) -> None:
    from remat_api.assembly import make_crew, open_stores
    from remat_api.jobs.cluster import ClusterWorker
    from remat_api.jobs.hub import Hub
    from remat_api.metrics import Metrics
    from remat_api.store.migrating import prepare
    from remat_api.tracing import flush_traces

    await asyncio.to_thread(prepare, settings)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with open_stores(settings) as stores:
        assert stores.deliveries is not None
        crew = make_crew(settings, stores, Hub(), Metrics())
        working = ClusterWorker(crew, stores.jobs, stores.workers, stores.deliveries, settings)
        typer.echo(f"Remat solves {settings.workers} jobs at once (Ctrl-C drains and stops)")
        await working.run(stop)
    await asyncio.to_thread(flush_traces)
