"""Spans: none unless asked for; then one for each request and attempt, with ids and figures only."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from remat_api.settings import Settings
from remat_api.tracing import configure_tracing, trace_with
from remat_solver.errors import InvalidRequest
from remat_solver.files import dump_json
from tests.integration.training_graphs import QUICK_OPS, uneven_chain

pytestmark = pytest.mark.anyio
GRAPH = json.loads(dump_json(uneven_chain(QUICK_OPS, seed=77, name="secret name")))
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace_with(provider)
    yield exporter
    trace_with(None)
    provider.shutdown()


async def test_a_request_and_its_attempt_are_spans(http: httpx.AsyncClient, spans: InMemorySpanExporter) -> None:
    body = {"graph": GRAPH, "budget_fraction": 0.7}
    headers = {"Prefer": "wait=30", "traceparent": PARENT, "X-Request-ID": "mine"}
    solve = (await http.post("/v1/solves", json=body, headers=headers)).json()
    while solve["state"] in ("queued", "running"):
        solve = (await http.get(solve["url"], headers={"Prefer": "wait=30"})).json()
    assert solve["state"] == "done"
    await http.get("/v1/solves/" + "0" * 32)
    found = {span.name: span for span in spans.get_finished_spans()}
    request = found["POST /v1/solves"]
    assert request.attributes is not None
    assert request.attributes["http.response.status_code"] in (200, 202)
    assert request.attributes["remat.request_id"] == "mine"
    assert request.parent is not None
    assert f"{request.parent.trace_id:032x}" in PARENT
    missing = found["GET /v1/solves/{solve_id}"].attributes
    assert missing is not None
    assert missing["http.response.status_code"] == 404
    attempt = found["attempt"].attributes
    assert attempt is not None
    assert attempt["remat.outcome"] in ("optimal", "feasible")
    assert "secret name" not in "".join(span.to_json() for span in spans.get_finished_spans())


async def test_without_an_endpoint_there_is_nothing(http: httpx.AsyncClient, tmp_path: Path) -> None:
    configure_tracing(Settings(data_dir=tmp_path))
    assert (await http.get("/version")).status_code == 200


def test_without_the_extra_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(InvalidRequest, match=r"remat\[otel\]"):
        configure_tracing(Settings(data_dir=tmp_path, otlp_endpoint="http://collector:4318"))
