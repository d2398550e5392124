"""Errors as RFC 9457 problems: `type` is urn:remat:problem: + the slug, and the error's figures follow."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from remat_api.store.database import AWAY, first_line
from remat_solver.errors import (
    Conflict,
    EngineMissing,
    InfeasibleBudget,
    InvalidGraph,
    InvalidPlan,
    InvalidRequest,
    JobCancelled,
    LimitExceeded,
    NotFound,
    QueueTimeout,
    RematError,
    ServiceError,
    ServiceUnavailable,
    SolveError,
    TooManyRequests,
    Unauthorized,
    UnreadableFile,
)

log = logging.getLogger(__name__)
TYPE_PREFIX = "urn:remat:problem:"
MEDIA_TYPE = "application/problem+json"

STATUS_CODES: dict[type[RematError], int] = {
    UnreadableFile: 400,
    Unauthorized: 401,
    NotFound: 404,
    Conflict: 409,
    JobCancelled: 409,
    QueueTimeout: 409,
    LimitExceeded: 413,
    InvalidGraph: 422,
    InvalidPlan: 422,
    InvalidRequest: 422,
    InfeasibleBudget: 422,
    TooManyRequests: 429,
    ServiceUnavailable: 503,
    EngineMissing: 503,
    SolveError: 409,  # the solve that was asked about ended so
    ServiceError: 500,
    RematError: 500,
}
_HTTP_SLUGS = {404: "not-found", 405: "invalid-request", 401: "unauthorized", 403: "unauthorized"}


def status_code(error: RematError) -> int:
    """The HTTP status of an error: its own if it names one, else that of its nearest class in the table."""
    own = error.fields.get("status_code")
    if own is not None:
        return int(own)
    return next(STATUS_CODES[cls] for cls in type(error).__mro__ if cls in STATUS_CODES)


def title(slug: str) -> str:
    """ "infeasible-budget" -> "Infeasible budget"."""
    return slug.replace("-", " ").capitalize()


def problem(body: dict[str, Any], status: int) -> dict[str, Any]:
    """The problem for an error's `to_dict`."""
    slug = str(body.get("type", "error"))
    figures = {name: value for name, value in body.items() if name not in ("type", "status_code", "url")}
    return {"type": TYPE_PREFIX + slug, "title": title(slug), "status": status, **figures}


def stored_problem(body: dict[str, Any] | None) -> dict[str, Any] | None:
    """The problem for an error that a solve ended with."""
    return body and problem(body, status_code(RematError.from_dict(body)))


def respond(error: RematError) -> JSONResponse:
    """The error as a response."""
    status = status_code(error)
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (429, 503):
        headers["Retry-After"] = str(int(error.fields.get("retry_after_s") or 5))
    return JSONResponse(problem(error.to_dict(), status), status, headers=headers, media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Makes every failure of the app a problem."""
    app.add_exception_handler(RematError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    for away in AWAY:
        app.add_exception_handler(away, _on_database_away)
    app.add_exception_handler(Exception, _on_surprise)


async def _on_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RematError)
    if status_code(error) >= 500:
        log.error("%s %s: %s", request.method, request.url.path, error)
    return respond(error)


async def _on_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    del request
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return respond(InvalidRequest(f"{where}: {first['msg']}.", hint="See /docs.", field=where))


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    slug = _HTTP_SLUGS.get(error.status_code, "invalid-request")
    body = {"type": slug, "detail": f"{request.method} {request.url.path}: {error.detail}.", "hint": "See /docs."}
    return JSONResponse(
        problem(body, error.status_code), error.status_code, headers=error.headers, media_type=MEDIA_TYPE
    )


async def _on_database_away(request: Request, error: Exception) -> JSONResponse:
    log.error("%s %s: the database is away: %s", request.method, request.url.path, first_line(error))
    return respond(ServiceUnavailable("the service's database can't be reached.", hint="Try again in a moment."))


async def _on_surprise(request: Request, error: Exception) -> JSONResponse:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return respond(ServiceError("the service met an internal error.", hint="See the service's log."))
