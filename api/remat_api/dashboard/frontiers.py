"""A frontier: what each peak costs, point by point as they are found."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from remat_api.dashboard.addresses import base_of
from remat_api.dashboard.page_route import PageRoute
from remat_api.dashboard.pages import embedded, render
from remat_api.dashboard.solves import LOG_LENGTH, events_of, graph_of, kept, log_line
from remat_api.dashboard.visitor import Form, ReadingVisitor, SolvingVisitor
from remat_api.problems import title
from remat_api.routes.context import ServiceOf
from remat_api.routes.frontiers import FrontierId
from remat_solver.plan import share

router = APIRouter(prefix="/dashboard", route_class=PageRoute, include_in_schema=False)


@router.get("/frontiers/{frontier_id}", response_class=Response)
async def get_frontier(
    frontier_id: FrontierId, request: Request, service: ServiceOf, visitor: ReadingVisitor
) -> Response:
    """The frontier so far; each point leads to its plan."""
    frontier = await service.solves.get(frontier_id, owner=visitor.caller.sees, kind="frontier")
    stored = await graph_of(frontier, service)
    events = await events_of(frontier, service)
    whole_ns = stored.graph.total_time_ns if stored else 0
    points = [
        {
            **figures,
            "bound_overhead": share(figures["bound_ns"] - whole_ns, whole_ns) if whole_ns else None,
            "url": f"{base_of(request)}/frontiers/{frontier.id}/plans/{plan_id}",
        }
        for plan_id, figures in await service.solves.points(frontier.job_id or "")
    ]
    points.sort(key=lambda point: point["peak_bytes"])
    return render(
        "frontier",
        request,
        visitor,
        solve=frontier,
        stored=stored,
        points=points,
        figures=embedded({"frontier": points}),
        log=[(event, log_line(event, stored)) for event in reversed(events[-LOG_LENGTH:])],
        error_heading=title(frontier.error["type"]) if frontier.error else "",
    )


@router.post("/frontiers/{frontier_id}/cancel", response_class=Response)
async def cancel_frontier(
    frontier_id: FrontierId, request: Request, service: ServiceOf, visitor: SolvingVisitor, form: Form
) -> Response:
    """Ends a frontier with the points so far, or with none."""
    await service.cancel(frontier_id, owner=visitor.caller.sees, keep=kept(form), kind="frontier")
    return RedirectResponse(f"{base_of(request)}/frontiers/{frontier_id}", 303)
