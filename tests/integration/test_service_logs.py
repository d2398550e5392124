"""The log of a real service: JSON lines that join a request to its job, without graphs or keys."""

from __future__ import annotations

import json

from remat.client import Client
from tests.integration.solver_service import SolverService
from tests.integration.training_graphs import QUICK_OPS, uneven_chain


def test_logs_are_json_lines_with_request_and_job_ids(service: SolverService) -> None:
    graph = uneven_chain(QUICK_OPS, seed=90, name="a-secret-model")
    already = len(service.printed())
    with Client(service.url, plan_cache=None, api_key=None) as client:
        client.solve(graph, budget_fraction=0.6)
    lines = [json.loads(line) for line in service.printed()[already:].splitlines() if line.startswith("{")]
    requests = [line for line in lines if line["event"] == "request"]
    assert {(line["route"], line["status"]) for line in requests} >= {
        ("/v1/plans/{key}", 404),
        ("/v1/graphs/{graph_id}", 201),
        ("/v1/solves", 202),
    }
    assert all(line["request_id"] and line["timestamp"] and line["level"] == "info" for line in requests)
    attempts = [line for line in lines if line["event"] == "attempt ends"]
    assert len(attempts) == 1, service.printed()
    ended = attempts[0]
    assert ended["job_id"]
    assert ended["outcome"] in ("optimal", "feasible")
    assert "a-secret-model" not in service.printed()
