"""Who looks at a page, and what the form that they sent says."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import Depends, Request

from remat_api.dashboard.sessions import Session, new_session
from remat_api.security.callers import Caller, Scope, demand
from remat_solver.errors import InvalidRequest, LimitExceeded, Unauthorized

MAX_FORM_BYTES = 16 * 1024


@dataclass(frozen=True, kw_only=True)
class Visitor:
    """A caller who came with a browser, and the session that goes with it."""

    caller: Caller
    session: Session

    @property
    def has_signed_in(self) -> bool:
        """Whether there is a session to sign out of."""
        return bool(self.session.owner)

    def may(self, scope: Scope) -> bool:
        """Whether the visitor may do what needs `scope`."""
        return scope in self.caller.scopes


def visiting(scope: Scope) -> Callable[[Request], Awaitable[Visitor]]:
    """The dependency of a page that needs `scope`. Raises `Unauthorized` and `TooManyRequests`."""

    async def visitor(request: Request) -> Visitor:
        session = session_of(request)
        caller = await request.app.state.gate.admit_session(request, session.owner)
        demand(scope, caller)
        return Visitor(caller=caller, session=session)

    return visitor


def session_of(request: Request) -> Session:
    """The request's session, or a new one of nobody, which goes out with the response."""
    session = request.app.state.sessions.read(request)
    if session is None:
        session = request.state.session = new_session("")
    found: Session = session
    return found


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form of ours. Raises `Unauthorized` unless it shows the session's token, and `LimitExceeded`."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise LimitExceeded("the form is too large.", hint="No form of ours is.", limit=MAX_FORM_BYTES)
    try:
        fields = {name: values[-1].strip() for name, values in parse_qs(body.decode(), max_num_fields=50).items()}
    except ValueError:
        raise InvalidRequest("the form can't be read.", hint="Go back and send it again.", field="form") from None
    if not secrets.compare_digest(fields.get("csrf_token", "").encode(), session_of(request).csrf_token.encode()):
        raise Unauthorized(
            "the form was not made for this session.", hint="Go back, load the page again and repeat.", status_code=403
        )
    return fields


Form = Annotated[dict[str, str], Depends(read_form)]
ReadingVisitor = Annotated[Visitor, Depends(visiting("read"))]
SolvingVisitor = Annotated[Visitor, Depends(visiting("solve"))]
AdminVisitor = Annotated[Visitor, Depends(visiting("admin"))]
