"""The first page: how the service does, and what it is working on."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from remat_api.dashboard.page_route import PageRoute
from remat_api.dashboard.pages import render
from remat_api.dashboard.visitor import ReadingVisitor
from remat_api.routes.context import ServiceOf
from remat_api.store.clock import now_ms
from remat_api.store.solves import Filter

router = APIRouter(prefix="/dashboard", route_class=PageRoute, include_in_schema=False)
DAY_MS = 24 * 3600 * 1000
SHOWN = 8


@router.get("", response_class=Response)
async def get_overview(request: Request, service: ServiceOf, visitor: ReadingVisitor) -> Response:
    """Queue, workers, hit rate, and the solves that run, wait or came last."""
    sees = visitor.caller.sees
    listed = {
        state: await service.solves.listing(Filter(owner=sees, state=state, limit=SHOWN, kind=None))
        for state in ("running", "queued", None)
    }
    return render(
        "overview",
        request,
        visitor,
        queue=await service.jobs.queue(),
        workers=service.engine.live_workers,
        engine=service.engine.engine_version,
        activity=await service.solves.activity(since_ms=now_ms() - DAY_MS, owner=sees),
        listed=listed,
    )
