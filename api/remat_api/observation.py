"""Logs, and the middleware that gives each request an id, a line in the log and its place in the metrics.

Graphs, plans and keys never enter the log: a line names routes, ids and figures.
"""

from __future__ import annotations

import logging
import re
import secrets
import sys
import time
from typing import Any

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from remat_api.metrics import Metrics
from remat_api.tracing import span

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
log = structlog.stdlib.get_logger("remat_api.requests")


def configure_logs(*, level: str, as_json: bool) -> None:
    """One handler for everything in the process, on standard error: JSON lines, or text for a terminal."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Any] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if as_json
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
        )
    )
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    for name in ("alembic", "uvicorn"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in ("procrastinate", "psycopg.pool"):  # each failure reaches us as an exception too
        logging.getLogger(name).setLevel(logging.CRITICAL)


class Observation:
    """The outermost middleware. A caller's own `X-Request-ID` is kept; every response carries one."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = _request_id(headers)
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        began_s, status = time.perf_counter(), 500

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        with span("request", headers=headers, remat__request_id=request_id) as note:
            try:
                await self._app(scope, receive, send_on)
            finally:
                route = getattr(scope.get("route"), "path", "unknown")
                method = scope["method"] if scope["method"] in _METHODS else "other"
                note(
                    f"{method} {route}",
                    http__request__method=method,
                    http__route=route,
                    http__response__status_code=status,
                )
                self._note(scope, method, route, status, time.perf_counter() - began_s, waited=b"prefer" in headers)

    def _note(self, scope: Scope, method: str, route: str, status: int, seconds: float, *, waited: bool) -> None:
        self._metrics.requests.labels(method, route, str(status)).inc()
        if not waited and not route.endswith("/events"):
            self._metrics.request_seconds.labels(route).observe(seconds)
        if route not in _QUIET:
            owner = scope.get("state", {}).get("owner")
            milliseconds = round(seconds * 1000, 1)
            log.info("request", method=method, route=route, status=status, ms=milliseconds, caller=owner)


def _request_id(headers: dict[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
