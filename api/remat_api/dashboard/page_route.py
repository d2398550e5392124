"""The routes of pages: errors are pages too, and every answer tells the browser to load nothing from elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute

from remat_api.dashboard.addresses import base_of
from remat_api.dashboard.pages import render_error
from remat_api.problems import status_code
from remat_solver.errors import InvalidRequest, RematError, ServiceError, Unauthorized

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
log = logging.getLogger(__name__)


class PageRoute(APIRoute):
    """A route whose errors are shown to people; whoever must sign in first is sent there."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, wrapped."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                response = await handler(request)
            except RequestValidationError as error:
                where = ".".join(str(part) for part in error.errors()[0]["loc"])
                response = render_error(request, InvalidRequest(f"{where} makes no sense here.", field=where), 422)
            except RematError as error:
                response = _answer(request, error)
            except Exception:
                log.exception("%s %s failed", request.method, request.url.path)
                broken = ServiceError("the service met an internal error.", hint="See the service's log.")
                response = render_error(request, broken, 500)
            response.headers.update(HEADERS)
            response.headers.setdefault("Cache-Control", "no-store")
            session = getattr(request.state, "session", None)
            if session is not None:
                request.app.state.sessions.write(session, request, response)
            return response

        return handle


def _answer(request: Request, error: RematError) -> Response:
    status = status_code(error)
    if isinstance(error, Unauthorized) and status == 401:
        sign_in = f"{base_of(request)}/sign-in"
        if "hx-request" in request.headers:
            return Response(status_code=401, headers={"HX-Redirect": sign_in})
        if request.method == "GET":
            sign_in += f"?next={quote(request.url.path)}"
        return RedirectResponse(sign_in, 303)
    response = render_error(request, error, status)
    if status in (429, 503):
        response.headers["Retry-After"] = str(int(error.fields.get("retry_after_s") or 5))
    return response
