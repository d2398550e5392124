"""`remat worker` in this process, where a test can say what its queue's library does at which moment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import procrastinate
import pytest
from procrastinate.exceptions import ConnectorException

from remat_api.assembly import make_crew, open_stores
from remat_api.jobs.cluster import ClusterWorker
from remat_api.jobs.hub import Hub
from remat_api.metrics import Metrics
from remat_api.settings import Settings
from remat_api.store.migrating import migrate
from tests.integration.postgres_server import PostgresServer

HANGS_AFTER_S = 20.0


def test_a_stop_that_meets_a_lost_database_is_a_stop(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library then raises what the database did, in place of the cancellation that it was told."""
    settings = Settings(data_dir=tmp_path, database_url=postgres.new_database(), workers=1)
    migrate(settings.sqlalchemy_url)
    asked = 0

    async def lose_the_database(_app: procrastinate.App, **_options: Any) -> None:
        nonlocal asked
        asked += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if asked == 1:
                raise ConnectorException from None
            raise

    monkeypatch.setattr(procrastinate.App, "run_worker_async", lose_the_database)

    async def work() -> None:
        async with open_stores(settings) as stores:
            assert stores.deliveries is not None
            crew = make_crew(settings, stores, Hub(), Metrics())
            worker = ClusterWorker(crew, stores.jobs, stores.workers, stores.deliveries, settings)
            stop = asyncio.Event()
            asyncio.get_running_loop().call_later(0.5, stop.set)
            await asyncio.wait_for(worker.run(stop), HANGS_AFTER_S)

    asyncio.run(work())
    assert asked == 1
