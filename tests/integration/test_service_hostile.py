"""Broken and hostile connections against the real service: it stays up, small and clean."""

from __future__ import annotations

import gzip
import hashlib
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import pytest
from backports import zstd

from benchmarks.hostile import Outcome, attack, attack_from_description
from remat.client import Client
from remat_solver.files import dump_json
from tests.integration.hostile_bodies import attacks
from tests.integration.solver_service import SolverService
from tests.integration.training_graphs import QUICK_OPS, uneven_chain

GRAPH = dump_json(replace(uneven_chain(QUICK_OPS), name="sent by no other test"))
GRAPH_ID = hashlib.sha256(GRAPH).hexdigest()
UPLOAD = f"PUT /v1/graphs/{GRAPH_ID} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
CHUNKED = UPLOAD + b"Transfer-Encoding: chunked\r\n\r\n"
MAX_GROWTH_KIB = 300 * 1024


def send_and_hang_up(service: SolverService, data: bytes) -> None:
    """Writes to the service's port and closes the connection without reading."""
    port = httpx.URL(service.url).port
    assert port is not None
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(data)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(UPLOAD + f"Content-Length: {len(GRAPH)}\r\n\r\n".encode() + GRAPH[:-100], id="body cut short"),
        pytest.param(
            UPLOAD + b"Transfer-Encoding: chunked\r\n\r\n100\r\n" + GRAPH[:256] + b"\r\n", id="chunks cut short"
        ),
        pytest.param(UPLOAD + b"Transfer-Encoding: chunked\r\n\r\nzzz\r\n", id="a chunk of no length"),
        pytest.param(UPLOAD + b"Content-Length: -1\r\n\r\n", id="a negative length"),
        pytest.param(UPLOAD + b"X: " + b"a" * 200_000, id="an endless header"),
        pytest.param(UPLOAD[:40], id="half a request"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), id="TLS"),
        pytest.param(bytes(range(256)) * 10, id="noise"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_a_broken_connection_leaves_nothing_behind(service: SolverService, data: bytes) -> None:
    send_and_hang_up(service, data)
    assert httpx.get(f"{service.url}/readyz").status_code == 200
    assert httpx.get(f"{service.url}/v1/graphs/{GRAPH_ID}").status_code == 404


def test_bombs_do_not_grow_the_service(service: SolverService, client: Client) -> None:
    client.solve(uneven_chain(QUICK_OPS, seed=99), budget_fraction=0.7)  # everything is loaded now
    before_kib = service.peak_memory_kib()
    bombs = [
        (zstd.compress(b" " * 2**30), "zstd"),
        (gzip.compress(b"[" * 2**28), "gzip"),
        (zstd.compress(b"[" * (60 * 2**20)), "zstd"),
        (zstd.compress(b'{"ops":[' + b'{"name":"a","time_ns":1},' * 300_000 + b"{}]}"), "zstd"),
        (zstd.compress(b'{"a":"' + b"\\u0000" * 5_000_000 + b'"}'), "zstd"),
    ]

    def throw(bomb: tuple[bytes, str]) -> int:
        headers = {"Content-Type": "application/json", "Content-Encoding": bomb[1]}
        return httpx.post(f"{service.url}/v1/graphs", content=bomb[0], headers=headers, timeout=120).status_code

    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(throw, bombs * 4))
    assert set(statuses) <= {400, 413, 422}
    assert service.peak_memory_kib() - before_kib < MAX_GROWTH_KIB
    assert httpx.get(f"{service.url}/readyz").status_code == 200


@pytest.mark.parametrize(
    ("bodies", "described"), [pytest.param(300, 46), pytest.param(10_000, 2000, marks=pytest.mark.full)]
)
def test_absurd_requests_are_refused_and_forgotten(
    service: SolverService, client: Client, bodies: int, described: int
) -> None:
    client.solve(uneven_chain(QUICK_OPS, seed=99), budget_fraction=0.7)
    before_kib, outcome = service.peak_memory_kib(), Outcome()
    attack(service.url, attacks(bodies, bodies), outcome)
    attack_from_description(service.url, described, bodies, outcome)
    assert outcome.faults == []
    assert outcome.answers.total() >= bodies + described // 2
    assert {status for _, status in outcome.answers} >= {400, 404, 415, 422}
    assert service.peak_memory_kib() - before_kib < MAX_GROWTH_KIB
    assert httpx.get(f"{service.url}/readyz").status_code == 200
    client.solve(uneven_chain(QUICK_OPS, seed=98), budget_fraction=0.7)
