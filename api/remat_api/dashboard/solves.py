"""Solves and frontiers as a list, and one solve while it runs and after."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from remat_api.dashboard.addresses import base_of
from remat_api.dashboard.page_route import PageRoute
from remat_api.dashboard.pages import embedded, render
from remat_api.dashboard.visitor import Form, ReadingVisitor, SolvingVisitor
from remat_api.problems import title
from remat_api.routes.context import ID_PATTERN, ServiceOf
from remat_api.routes.solves import SolveId
from remat_api.service import Service
from remat_api.store.jobs import JobEvent
from remat_api.store.solves import Filter, Solve
from remat_api.stored_graph import StoredGraph
from remat_solver.errors import InvalidRequest, NotFound
from remat_solver.plan import share

router = APIRouter(prefix="/dashboard", route_class=PageRoute, include_in_schema=False)
PAGE_LENGTH = 50
LOG_LENGTH = 200
States = Literal["", "queued", "running", "done", "failed", "cancelled"]
Kinds = Literal["", "solve", "frontier"]


@router.get("/solves", response_class=Response)
async def get_solves(
    request: Request,
    service: ServiceOf,
    visitor: ReadingVisitor,
    state: States = "",
    kind: Kinds = "",
    before: Annotated[str | None, Query(pattern=ID_PATTERN)] = None,
) -> Response:
    """Solves and frontiers, newest first."""
    wanted = Filter(
        owner=visitor.caller.sees, state=state or None, kind=kind or None, before=before, limit=PAGE_LENGTH + 1
    )
    found = await service.solves.listing(wanted)
    older = found[PAGE_LENGTH - 1].id if len(found) > PAGE_LENGTH else None
    filters = {"state": state, "kind": kind, "before": before}
    return render("solves", request, visitor, solves=found[:PAGE_LENGTH], older=older, filters=filters)


@router.get("/solves/{solve_id}", response_class=Response)
async def get_solve(solve_id: SolveId, request: Request, service: ServiceOf, visitor: ReadingVisitor) -> Response:
    """One solve: its question, its progress, its end."""
    solve = await service.solves.get(solve_id, owner=visitor.caller.sees)
    stored = await graph_of(solve, service)
    events = await events_of(solve, service)
    return render(
        "solve",
        request,
        visitor,
        solve=solve,
        stored=stored,
        figures=embedded({"progress": _progress_chart(events, stored)}),
        has_progress=any(event.kind == "progress" for event in events),
        log=[(event, log_line(event, stored)) for event in reversed(events[-LOG_LENGTH:])],
        error_heading=title(solve.error["type"]) if solve.error else "",
    )


@router.post("/solves/{solve_id}/cancel", response_class=Response)
async def cancel_solve(
    solve_id: SolveId, request: Request, service: ServiceOf, visitor: SolvingVisitor, form: Form
) -> Response:
    """Ends a solve with the best plan so far, or with none."""
    await service.cancel(solve_id, owner=visitor.caller.sees, keep=kept(form))
    return RedirectResponse(f"{base_of(request)}/solves/{solve_id}", 303)


def kept(form: dict[str, str]) -> str:
    """What a cancel form asks to keep; raises `InvalidRequest`."""
    keep = form.get("keep", "")
    if keep not in ("best", "discard"):
        raise InvalidRequest(f"keep is {keep!r}.", hint='It is "best" or "discard".', field="keep")
    return keep


async def graph_of(solve: Solve, service: Service) -> StoredGraph | None:
    """The solve's graph; None once it was forgotten."""
    try:
        return await service.graphs.get(solve.graph_id)
    except NotFound:
        return None


async def events_of(solve: Solve, service: Service) -> list[JobEvent]:
    """What happened to the solve so far, up to its end."""
    events = await service.jobs.events_after(solve.job_id or "", 0)
    return [event for event in events if solve.finished_ms is None or event.created_ms <= solve.finished_ms]


def log_line(event: JobEvent, stored: StoredGraph | None) -> str:
    """An event in words."""
    body = event.body
    match event.kind:
        case "progress":
            best = _overhead(body["incumbent_ns"], stored)
            found = "no plan yet" if best is None else f"best plan {best:.2%} overhead"
            bound = _overhead(body["bound_ns"], stored) or 0.0
            stage = f" ({body['stage']})" if body["stage"] else ""
            return f"{body['elapsed_s']:.1f} s: {found}, bound {bound:.2%}{stage}"
        case "point":
            return f"plan found: {body['overhead']:.2%} overhead, gap {body['gap']:.2%}"
        case "running":
            return f"attempt {body['attempt']} begins"
        case "queued" if "reason" in body:
            return f"back in the queue: {body['reason']}"
        case _:
            error = body.get("error")
            return event.kind + (f": {error['detail']}" if error else "")


def _progress_chart(events: list[JobEvent], stored: StoredGraph | None) -> dict[str, list[Any]]:
    """Best plan and bound over the last attempt's seconds, as compute overheads."""
    reports = [event.body for event in events if event.kind == "progress"]
    restarts = [i for i in range(1, len(reports)) if reports[i]["elapsed_s"] < reports[i - 1]["elapsed_s"]]
    reports = reports[restarts[-1] if restarts else 0 :]
    return {
        "elapsed_s": [report["elapsed_s"] for report in reports],
        "incumbent": [_overhead(report["incumbent_ns"], stored) for report in reports],
        "bound": [_overhead(report["bound_ns"], stored) for report in reports],
    }


def _overhead(time_ns: int | None, stored: StoredGraph | None) -> float | None:
    if time_ns is None or stored is None:
        return None
    whole_ns = stored.graph.total_time_ns
    return max(0.0, share(time_ns - whole_ns, whole_ns))
