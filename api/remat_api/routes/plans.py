"""/v1/plans/{key}: the answer to a question whose key the client has computed itself."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from remat_api.routes.context import SHA256_PATTERN, ServiceOf, document_response
from remat_api.security.callers import Reader

router = APIRouter(prefix="/v1/plans", tags=["plans"])
PlanKey = Annotated[str, Path(pattern=SHA256_PATTERN, description="remat_solver.options.plan_key of the question")]


@router.get("/{key}", operation_id="get_plan", response_class=Response)
async def get_plan(key: PlanKey, request: Request, service: ServiceOf, caller: Reader) -> Response:
    """The plan for a key; 404 if the question is open, 422 with the figures if it is proven that no plan fits.

    Plans by key are shared by all callers: whoever knows the key has the graph already.
    """
    del caller
    plan_id, document = await service.plan_by_key(key)
    return document_response(request, plan_id, document, cache_control="private, max-age=31536000, immutable")
