"""/v1/frontiers: plans over a range of budgets, as one job whose points appear as they are found."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from remat_api.requests import FrontierRequest, terms_of
from remat_api.routes.context import (
    ID_PATTERN,
    SHA256_PATTERN,
    ServiceOf,
    address_of,
    document_response,
    preferred_wait_s,
)
from remat_api.routes.solves import asked_to_keep, graph_of
from remat_api.security.callers import Reader, Solver
from remat_api.service import Service
from remat_api.store.solves import Solve
from remat_api.views import FrontierView, frontier_view

router = APIRouter(prefix="/v1/frontiers", tags=["frontiers"])
FrontierId = Annotated[str, Path(pattern=ID_PATTERN)]
PlanId = Annotated[str, Path(pattern=SHA256_PATTERN)]


@router.post("", operation_id="post_frontier", status_code=202, responses={200: {"model": FrontierView}})
async def post_frontier(request: Request, response: Response, service: ServiceOf, caller: Solver) -> FrontierView:
    """Asks for a frontier: 202 and a Location to wait at, or 200 if it is known (or came within `Prefer: wait`)."""
    asked = await service.intake.read(FrontierRequest, request)
    stored = await graph_of(asked, service, caller.owner)
    frontier = await service.ask_frontier(stored, asked.options(), asked.points, caller=caller, terms=terms_of(asked))
    wait_s = preferred_wait_s(request, response, service.settings.max_wait_s)
    frontier = await service.wait(frontier, wait_s, owner=caller.sees)
    response.status_code = 200 if frontier.is_final else 202
    response.headers["Location"] = address_of(request, f"/v1/frontiers/{frontier.id}")
    return await _view(frontier, service)


@router.get("/{frontier_id}", operation_id="get_frontier")
async def get_frontier(
    frontier_id: FrontierId, request: Request, response: Response, service: ServiceOf, caller: Reader
) -> FrontierView:
    """How a frontier stands, with the points so far; with `Prefer: wait=N`, once it is over or after N seconds."""
    frontier = await service.solves.get(frontier_id, owner=caller.sees, kind="frontier")
    wait_s = preferred_wait_s(request, response, service.settings.max_wait_s)
    return await _view(await service.wait(frontier, wait_s, owner=caller.sees), service)


@router.get("/{frontier_id}/plans/{plan_id}", operation_id="get_frontier_plan", response_class=Response)
async def get_frontier_plan(
    frontier_id: FrontierId,
    plan_id: PlanId,
    request: Request,
    service: ServiceOf,
    caller: Reader,
) -> Response:
    """One of the frontier's plans."""
    frontier = await service.solves.get(frontier_id, owner=caller.sees, kind="frontier")
    document = await service.frontier_plan(frontier, plan_id)
    return document_response(request, plan_id, document, cache_control="private, max-age=31536000, immutable")


@router.post("/{frontier_id}/cancel", operation_id="cancel_frontier")
async def cancel_frontier(
    frontier_id: FrontierId,
    request: Request,
    service: ServiceOf,
    caller: Solver,
    keep: Annotated[Literal["best", "discard"] | None, Query()] = None,
) -> FrontierView:
    """Ends a frontier. `keep`: "best" (default) ends it with the points so far, "discard" with none."""
    keep = keep or await asked_to_keep(request, service)
    return await _view(await service.cancel(frontier_id, owner=caller.sees, keep=keep, kind="frontier"), service)


@router.delete("/{frontier_id}", operation_id="delete_frontier", status_code=204)
async def delete_frontier(frontier_id: FrontierId, service: ServiceOf, caller: Solver) -> None:
    """Cancels a frontier if it is open, and forgets it."""
    await service.delete(frontier_id, owner=caller.sees, kind="frontier")


async def _view(frontier: Solve, service: Service) -> FrontierView:
    return frontier_view(frontier, await service.solves.points(frontier.job_id or ""))
