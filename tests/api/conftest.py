"""The app in this process, with its real database and a real worker, driven through ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

from remat_api.app import create_app
from remat_api.settings import Settings


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The service runs on asyncio."""
    return "asyncio"


@pytest.fixture(scope="module")
async def app(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FastAPI]:
    """A running app whose limits are small enough to be met in a test."""
    settings = Settings(
        data_dir=tmp_path_factory.mktemp("data"),
        workers=1,
        max_wire_bytes=200_000,
        max_body_bytes=500_000,
        max_ops=1000,
    )
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        while not app.state.service.engine.engine_version:
            await asyncio.sleep(0.05)
        yield app


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the app."""
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
