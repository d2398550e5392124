"""The caller of a request: whom it is from and what it may do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends, Request

from remat_api.store.keys import ApiKey
from remat_solver.errors import Unauthorized

Scope = Literal["solve", "read", "admin"]
SCOPES: tuple[Scope, ...] = ("solve", "read", "admin")
_IMPLIED: dict[str, frozenset[str]] = {
    "read": frozenset({"read"}),
    "solve": frozenset({"solve", "read"}),
    "admin": frozenset(SCOPES),
}


@dataclass(frozen=True, kw_only=True)
class Caller:
    """`owner` is the id of the caller's key; solves are kept apart by it. `key` is None for those without one."""

    owner: str
    scopes: frozenset[str]
    key: ApiKey | None = None

    @property
    def sees(self) -> str | None:
        """Whose solves the caller may see: its own, or everybody's (None)."""
        return None if "admin" in self.scopes else self.owner


LOCAL = Caller(owner="local", scopes=frozenset(SCOPES))
"""Whoever calls a service that asks for no keys."""
ADMINISTRATOR = Caller(owner="administrator", scopes=frozenset(SCOPES))
"""Whoever shows the key of the setting `admin_key`."""


def caller_of(key: ApiKey) -> Caller:
    """The caller who shows a valid key."""
    scopes = frozenset[str]().union(*(_IMPLIED.get(scope, frozenset()) for scope in key.scopes))
    return Caller(owner=key.id, scopes=scopes, key=key)


def allowed_to(scope: Scope) -> Callable[[Request], Awaitable[Caller]]:
    """The dependency of a route that needs `scope`. Raises `Unauthorized` and `TooManyRequests`."""

    async def caller(request: Request) -> Caller:
        found: Caller = await request.app.state.gate.admit(request)
        demand(scope, found)
        return found

    return caller


def demand(scope: Scope, caller: Caller) -> None:
    """Raises `Unauthorized` if the caller lacks `scope`."""
    if scope not in caller.scopes:
        raise Unauthorized(
            f"this key may not {scope}.",
            hint=f"Ask for one that may: remat keys create NAME --scope {scope}.",
            status_code=403,
        )


Reader = Annotated[Caller, Depends(allowed_to("read"))]
Solver = Annotated[Caller, Depends(allowed_to("solve"))]
Administrator = Annotated[Caller, Depends(allowed_to("admin"))]
