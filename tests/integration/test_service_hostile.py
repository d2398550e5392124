"""Broken and hostile connections against the real service: it stays up, small and clean."""

from __future__ import annotations

import gzip
import hashlib
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from backports import zstd

from remat.client import Client
from remat_solver.files import dump_json
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


def memory_kib(pid: int) -> int:
    """The most memory that a process has had so far."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1])


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
    before_kib = memory_kib(service.pid)
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
    assert memory_kib(service.pid) - before_kib < MAX_GROWTH_KIB
    assert httpx.get(f"{service.url}/readyz").status_code == 200
