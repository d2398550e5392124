"""The path under which a proxy shows the service."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class RootPath:
    """Middleware that tells the app its path, so that the addresses it gives out lead back through the proxy.

    The proxy may take the path off requests or leave it on: the router finds its routes either way.
    """

    def __init__(self, app: ASGIApp, *, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "root_path": self._root_path}
        await self._app(scope, receive, send)
