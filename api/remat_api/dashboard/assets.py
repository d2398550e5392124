"""The scripts and styles of the pages."""

from __future__ import annotations

from fastapi import APIRouter, Response

from remat_api.dashboard.addresses import CHART_FILES, OWN_FILES, file_text
from remat_api.dashboard.page_route import PageRoute
from remat_solver.errors import NotFound

router = APIRouter(prefix="/dashboard", route_class=PageRoute, include_in_schema=False)
_MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@router.get("/assets/{fingerprint}/{name}", response_class=Response)
async def get_asset(fingerprint: str, name: str) -> Response:
    """A file of the dashboard. `fingerprint` only makes addresses change with their content."""
    del fingerprint
    if name not in (*OWN_FILES, *CHART_FILES):
        raise NotFound(f"the dashboard has no file {name[:40]!r}.", hint="Load the page again.")
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(file_text(name), media_type=_MEDIA_TYPES[name.rpartition(".")[2]], headers=headers)
