"""The API's description (OpenAPI): what FastAPI sees for itself, and what it can't see.

Bodies are read by `bodies`, not by FastAPI, and errors are problems: both are added here.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from remat_api.requests import CancelRequest, CostsRequest, FrontierRequest, SolveRequest
from remat_solver.graph import Graph
from remat_solver.plan import Plan

_BODIES: dict[str, tuple[Any, bool]] = {
    "put_graph": (Graph, True),
    "post_graph": (Graph, True),
    "validate_graph": (Graph, True),
    "post_solve": (SolveRequest, True),
    "cancel_solve": (CancelRequest, False),
    "post_frontier": (FrontierRequest, True),
    "cancel_frontier": (CancelRequest, False),
    "put_costs": (CostsRequest, True),
}
"""Operation -> the kind of its body, and whether it needs one."""
_DOCUMENTS: dict[str, Any] = {
    "get_graph_document": Graph,
    "get_solve_plan": Plan,
    "get_plan": Plan,
    "get_frontier_plan": Plan,
}
_REF = "#/components/schemas/{model}"
_PROBLEM_SCHEMA = {
    "title": "Problem",
    "description": "RFC 9457. `type` is urn:remat:problem: and the error's name; its figures are further members.",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "examples": ["urn:remat:problem:infeasible-budget"]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong, and where."},
        "hint": {"type": "string", "description": "What to try next."},
    },
    "additionalProperties": True,
}


def install(app: FastAPI) -> None:
    """Makes the app describe itself in full."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = describe(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = _PROBLEM_SCHEMA
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, methods in document["paths"].items():
        for operation in methods.values():
            _complete(operation, schemas)
            if path.startswith("/v1"):
                operation["security"] = [{"key": []}, {}]
    return document


def _complete(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    name = operation["operationId"]
    if name in _BODIES:
        kind, required = _BODIES[name]
        content = {"application/json": {"schema": _schema(kind, schemas)}}
        operation["requestBody"] = {"required": required, "content": content}
    if name in _DOCUMENTS:
        content = {"application/json": {"schema": _schema(_DOCUMENTS[name], schemas)}}
        operation["responses"]["200"] = {"description": "The document", "content": content}
        operation["responses"]["304"] = {"description": "The client has it already (If-None-Match)"}
    operation["responses"].pop("422", None)
    operation["responses"]["default"] = {
        "description": "A problem",
        "content": {"application/problem+json": {"schema": {"$ref": _REF.format(model="Problem")}}},
    }


def _schema(kind: Any, schemas: dict[str, Any]) -> dict[str, str]:
    """A reference to the kind's schema, which is put among the components with all that it refers to."""
    schema = TypeAdapter(kind).json_schema(ref_template=_REF)
    schemas.update(schema.pop("$defs", {}))
    schemas[kind.__name__] = schema
    return {"$ref": _REF.format(model=kind.__name__)}
