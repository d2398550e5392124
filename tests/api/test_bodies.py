"""Malformed and hostile bodies: each gives a problem that says what is wrong, and the service goes on."""

from __future__ import annotations

import gzip
import hashlib
import json
from typing import Any

import httpx
import pytest
from backports import zstd
from fastapi import FastAPI

from remat_solver.files import dump_json
from tests.integration.training_graphs import uneven_chain

pytestmark = pytest.mark.anyio

GRAPH = dump_json(uneven_chain(5))
OP = '{"name": "f", "time_ns": 1, "writes": [{"size_bytes": 1}]}'


def graph_with(**fields: Any) -> bytes:
    """The JSON of a small graph, with fields put in or replaced."""
    return json.dumps({**json.loads(GRAPH), **fields}).encode()


def op_with(**fields: Any) -> bytes:
    """The JSON of a graph of one op with these fields."""
    return json.dumps({"ops": [{**json.loads(OP), **fields}]}).encode()


BAD_GRAPHS: list[tuple[str, bytes, int, str]] = [
    ("empty", b"", 400, "not JSON"),
    ("truncated", GRAPH[:-20], 400, "not JSON"),
    ("two documents", GRAPH + GRAPH, 400, "not JSON"),
    ("no object", b"[1, 2]", 400, "no graph"),
    ("not UTF-8", GRAPH.replace(b"chain", b"ch\xffin"), 400, "UTF-8"),
    ("UTF-16", GRAPH.decode().encode("utf-16"), 400, "UTF-8"),
    ("NaN", GRAPH.replace(b'"fixed_bytes":1000', b'"fixed_bytes":NaN'), 400, "NaN"),
    ("infinity", GRAPH.replace(b'"fixed_bytes":1000', b'"fixed_bytes":-Infinity'), 400, "-Infinity"),
    ("key twice", b'{"ops": [], "ops": [' + OP.encode() + b"]}", 400, "'ops' twice"),
    ("key twice within", b'{"ops": [{"name": "a", "name": "b", "time_ns": 1}]}', 400, "'name' twice"),
    ("nested lists", b"[" * 15_000 + b"]" * 15_000, 400, "deep"),
    ("nested objects", b'{"a":' * 15_000 + b"1" + b"}" * 15_000, 400, "deep"),
    ("unknown field", graph_with(extra=1), 400, "extra"),
    ("unknown field of an op", op_with(flops=3), 400, "flops"),
    ("missing field", b'{"name": "x"}', 400, "ops"),
    ("text for a number", op_with(time_ns="1"), 400, "time_ns"),
    ("fraction for an integer", op_with(time_ns=1.5), 400, "time_ns"),
    ("boolean for an integer", op_with(time_ns=True), 400, "time_ns"),
    ("a number of 5000 digits", b'{"ops": [], "fixed_bytes": ' + b"9" * 5000 + b"}", 400, "digits"),
    ("a huge number", graph_with(fixed_bytes=2**70), 422, "fixed_bytes"),
    ("a huge exponent", GRAPH.replace(b'"fixed_bytes":1000', b'"fixed_bytes":1e400'), 400, "fixed_bytes"),
    ("a negative size", op_with(writes=[{"size_bytes": -1}]), 422, "size_bytes"),
    ("no ops", b'{"ops": []}', 422, "no ops"),
    ("a cycle", op_with(reads=[0]), 422, "topological"),
    ("a dangling read", op_with(reads=[7]), 422, "no op writes"),
    ("a read twice", graph_with(outputs=[1, 1]), 422, "twice"),
    ("another schema", graph_with(schema="remat.graph/99"), 400, "schema"),
    ("a lone surrogate", b'{"ops": [{"name": "\\ud800", "time_ns": 1}]}', 400, "escape"),
    ("a lone surrogate twice", b'{"\\ud800": 1, "\\ud800": 2}', 400, "twice"),
    ("totals beyond 64 bits", json.dumps({"ops": [{"name": "f", "time_ns": 2**60}] * 9}).encode(), 422, "total"),
    ("too many ops", json.dumps({"ops": [{"name": "f", "time_ns": 1}] * 1001}).encode(), 413, "more than 1000 ops"),
    ("too many values", op_with(writes=[{"size_bytes": 1}] * 8001), 413, "more than 8000 values"),
    ("too large", b" " * 200_001, 413, "larger"),
]


@pytest.mark.parametrize(("body", "status", "word"), [case[1:] for case in BAD_GRAPHS], ids=[c[0] for c in BAD_GRAPHS])
async def test_a_bad_graph_is_a_problem_that_says_why(
    http: httpx.AsyncClient, body: bytes, status: int, word: str
) -> None:
    response = await http.post("/v1/graphs", content=body, headers={"Content-Type": "application/json"})
    assert_problem(response, status, word)
    assert (await http.get("/readyz")).status_code == 200


BAD_ENCODINGS: list[tuple[str, str, bytes, int, str]] = [
    ("zstd bomb", "zstd", zstd.compress(b" " * 2**28), 400, "decompresses to more"),
    ("gzip bomb", "gzip", gzip.compress(b" " * 2**27), 400, "decompresses to more"),
    ("truncated zstd", "zstd", zstd.compress(GRAPH)[:-10], 400, "truncated"),
    ("truncated gzip", "gzip", gzip.compress(GRAPH)[:-10], 400, "whole"),
    ("gzip and more", "gzip", gzip.compress(GRAPH) * 2, 400, "whole"),
    ("no zstd at all", "zstd", GRAPH, 400, "zstd"),
    ("no gzip at all", "gzip", GRAPH, 400, "gzip"),
    ("brotli", "br", GRAPH, 415, "'br'"),
    ("twice", "gzip, zstd", GRAPH, 415, "unknown"),
]


@pytest.mark.parametrize(
    ("encoding", "body", "status", "word"), [case[1:] for case in BAD_ENCODINGS], ids=[c[0] for c in BAD_ENCODINGS]
)
async def test_a_bad_encoding_is_a_problem_that_says_why(
    http: httpx.AsyncClient, encoding: str, body: bytes, status: int, word: str
) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    assert_problem(await http.post("/v1/graphs", content=body, headers=headers), status, word)


@pytest.mark.parametrize("encoding", ["identity", "gzip", "zstd"])
async def test_a_graph_comes_back_as_it_was_sent_whatever_its_encoding(http: httpx.AsyncClient, encoding: str) -> None:
    text = json.dumps(json.loads(dump_json(uneven_chain(5, name=encoding))), indent=3).encode()
    body = {"identity": text, "gzip": gzip.compress(text), "zstd": zstd.compress(text)}[encoding]
    url = f"/v1/graphs/{hashlib.sha256(text).hexdigest()}"
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    assert (await http.put(url, content=body, headers=headers)).status_code == 201
    assert (await http.put(url, content=body, headers=headers)).status_code == 200
    assert (await http.get(f"{url}/document")).content == text


async def test_an_address_that_is_not_the_bodys_is_refused(http: httpx.AsyncClient) -> None:
    headers = {"Content-Type": "application/json"}
    response = await http.put(f"/v1/graphs/{'0' * 64}", content=GRAPH, headers=headers)
    assert_problem(response, 422, hashlib.sha256(GRAPH).hexdigest())
    assert (await http.get(f"/v1/graphs/{'0' * 64}")).status_code == 404


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_body_that_a_web_page_could_send_is_refused(http: httpx.AsyncClient, media_type: str) -> None:
    response = await http.post("/v1/graphs", content=GRAPH, headers={"Content-Type": media_type})
    assert_problem(response, 415, "Content-Type: application/json")


BAD_SOLVES: list[tuple[str, dict[str, Any], str]] = [
    ("no objective", {}, "exactly one"),
    ("two objectives", {"budget_bytes": 1, "max_overhead": 0.1}, "exactly one"),
    ("a negative budget", {"budget_bytes": -1}, "budget"),
    ("a fraction of 0", {"budget_fraction": 0.0}, "budget"),
    ("a negative gap", {"budget_fraction": 0.5, "gap": -1.0}, "gap"),
    ("a time limit of a year", {"budget_fraction": 0.5, "time_limit_s": 3e7}, "time_limit_s"),
    ("an unknown strategy", {"budget_fraction": 0.5, "strategy": "magic"}, "magic"),
    ("an unknown field", {"budget_fraction": 0.5, "budget": "8GiB"}, "budget"),
    ("a pin that matches nothing", {"budget_fraction": 0.5, "keep": ["nope*"]}, "nope"),
    ("a priority out of range", {"budget_fraction": 0.5, "priority": 101}, "priority"),
    ("too many tags", {"budget_fraction": 0.5, "tags": ["t"] * 17}, "tags"),
    ("an unprintable tag", {"budget_fraction": 0.5, "tags": ["a\x00b"]}, "tags"),
    ("two graphs", {"budget_fraction": 0.5, "graph_id": "0" * 64}, "either graph_id or graph"),
    ("a bad graph", {"budget_fraction": 0.5, "graph": {"ops": []}}, "no ops"),
]


@pytest.mark.parametrize(("fields", "word"), [case[1:] for case in BAD_SOLVES], ids=[case[0] for case in BAD_SOLVES])
async def test_a_bad_question_is_a_problem_that_says_why(
    http: httpx.AsyncClient, fields: dict[str, Any], word: str
) -> None:
    response = await http.post("/v1/solves", json={"graph": json.loads(GRAPH), **fields})
    assert_problem(response, 422, word)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", f"/v1/solves/{'0' * 32}", 404),
        ("GET", "/v1/solves/..%2f..%2fetc", 404),
        ("GET", "/v1/solves/xyz", 422),
        ("GET", f"/v1/plans/{'0' * 64}", 404),
        ("GET", "/v1/solves?limit=0", 422),
        ("GET", "/v1/solves?state=odd", 422),
        ("DELETE", f"/v1/solves/{'0' * 32}", 404),
        ("PATCH", "/v1/solves", 405),
        ("GET", "/nowhere", 404),
    ],
)
async def test_every_refusal_is_a_problem(http: httpx.AsyncClient, method: str, path: str, status: int) -> None:
    assert_problem(await http.request(method, path), status, "")


async def test_an_inner_failure_is_a_problem_without_details(http: httpx.AsyncClient, app: FastAPI) -> None:
    @app.get("/broken")
    async def broken() -> None:
        raise ZeroDivisionError("a secret")

    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        response = await client.get("/broken")
    assert_problem(response, 500, "internal error")
    assert "secret" not in response.text


def assert_problem(response: httpx.Response, status: int, word: str) -> None:
    """The response is an RFC 9457 problem with this status, whose words include `word`."""
    assert response.status_code == status, response.text[:500]
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == status
    assert problem["type"].startswith("urn:remat:problem:")
    assert problem["title"]
    assert word in f"{problem['detail']} {problem.get('hint', '')}", problem


async def test_many_small_items_cost_no_memory(http: httpx.AsyncClient) -> None:
    """Each of these is within the limits on bytes, ops and values."""
    for text in (b'{"ops":[' + b"[]," * 50_000 + b"[]]}", b'{"a":[' + b'{"b":1},' * 12_000 + b"{}]}"):
        answer = await http.post("/v1/graphs:validate", content=text, headers={"Content-Type": "application/json"})
        assert answer.status_code == 413, answer.text
    commas = json.dumps({"ops": [{"name": "," * 90_000, "time_ns": 1}]}).encode()
    answer = await http.post("/v1/graphs:validate", content=commas, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, answer.text


async def test_costs_are_kept_as_first_sent(http: httpx.AsyncClient) -> None:
    path = "/v1/costs/A%20CPU%20(2%20threads)/2.13.0%20False"
    assert (await http.get(path)).json() == {"costs": []}
    first = {"signature": "a" * 64, "time_ns": 10, "workspace_bytes": 1}
    second = {"signature": "b" * 64, "time_ns": 30, "workspace_bytes": 3}
    assert (await http.put(path, json={"costs": [first]})).json() == {"costs": [first]}
    overtaken = {"costs": [{**first, "time_ns": 99}, second]}
    assert (await http.put(path, json=overtaken)).json() == {"costs": [first, second]}
    assert (await http.get(path)).json() == {"costs": [first, second]}
    assert (await http.get("/v1/costs/another/2.13.0")).json() == {"costs": []}
    for bad in ({**first, "signature": "x"}, {**first, "time_ns": -1}, {**first, "time_ns": 2**63}):
        assert (await http.put(path, json={"costs": [bad]})).status_code == 422
    assert (await http.put(path, json={"costs": [first, first]})).status_code == 422
