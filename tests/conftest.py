"""What tests of several folders share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of our own; take a fresh database from it."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()
