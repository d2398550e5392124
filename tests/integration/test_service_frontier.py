"""Frontiers as one job of the service: the points of a local frontier, kept, shared and stoppable."""

from __future__ import annotations

import json

import httpx

import remat
from remat.client import Client
from remat_solver.files import dump_json
from remat_solver.plan import Plan
from tests.integration.solver_service import SolverService
from tests.integration.training_graphs import QUICK_OPS, tangle, uneven_chain


def test_a_frontier_is_that_of_a_local_sweep(client: Client) -> None:
    graph = uneven_chain(QUICK_OPS, seed=40)
    seen: list[Plan] = []
    plans = client.frontier(graph, 4, time_limit_s=8.0, on_point=seen.append)
    local = remat.frontier(graph, 4, time_limit_s=8.0)
    assert len(plans) == 4
    assert plans[-1].budget_bytes == local[-1].budget_bytes
    for plan in plans:  # within the same budgets neither beats the other's bound
        assert all(other.bound_ns <= plan.time_ns for other in local if other.budget_bytes >= plan.budget_bytes)
    assert sorted(seen, key=lambda plan: plan.budget_bytes) == list(plans)
    assert [plan.time_ns for plan in plans] == sorted((plan.time_ns for plan in plans), reverse=True)


def test_a_frontier_is_swept_once_and_its_points_answer_solves(client: Client, service: SolverService) -> None:
    graph = uneven_chain(QUICK_OPS, seed=41)
    first = client.frontier(graph, 3, time_limit_s=6.0)
    began = _count(service, "solve")
    assert client.frontier(graph, 3, time_limit_s=6.0) == first
    assert _count(service, "solve") == began
    proven = [plan for plan in first if plan.gap <= 1e-3]
    assert proven
    for plan in proven:
        assert client.submit(graph, budget_bytes=plan.budget_bytes).source == "cache"


def test_a_stopped_frontier_keeps_its_points(client: Client) -> None:
    found: list[Plan] = []
    plans = client.frontier(
        tangle(42),
        30,
        gap=0.0,
        time_limit_s=40.0,
        on_point=found.append,
        should_stop=lambda: bool(found),
    )
    assert found
    assert 0 < len(plans) < 30


def test_a_frontier_is_no_solve_and_a_solve_no_frontier(service: SolverService, client: Client) -> None:
    body = {"graph": json.loads(dump_json(uneven_chain(QUICK_OPS, seed=43))), "points": 2, "time_limit_s": 4.0}
    frontier = httpx.post(f"{service.url}/v1/frontiers", json=body, headers={"Prefer": "wait=30"}, timeout=60).json()
    assert frontier["state"] == "done"
    assert [point["budget_bytes"] for point in frontier["points"]] == sorted(
        point["budget_bytes"] for point in frontier["points"]
    )
    solve = client.submit(uneven_chain(QUICK_OPS, seed=43), budget_fraction=0.77)
    assert httpx.get(f"{service.url}/v1/solves/{frontier['id']}").status_code == 404
    assert httpx.get(f"{service.url}/v1/frontiers/{solve.id}").status_code == 404
    listed = httpx.get(f"{service.url}/v1/solves", params={"limit": 200}).json()["solves"]
    assert frontier["id"] not in {one["id"] for one in listed}
    events = httpx.get(f"{service.url}{frontier['events_url']}", timeout=60).text
    assert events.count("event: point") == len(frontier["points"])
    assert httpx.delete(f"{service.url}{frontier['url']}").status_code == 204


def _count(service: SolverService, source: str) -> float:
    text = httpx.get(f"{service.url}/metrics").text
    return float(next(line.split()[1] for line in text.splitlines() if f'questions_total{{source="{source}"}}' in line))
