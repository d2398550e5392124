"""What every route needs: the service, and the headers that many share."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends, Request, Response

from remat_api.service import Service

_WAIT = re.compile(r"\bwait\s*=\s*(\d{1,6})\b")
SHA256_PATTERN = "^[0-9a-f]{64}$"
ID_PATTERN = "^[0-9a-f]{32}$"


async def _service(request: Request) -> Service:  # async, or each request would go through a thread and back
    service: Service = request.app.state.service
    return service


ServiceOf = Annotated[Service, Depends(_service)]


def address_of(request: Request, path: str) -> str:
    """A path of ours as clients must ask for it, whatever a proxy put before it."""
    root_path: str = request.scope.get("root_path", "")
    return root_path.rstrip("/") + path


def preferred_wait_s(request: Request, response: Response, most_s: float) -> float:
    """Seconds of `Prefer: wait=N` (RFC 7240), within the service's limit; 0 without it."""
    match = _WAIT.search(request.headers.get("prefer", ""))
    if match is None:
        return 0.0
    wait_s = min(float(match[1]), most_s)
    response.headers["Preference-Applied"] = f"wait={wait_s:g}"
    return wait_s


def document_response(request: Request, document_id: str, document: bytes, *, cache_control: str) -> Response:
    """An immutable JSON document under its ETag, or 304 if the client has it."""
    headers = {"ETag": f'"{document_id}"', "Cache-Control": cache_control}
    asked = request.headers.get("if-none-match", "")
    if f'"{document_id}"' in asked or asked.strip() == "*":
        return Response(status_code=304, headers=headers)
    return Response(document, media_type="application/json", headers=headers)
