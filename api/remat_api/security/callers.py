"""The caller of a request: whom it is from and what it may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

Scope = str
SCOPES: tuple[Scope, ...] = ("solve", "read", "admin")


@dataclass(frozen=True, kw_only=True)
class Caller:
    """`owner` is the id of the caller's key; solves are kept apart by it."""

    owner: str
    scopes: frozenset[Scope]

    @property
    def sees(self) -> str | None:
        """Whose solves the caller may see: its own, or everybody's (None)."""
        return None if "admin" in self.scopes else self.owner


LOCAL = Caller(owner="local", scopes=frozenset(SCOPES))
"""The caller of a service without keys, which listens on loopback alone."""


async def identify(request: Request) -> Caller:
    """The caller of a request."""
    del request
    return LOCAL


CallerOf = Annotated[Caller, Depends(identify)]
