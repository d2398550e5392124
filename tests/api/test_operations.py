"""What an operator sees: metrics, logs, health, the API's description, and what a server must not import."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from remat_api import openapi
from remat_solver.files import dump_json
from tests.integration.training_graphs import uneven_chain

pytestmark = pytest.mark.anyio
OPENAPI = Path(__file__).parents[2] / "docs" / "openapi.json"


async def samples(http: httpx.AsyncClient) -> dict[tuple[str, ...], float]:
    """Every metric by name and label values."""
    text = (await http.get("/metrics")).text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_metrics_count_what_happens(http: httpx.AsyncClient) -> None:
    before = await samples(http)
    body = {"graph": json.loads(dump_json(uneven_chain(8, seed=77))), "budget_fraction": 0.9}
    for _ in range(2):
        await http.post("/v1/solves", json=body, headers={"Prefer": "wait=30"})
    solve = (await http.post("/v1/solves", json=body)).json()
    await http.get(f"/v1/plans/{solve['key']}")
    await http.get(f"/v1/plans/{'0' * 64}")
    await http.request("BREW", "/coffee")
    after = await samples(http)

    def gained(*name: str) -> float:
        return after.get(name, 0) - before.get(name, 0)

    assert gained("remat_questions_total", "solve") == 1
    assert gained("remat_questions_total", "cache") == 2
    assert gained("remat_plans_by_key_total", "hit") == 1
    assert gained("remat_plans_by_key_total", "miss") == 1
    assert gained("remat_plan_gap_count") == 1
    assert gained("remat_job_seconds_count", solve["plan"]["status"]) == 1
    assert gained("remat_requests_total", "POST", "/v1/solves", "200") == 3
    assert gained("remat_requests_total", "other", "unknown", "404") == 1
    assert after["remat_workers",] == 1
    assert after["remat_jobs", "running"] == 0


async def test_every_response_carries_a_request_id(http: httpx.AsyncClient) -> None:
    own = (await http.get("/healthz", headers={"X-Request-ID": "mine-1"})).headers
    made = (await http.get("/nowhere", headers={"X-Request-ID": "not mine!"})).headers
    assert own["X-Request-ID"] == "mine-1"
    assert re.fullmatch("[0-9a-f]{16}", made["X-Request-ID"])


async def test_validation_tells_what_a_graph_takes_and_stores_nothing(http: httpx.AsyncClient) -> None:
    graph = uneven_chain(8, seed=78)
    text = dump_json(graph)
    response = await http.post("/v1/graphs:validate", content=text, headers={"Content-Type": "application/json"})
    forecast = response.json()
    assert response.status_code == 200
    assert (forecast["hash"], forecast["op_count"]) == (graph.hash, 16)
    assert graph.fixed_bytes < forecast["least_budget_bytes"] <= forecast["store_all_peak_bytes"]
    assert (await http.get(f"/v1/graphs/{forecast['id']}")).status_code == 404


async def test_solves_are_listed_page_by_page(http: httpx.AsyncClient) -> None:
    graph = json.loads(dump_json(uneven_chain(8, seed=79)))
    made = []
    for budget in (0.9, 0.91, 0.92, 0.93, 0.94):
        response = await http.post("/v1/solves", json={"graph": graph, "budget_fraction": budget, "tags": ["paged"]})
        made.append(response.json()["id"])
    found, url = [], "/v1/solves?limit=2"
    while url and len(found) < 5:
        page = await http.get(url)
        found += [solve["id"] for solve in page.json()["solves"]]
        url = page.json()["next"]
        assert (page.headers["Link"] == f'<{url}>; rel="next"') if url else ("Link" not in page.headers)
    assert found[:5] == made[::-1]
    assert (await http.delete(f"/v1/solves/{made[0]}")).status_code == 204
    assert (await http.get(f"/v1/solves/{made[0]}")).status_code == 404


async def test_a_plan_is_immutable_and_has_an_etag(http: httpx.AsyncClient) -> None:
    body = {"graph": json.loads(dump_json(uneven_chain(8, seed=80))), "budget_fraction": 0.9}
    solve = (await http.post("/v1/solves", json=body, headers={"Prefer": "wait=30"})).json()
    plan = await http.get(f"/v1/plans/{solve['key']}")
    assert "immutable" in plan.headers["Cache-Control"]
    again = await http.get(f"/v1/plans/{solve['key']}", headers={"If-None-Match": plan.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert (await http.get(solve["plan"]["url"])).content == plan.content


def test_the_committed_description_is_that_of_the_code() -> None:
    """Write it again with `python -m remat_api.openapi > docs/openapi.json`, and look at the difference."""
    assert OPENAPI.read_text() == openapi.document()


def test_every_reference_in_the_description_leads_somewhere() -> None:
    document = json.loads(OPENAPI.read_text())
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', OPENAPI.read_text()))
    assert references
    assert references <= set(document["components"]["schemas"])
    operations: list[dict[str, Any]] = [one for path in document["paths"].values() for one in path.values()]
    assert all(operation["responses"]["default"] for operation in operations)
    assert len({operation["operationId"] for operation in operations}) == len(operations)


@pytest.mark.parametrize("module", ["remat_api.app", "remat_api.worker", "remat_api.commands"])
def test_the_service_never_imports_torch_nor_the_sdk(module: str) -> None:
    script = f"import sys, {module}; print(sorted({{'torch', 'remat'}} & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


def test_the_command_line_shows_its_help_without_loading_the_service() -> None:
    script = "import sys, remat_api.commands, remat_api.key_commands; print('fastapi' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "False"
