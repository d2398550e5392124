"""The parts that services and workers have in common, made and joined."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remat_api.jobs.crew import Crew
from remat_api.jobs.execute import Attempt
from remat_api.jobs.hub import Hub
from remat_api.jobs.solver_process import SolverProcess
from remat_api.metrics import Metrics
from remat_api.settings import Settings
from remat_api.store.answers import AnswerStore
from remat_api.store.blobs import blob_store
from remat_api.store.costs import CostStore
from remat_api.store.database import Database, connect
from remat_api.store.graphs import GraphStore
from remat_api.store.jobs import Announce, Claim, JobStore, announce_nothing
from remat_api.store.keys import KeyStore
from remat_api.store.repeats import RepeatStore
from remat_api.store.solves import SolveStore
from remat_api.store.workers import WorkerStore

if TYPE_CHECKING:
    import procrastinate


@dataclass(frozen=True, kw_only=True)
class Stores:
    """Every store on one database. `deliveries` is procrastinate's app beside a PostgreSQL, else None."""

    database: Database
    graphs: GraphStore
    answers: AnswerStore
    jobs: JobStore
    solves: SolveStore
    keys: KeyStore
    costs: CostStore
    repeats: RepeatStore
    workers: WorkerStore
    deliveries: procrastinate.App | None


@contextlib.asynccontextmanager
async def open_stores(settings: Settings) -> AsyncIterator[Stores]:
    """The stores on a database that is fit for use."""
    async with contextlib.AsyncExitStack() as open_things:
        database = connect(settings)
        open_things.push_async_callback(database.close)
        deliveries, announce = None, announce_nothing
        if settings.is_clustered:
            from remat_api.jobs.deliveries import Deliverer, delivery_app

            deliveries = await open_things.enter_async_context(delivery_app(settings.libpq_url).open_async())
            announce = Deliverer(deliveries)
        yield _stores(settings, database, announce, deliveries)


def _stores(settings: Settings, database: Database, announce: Announce, deliveries: procrastinate.App | None) -> Stores:
    blobs = blob_store(settings)
    answers = AnswerStore(database, blobs)
    return Stores(
        database=database,
        graphs=GraphStore(database, blobs),
        answers=answers,
        jobs=JobStore(database, answers, announce=announce, max_deaths=settings.max_attempts),
        solves=SolveStore(database, announce=announce),
        keys=KeyStore(database),
        costs=CostStore(database),
        repeats=RepeatStore(database),
        workers=WorkerStore(database),
        deliveries=deliveries,
    )


def make_crew(settings: Settings, stores: Stores, hub: Hub, metrics: Metrics) -> Crew:
    """The solver processes that `settings` ask for."""

    def make_attempt(claim: Claim, worker: SolverProcess) -> Attempt:
        return Attempt(
            claim=claim,
            worker=worker,
            jobs=stores.jobs,
            graphs=stores.graphs,
            hub=hub,
            metrics=metrics,
            max_threads=settings.threads_per_job,
        )

    return Crew(
        stores.jobs,
        make_attempt,
        size=settings.workers,
        memory_bytes=settings.job_memory_bytes,
        drain_s=settings.drain_s,
    )
