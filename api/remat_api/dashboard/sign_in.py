"""Signing in and out."""

from __future__ import annotations

import re

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from remat_api.dashboard.addresses import base_of
from remat_api.dashboard.page_route import PageRoute
from remat_api.dashboard.pages import render
from remat_api.dashboard.sessions import new_session
from remat_api.dashboard.visitor import Form, session_of
from remat_api.security.callers import demand
from remat_solver.errors import Unauthorized

router = APIRouter(prefix="/dashboard", route_class=PageRoute, include_in_schema=False)
_PATH = re.compile(r"/[A-Za-z0-9/_-]*")


@router.get("/sign-in", response_class=Response)
async def get_sign_in(request: Request, next: str = "") -> Response:  # noqa: A002 (the address's own word)
    """Asks for a key."""
    return render("sign_in", request, None, form_token=session_of(request).csrf_token, next=next, refusal=None)


@router.post("/sign-in", response_class=Response)
async def post_sign_in(request: Request, form: Form) -> Response:
    """Exchanges a key for a session."""
    target = form.get("next", "")
    try:
        caller = await request.app.state.gate.open(form.get("api_key", ""))
        demand("read", caller)
    except Unauthorized as error:
        token = session_of(request).csrf_token
        return render("sign_in", request, None, status=401, form_token=token, next=target, refusal=error)
    request.state.session = new_session(caller.owner)
    is_ours = target.startswith(f"{base_of(request)}/") and _PATH.fullmatch(target)
    return RedirectResponse(target if is_ours else base_of(request), 303)


@router.post("/sign-out", response_class=Response)
async def post_sign_out(request: Request, form: Form) -> Response:
    """Ends the session."""
    del form
    request.state.session = new_session("")
    return RedirectResponse(f"{base_of(request)}/sign-in", 303)
