"""The composition root: the one place where the service's parts are made and joined."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
from collections.abc import AsyncIterator

from fastapi import FastAPI

from remat_api import description, problems
from remat_api.bodies import Intake
from remat_api.dashboard import routes as dashboard
from remat_api.dashboard.sessions import Sessions
from remat_api.jobs.execute import Attempt
from remat_api.jobs.hub import Hub
from remat_api.jobs.local import LocalEngine
from remat_api.jobs.solver_process import SolverProcess
from remat_api.metrics import Metrics
from remat_api.observation import Observation
from remat_api.root_path import RootPath
from remat_api.routes import events, frontiers, graphs, health, plans, solves
from remat_api.routes import metrics as metrics_route
from remat_api.security.gate import Gate
from remat_api.service import Service
from remat_api.settings import Settings
from remat_api.store.answers import AnswerStore
from remat_api.store.blobs import blob_store
from remat_api.store.data_dir import data_dir_lock
from remat_api.store.database import Database, migrate
from remat_api.store.graphs import GraphStore
from remat_api.store.jobs import Claim, JobStore
from remat_api.store.keys import KeyStore
from remat_api.store.repeats import RepeatStore
from remat_api.store.solves import SolveStore

DESCRIPTION = "Optimal rematerialization plans for training graphs: the least time within a memory budget, proven."


def create_app(settings: Settings) -> FastAPI:
    """The service as an ASGI app; it opens its data folder when it starts."""

    metrics = Metrics()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with running_service(settings, metrics) as service:
            app.state.service = service
            app.state.gate = Gate(settings, service.keys)
            app.state.sessions = Sessions(settings)
            yield

    app = FastAPI(
        title="Remat",
        description=DESCRIPTION,
        version=importlib.metadata.version("remat"),
        lifespan=lifespan,
    )
    problems.install(app)
    app.add_middleware(Observation, metrics=metrics)
    if settings.root_path:
        app.add_middleware(RootPath, root_path=settings.root_path)
    for router in (
        *(part.router for part in (graphs, solves, frontiers, events, plans, health, metrics_route)),
        *dashboard.routers,
    ):
        app.include_router(router)
    description.install(app)
    return app


@contextlib.asynccontextmanager
async def running_service(settings: Settings, metrics: Metrics) -> AsyncIterator[Service]:
    """A service with its engine running, stopped again at the end."""
    with data_dir_lock(settings.data_dir):
        await asyncio.to_thread(migrate, settings.sqlalchemy_url)
        service = _assemble(settings, metrics)
        await service.engine.start()
        try:
            yield service
        finally:
            await service.engine.stop()
            await service.database.close()


def _assemble(settings: Settings, metrics: Metrics) -> Service:
    database = Database(settings.sqlalchemy_url)
    blobs = blob_store(settings)
    graphs_, answers = GraphStore(database, blobs), AnswerStore(database, blobs)
    jobs, hub = JobStore(database, answers), Hub()

    def make_attempt(claim: Claim, worker: SolverProcess) -> Attempt:
        return Attempt(
            claim=claim,
            worker=worker,
            jobs=jobs,
            graphs=graphs_,
            hub=hub,
            metrics=metrics,
            max_attempts=settings.max_attempts,
            max_threads=settings.threads_per_job,
        )

    engine = LocalEngine(
        jobs,
        make_attempt,
        workers=settings.workers,
        memory_bytes=settings.job_memory_bytes,
        drain_s=settings.drain_s,
    )
    return Service(
        settings=settings,
        intake=Intake(settings),
        database=database,
        graphs=graphs_,
        answers=answers,
        jobs=jobs,
        solves=SolveStore(database),
        keys=KeyStore(database),
        repeats=RepeatStore(database),
        hub=hub,
        engine=engine,
        metrics=metrics,
    )
