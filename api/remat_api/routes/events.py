"""/v1/solves/{id}/events, and those of frontiers: what happens, as server-sent events that can be replayed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Response
from fastapi.responses import StreamingResponse

from remat_api.routes.context import ServiceOf
from remat_api.routes.frontiers import FrontierId
from remat_api.routes.solves import SolveId
from remat_api.security.callers import Caller, Reader
from remat_api.service import Service
from remat_api.store.clock import iso_time
from remat_api.store.jobs import JobEvent
from remat_api.store.solves import Solve

router = APIRouter(prefix="/v1", tags=["events"])
HEARTBEAT_S = 15.0
"""Proxies cut connections that are silent for longer than about a minute."""


LastEventId = Annotated[str | None, Header()]


@router.get("/solves/{solve_id}/events", operation_id="get_solve_events", response_class=StreamingResponse)
async def get_solve_events(
    solve_id: SolveId, service: ServiceOf, caller: Reader, last_event_id: LastEventId = None
) -> Response:
    """Every event of the solve, from the first or from after `Last-Event-ID`, to its end; 204 if that was the last."""
    return await _events(await service.solves.get(solve_id, owner=caller.sees), service, caller, last_event_id)


@router.get("/frontiers/{frontier_id}/events", operation_id="get_frontier_events", response_class=StreamingResponse)
async def get_frontier_events(
    frontier_id: FrontierId, service: ServiceOf, caller: Reader, last_event_id: LastEventId = None
) -> Response:
    """As for a solve; each plan that is found is a `point` event."""
    frontier = await service.solves.get(frontier_id, owner=caller.sees, kind="frontier")
    return await _events(frontier, service, caller, last_event_id)


async def _events(solve: Solve, service: Service, caller: Caller, last_event_id: str | None) -> Response:
    after = int(last_event_id) if last_event_id and last_event_id.isascii() and last_event_id.isdigit() else 0
    after = min(after, 2**31 - 1)
    if after and solve.is_final and not await service.jobs.events_after(solve.job_id or "", after):
        return Response(status_code=204)  # tells an EventSource not to come back
    history = service.history(solve, after, owner=caller.sees, heartbeat_s=HEARTBEAT_S)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_stream(history), media_type="text/event-stream", headers=headers)


async def _stream(history: AsyncIterator[JobEvent | None]) -> AsyncIterator[str]:
    async for event in history:
        yield _format(event) if event is not None else ": still here\n\n"


def _format(event: JobEvent) -> str:
    body = json.dumps({"at": iso_time(event.created_ms), **event.body})
    number = f"id: {event.seq}\n" if event.seq else ""
    return f"{number}event: {event.kind}\ndata: {body}\n\n"
