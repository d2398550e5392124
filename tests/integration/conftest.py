"""Services for the tests in this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from remat.client import Client
from tests.integration.solver_service import SolverService


@pytest.fixture(scope="module")
def _module_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SolverService]:
    running = SolverService(tmp_path_factory.mktemp("service"))
    yield running
    running.stop()


@pytest.fixture
def service(_module_service: SolverService) -> SolverService:
    """One service for a module's tests; it runs when a test begins, whatever the one before did to it."""
    if not _module_service.is_running:
        _module_service.start()
    return _module_service


@pytest.fixture
def fresh_service(tmp_path: Path) -> Iterator[SolverService]:
    """A running service of the test's own, with nothing in its folder."""
    running = SolverService(tmp_path)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def client(service: SolverService) -> Iterator[Client]:
    """A client without a disk cache, so that every question reaches the service."""
    with Client(service.url, plan_cache=None) as asking:
        yield asking
