"""Is the process up, can it serve, and what is it."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass

from fastapi import APIRouter, Response
from sqlalchemy.exc import SQLAlchemyError

from remat_api.routes.context import ServiceOf
from remat_api.store.jobs import Queue
from remat_solver.graph import GRAPH_SCHEMA
from remat_solver.plan import PLAN_SCHEMA

router = APIRouter(tags=["health"])


@dataclass(frozen=True, kw_only=True)
class Health:
    """`status` is "ok"."""

    status: str


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """Whether requests can be served now, and which part can't if not."""

    ready: bool
    database: str
    workers: int
    engine: str
    queued: int
    running: int


@dataclass(frozen=True, kw_only=True)
class Version:
    """What runs here and which file formats it reads and writes."""

    remat: str
    engine: str
    graph_schema: str
    plan_schema: str


@router.get("/healthz", operation_id="healthz")
async def healthz() -> Health:
    """The process answers."""
    return Health(status="ok")


@router.get("/readyz", operation_id="readyz", responses={503: {"model": Readiness}})
async def readyz(response: Response, service: ServiceOf) -> Readiness:
    """The database answers, a worker lives and the MIP engine was found; else 503."""
    try:
        queue, database = await service.jobs.queue(), "ok"
    except SQLAlchemyError as error:
        queue, database = Queue(queued=0, running=0, oldest_queued_s=0), type(error).__name__
    workers = service.engine.live_workers
    ready = database == "ok" and workers > 0 and bool(service.engine.engine_version)
    if not ready:
        response.status_code = 503
        response.headers["Retry-After"] = "5"
    return Readiness(
        ready=ready,
        database=database,
        workers=workers,
        engine=service.engine.engine_version or "missing",
        queued=queue.queued,
        running=queue.running,
    )


@router.get("/version", operation_id="version")
async def version(service: ServiceOf) -> Version:
    """Versions of the service, its engine and its formats."""
    return Version(
        remat=importlib.metadata.version("remat"),
        engine=service.engine.engine_version or "missing",
        graph_schema=GRAPH_SCHEMA,
        plan_schema=PLAN_SCHEMA,
    )
