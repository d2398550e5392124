"""All routes of the dashboard, under /dashboard; `/` leads there. They are no part of the API's description."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from remat_api.dashboard import assets, frontiers, keys, overview, plans, sign_in, solves
from remat_api.dashboard.addresses import base_of
from remat_api.dashboard.page_route import PageRoute

front = APIRouter(route_class=PageRoute, include_in_schema=False)


@front.get("/", response_class=Response)
async def front_door(request: Request) -> Response:
    """People who open the service's address want the dashboard."""
    return RedirectResponse(base_of(request), 307)


routers = (front, *(part.router for part in (overview, solves, plans, frontiers, keys, sign_in, assets)))
