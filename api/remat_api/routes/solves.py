"""/v1/solves: ask, look, wait, cancel, forget."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Header, Path, Query, Request, Response

from remat_api.requests import CancelRequest, FrontierRequest, SolveRequest, terms_of
from remat_api.routes.context import (
    ID_PATTERN,
    SHA256_PATTERN,
    ServiceOf,
    address_of,
    document_response,
    preferred_wait_s,
)
from remat_api.security.callers import Caller, Reader, Solver
from remat_api.service import Service
from remat_api.store.blobs import address
from remat_api.store.solves import Filter, Solve
from remat_api.stored_graph import StoredGraph
from remat_api.views import SolvePage, SolveView, solve_view
from remat_solver.files import dump_json

router = APIRouter(prefix="/v1/solves", tags=["solves"])
SolveId = Annotated[str, Path(pattern=ID_PATTERN)]
StateName = Literal["queued", "running", "done", "failed", "cancelled"]


@router.post("", operation_id="post_solve", status_code=202, responses={200: {"model": SolveView}})
async def post_solve(
    request: Request,
    response: Response,
    service: ServiceOf,
    caller: Solver,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=255, pattern="^[ -~]+$")] = None,
) -> SolveView:
    """Asks for a plan: 202 and a Location to wait at, or 200 if the answer is known (or came within `Prefer: wait`).

    A request repeated with the same `Idempotency-Key` and body within a day gives the same solve again.
    """
    async with service.intake.body(request) as body:
        body_hash = address(body)
        solve = await _repeated(idempotency_key, body_hash, service, caller)
        asked = None if solve else await service.intake.parse(SolveRequest, body)
    if asked is not None:
        stored = await graph_of(asked, service, caller.owner)
        solve = await service.ask(stored, asked.options(), caller=caller, terms=terms_of(asked))
        if idempotency_key is not None:
            await service.repeats.record(caller.owner, idempotency_key, body_hash, solve.id)
    assert solve is not None
    wait_s = preferred_wait_s(request, response, service.settings.max_wait_s)
    solve = await service.wait(solve, wait_s, owner=caller.sees)
    response.status_code = 200 if solve.is_final else 202
    response.headers["Location"] = address_of(request, f"/v1/solves/{solve.id}")
    return solve_view(solve)


@router.get("", operation_id="list_solves")
async def list_solves(
    request: Request,
    response: Response,
    service: ServiceOf,
    caller: Reader,
    state: StateName | None = None,
    graph_id: Annotated[str | None, Query(pattern=SHA256_PATTERN)] = None,
    before: Annotated[str | None, Query(pattern=ID_PATTERN, description="list solves older than this one")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> SolvePage:
    """The caller's solves, newest first. `next` (also a Link header) leads on."""
    wanted = Filter(owner=caller.sees, state=state, graph_id=graph_id, before=before, limit=limit + 1)
    found = await service.solves.listing(wanted)
    page = tuple(solve_view(solve) for solve in found[:limit])
    following = None
    if len(found) > limit:
        filters = {"state": state, "graph_id": graph_id, "limit": limit, "before": page[-1].id}
        following = "/v1/solves?" + "&".join(f"{name}={value}" for name, value in filters.items() if value is not None)
        response.headers["Link"] = f'<{address_of(request, following)}>; rel="next"'
    return SolvePage(solves=page, next=following)


@router.get("/{solve_id}", operation_id="get_solve")
async def get_solve(
    solve_id: SolveId, request: Request, response: Response, service: ServiceOf, caller: Reader
) -> SolveView:
    """How a solve stands; with `Prefer: wait=N`, once it is over or after N seconds."""
    solve = await service.solves.get(solve_id, owner=caller.sees)
    wait_s = preferred_wait_s(request, response, service.settings.max_wait_s)
    solve = await service.wait(solve, wait_s, owner=caller.sees)
    if not solve.is_final:
        response.headers["Retry-After"] = "1"
    return solve_view(solve)


@router.get("/{solve_id}/plan", operation_id="get_solve_plan", response_class=Response)
async def get_solve_plan(solve_id: SolveId, request: Request, service: ServiceOf, caller: Reader) -> Response:
    """The solve's plan; the problem that it ended with if there is none; 409 while it is open."""
    solve = await service.solves.get(solve_id, owner=caller.sees)
    plan_id, document = await service.plan_of(solve)
    return document_response(request, plan_id, document, cache_control="private, max-age=31536000, immutable")


@router.post("/{solve_id}/cancel", operation_id="cancel_solve")
async def cancel_solve(
    solve_id: SolveId,
    request: Request,
    service: ServiceOf,
    caller: Solver,
    keep: Annotated[Literal["best", "discard"] | None, Query()] = None,
) -> SolveView:
    """Cancels a solve. `keep` (query or JSON body): "best" (default) ends it with the best plan so far, "discard" with
    none. A job that others also wait for goes on for them."""
    keep = keep or await asked_to_keep(request, service)
    return solve_view(await service.cancel(solve_id, owner=caller.sees, keep=keep))


@router.delete("/{solve_id}", operation_id="delete_solve", status_code=204)
async def delete_solve(solve_id: SolveId, service: ServiceOf, caller: Solver) -> None:
    """Cancels a solve if it is open, and forgets it. Plans stay: they are shared by key."""
    await service.delete(solve_id, owner=caller.sees)


async def asked_to_keep(request: Request, service: Service) -> Literal["best", "discard"]:
    """What the body of a cancel request asks for, if it has one."""
    if not request.headers.get("content-type"):
        return "best"
    return (await service.intake.read(CancelRequest, request)).keep


async def graph_of(asked: SolveRequest | FrontierRequest, service: Service, owner: str) -> StoredGraph:
    """The graph that a question names or holds."""
    if asked.graph is None:
        return await service.graphs.get(asked.graph_id or "")
    stored, _ = await service.take_graph(dump_json(asked.graph), owner=owner, graph=asked.graph)
    return stored


async def _repeated(idempotency_key: str | None, body_hash: str, service: Service, caller: Caller) -> Solve | None:
    """The solve that an equal request made before; raises `InvalidRequest` if that one had another body."""
    if idempotency_key is None:
        return None
    solve_id = await service.repeats.find(caller.owner, idempotency_key, body_hash)
    return None if solve_id is None else await service.solves.get(solve_id, owner=caller.sees)
