"""/v1/graphs: upload once, by content address."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from remat_api.routes.context import SHA256_PATTERN, ServiceOf, address_of, document_response
from remat_api.security.callers import Reader, Solver
from remat_api.store.blobs import address
from remat_api.store.graphs import survey
from remat_api.views import GraphForecast, GraphView, graph_forecast, graph_view
from remat_solver.errors import InvalidRequest

router = APIRouter(prefix="/v1", tags=["graphs"])
GraphId = Annotated[str, Path(pattern=SHA256_PATTERN, description="sha256 (hex) of the graph's JSON text")]


@router.put("/graphs/{graph_id}", operation_id="put_graph", responses={201: {"model": GraphView}})
async def put_graph(
    graph_id: GraphId, request: Request, response: Response, service: ServiceOf, caller: Solver
) -> GraphView:
    """Stores a graph under the sha256 of its JSON (before compression); 201 if it is new, 200 if not."""
    async with service.intake.body(request) as text:
        if address(text) != graph_id:
            raise InvalidRequest(
                f"the body's sha256 is {address(text)}, not the {graph_id} of the address.",
                hint="Send the bytes that were hashed; the hash is of the JSON before compression.",
                field="graph_id",
            )
        return await _store(text, request, response, service, caller)


@router.post("/graphs", operation_id="post_graph", status_code=201, responses={200: {"model": GraphView}})
async def post_graph(request: Request, response: Response, service: ServiceOf, caller: Solver) -> GraphView:
    """Stores a graph; the service computes its address (`id`)."""
    async with service.intake.body(request) as text:
        return await _store(text, request, response, service, caller)


@router.get("/graphs/{graph_id}", operation_id="get_graph")
async def get_graph(graph_id: GraphId, service: ServiceOf, caller: Reader) -> GraphView:
    """A stored graph's figures."""
    del caller
    return graph_view(await service.graphs.get(graph_id))


@router.get("/graphs/{graph_id}/document", operation_id="get_graph_document", response_class=Response)
async def get_graph_document(graph_id: GraphId, request: Request, service: ServiceOf, caller: Reader) -> Response:
    """The graph's JSON, byte for byte as it was sent."""
    del caller
    document = await service.graphs.document(graph_id)
    return document_response(request, graph_id, document, cache_control="private, max-age=31536000, immutable")


@router.post("/graphs:validate", operation_id="validate_graph")
async def validate_graph(request: Request, service: ServiceOf, caller: Solver) -> GraphForecast:
    """Checks a graph and says what planning it takes; stores nothing."""
    del caller
    async with service.intake.body(request) as text:
        graph = await service.intake.graph(text)
        return await asyncio.to_thread(lambda: graph_forecast(survey(text, graph)))


async def _store(text: bytes, request: Request, response: Response, service: ServiceOf, caller: Solver) -> GraphView:
    stored, is_new = await service.take_graph(text, owner=caller.owner)
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = address_of(request, f"/v1/graphs/{stored.id}")
    return graph_view(stored)
