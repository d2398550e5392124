"""The composition root: the one place where the service's parts are made and joined."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
from collections.abc import AsyncIterator

from fastapi import FastAPI

from remat_api import description, problems
from remat_api.assembly import Stores, make_crew, open_stores
from remat_api.bodies import Intake
from remat_api.dashboard import routes as dashboard
from remat_api.dashboard.sessions import Sessions
from remat_api.jobs.engine import JobEngine
from remat_api.jobs.hub import Hub
from remat_api.jobs.local import LocalEngine
from remat_api.metrics import Metrics
from remat_api.observation import Observation
from remat_api.root_path import RootPath
from remat_api.routes import costs, events, frontiers, graphs, health, plans, solves
from remat_api.routes import metrics as metrics_route
from remat_api.security.gate import Gate
from remat_api.service import Service
from remat_api.settings import Settings
from remat_api.store.data_dir import data_dir_lock
from remat_api.store.migrating import prepare
from remat_api.tracing import flush_traces

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
        *(part.router for part in (plans, solves, graphs, frontiers, events, costs, health, metrics_route)),
        *dashboard.routers,
    ):
        app.include_router(router)
    description.install(app)
    return app


@contextlib.asynccontextmanager
async def running_service(settings: Settings, metrics: Metrics) -> AsyncIterator[Service]:
    """A service with its engine running, stopped again at the end."""
    with contextlib.nullcontext() if settings.is_clustered else data_dir_lock(settings.data_dir):
        await asyncio.to_thread(prepare, settings)
        async with open_stores(settings) as stores:
            service = _assemble(settings, stores, metrics)
            await service.engine.start()
            try:
                yield service
            finally:
                await service.engine.stop()
                await asyncio.to_thread(flush_traces)


def _assemble(settings: Settings, stores: Stores, metrics: Metrics) -> Service:
    hub = Hub()
    return Service(
        settings=settings,
        intake=Intake(settings),
        database=stores.database,
        graphs=stores.graphs,
        answers=stores.answers,
        jobs=stores.jobs,
        solves=stores.solves,
        keys=stores.keys,
        costs=stores.costs,
        repeats=stores.repeats,
        hub=hub,
        engine=_engine(settings, stores, hub, metrics),
        metrics=metrics,
    )


def _engine(settings: Settings, stores: Stores, hub: Hub, metrics: Metrics) -> JobEngine:
    if settings.is_clustered:
        from remat_api.jobs.cluster import ClusterEngine  # its drivers come with the extra `postgresql`

        return ClusterEngine(
            stores.jobs,
            stores.workers,
            hub,
            libpq_url=settings.libpq_url,
            stalled_after_s=settings.stalled_after_s,
        )
    crew = make_crew(settings, stores, hub, metrics)
    return LocalEngine(stores.jobs, crew, stalled_after_s=settings.stalled_after_s)
