"""API keys: who may use the service. For administrators."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from remat_api.dashboard.addresses import base_of
from remat_api.dashboard.page_route import PageRoute
from remat_api.dashboard.pages import render
from remat_api.dashboard.visitor import AdminVisitor, Form, Visitor
from remat_api.routes.context import ServiceOf
from remat_api.security.callers import SCOPES
from remat_api.service import Service
from remat_api.store.clock import now_ms
from remat_api.store.keys import DAY_MS, check_key_request
from remat_solver.errors import InvalidRequest

router = APIRouter(prefix="/dashboard", route_class=PageRoute, include_in_schema=False)
MAX_NUMBER = 10**9


@router.get("/keys", response_class=Response)
async def get_keys(request: Request, service: ServiceOf, visitor: AdminVisitor) -> Response:
    """All keys, and a form for a new one."""
    return await _page(request, service, visitor)


@router.post("/keys", response_class=Response)
async def create_key(request: Request, service: ServiceOf, visitor: AdminVisitor, form: Form) -> Response:
    """Makes a key and shows its text, this once."""
    try:
        days = _number(form, "expires_days")
        name, scopes = form.get("name", ""), (form.get("scope", ""),)
        check_key_request(name, scopes)
        key, text = await service.keys.create(
            name,
            scopes,
            expires_ms=now_ms() + days * DAY_MS if days else None,
            max_open_solves=_number(form, "max_open_solves"),
            solve_seconds_per_day=_number(form, "solve_seconds_per_day"),
        )
    except InvalidRequest as refusal:
        return await _page(request, service, visitor, refusal=refusal, form=form)
    return await _page(request, service, visitor, made=(key, text))


@router.post("/keys/{key_id}/revoke", response_class=Response)
async def revoke_key(key_id: str, request: Request, service: ServiceOf, visitor: AdminVisitor, form: Form) -> Response:
    """Ends a key for good."""
    del form
    await service.keys.revoke(key_id)
    return RedirectResponse(f"{base_of(request)}/keys", 303)


async def _page(
    request: Request,
    service: Service,
    visitor: Visitor,
    *,
    made: tuple[object, str] | None = None,
    refusal: InvalidRequest | None = None,
    form: dict[str, str] | None = None,
) -> Response:
    return render(
        "keys",
        request,
        visitor,
        status=422 if refusal else 200,
        keys=[(key, key.state(now_ms())) for key in await service.keys.listing()],
        scopes=SCOPES,
        made=made,
        refusal=refusal,
        form=form or {},
        require_keys=service.settings.require_keys,
    )


def _number(form: dict[str, str], field: str) -> int:
    """A count in a form; 0 where the field is empty. Raises `InvalidRequest`."""
    text = form.get(field, "")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and int(text[:12]) <= MAX_NUMBER):
        raise InvalidRequest(f"{field.replace('_', ' ')} is {text[:20]!r}.", hint="Write a whole number.", field=field)
    return int(text)
