"""Services for the tests in this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from remat.client import Client
from tests.integration.solver_service import SolverService


@pytest.fixture(scope="session")
def _only_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SolverService]:
    running = SolverService(tmp_path_factory.mktemp("service"), "--workers", "1")
    yield running
    running.stop()


@pytest.fixture
def service(_only_service: SolverService) -> SolverService:
    """One service with one worker for all tests; it runs when a test begins, whatever the one before did to it."""
    if not _only_service.is_running:
        _only_service.start()
    return _only_service


@pytest.fixture
def client(service: SolverService) -> Iterator[Client]:
    """A client without a disk cache, so that every question reaches the service."""
    with Client(service.url, plan_cache=None) as asking:
        yield asking
