"""Many ask the same: one solve, every asker answered, and nobody can take it from the others."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from remat.client import Client
from remat_solver.errors import JobCancelled, QueueTimeout
from remat_solver.files import dump_json
from remat_solver.plan import Plan
from tests.integration.solver_service import SolverService
from tests.integration.training_graphs import ENDLESS, QUICK_OPS, tangle, uneven_chain

RANKS = 120


def test_identical_requests_at_once_are_solved_once(service: SolverService) -> None:
    graph = uneven_chain(200)
    graph_id = hashlib.sha256(dump_json(graph)).hexdigest()

    def ask(_: int) -> Plan:
        with Client(service.url, plan_cache=None) as client:
            return client.solve(graph, budget_fraction=0.8)

    with ThreadPoolExecutor(RANKS) as pool:
        plans = list(pool.map(ask, range(RANKS)))
    assert len(plans) == RANKS
    assert len(set(plans)) == 1
    asked = {"limit": 200, "graph_id": graph_id}
    listed = httpx.get(f"{service.url}/v1/solves", params=asked).json()["solves"]
    assert {solve["state"] for solve in listed} == {"done"}
    assert [solve["source"] for solve in listed].count("solve") == 1


def test_one_askers_cancel_leaves_the_solve_to_the_others(service: SolverService, client: Client) -> None:
    graph = tangle()
    first, second = client.submit(graph, **ENDLESS), client.submit(graph, **ENDLESS)
    assert (first.source, second.source) == ("solve", "joined")
    cancelled = client.cancel(first.id, keep="discard")
    assert cancelled.state == "cancelled"
    assert isinstance(cancelled.error, JobCancelled)
    while (progress := client.get(second.id, wait_s=1).progress) is None or progress.incumbent_ns is None:
        pass
    client.cancel(second.id, keep="best")
    while not (ended := client.get(second.id, wait_s=20)).is_over:
        pass
    assert ended.state == "done"
    events = httpx.get(f"{service.url}/v1/solves/{first.id}/events").text
    assert events.rstrip().splitlines()[-2] == "event: cancelled"


def test_the_solve_ends_with_its_last_asker(client: Client) -> None:
    graph = tangle(1)
    first, second = client.submit(graph, **ENDLESS), client.submit(graph, **ENDLESS)
    client.cancel(first.id, keep="discard")
    client.cancel(second.id, keep="discard")
    after = client.submit(uneven_chain(QUICK_OPS), budget_fraction=0.6)
    while not (ended := client.get(after.id, wait_s=20)).is_over:  # the only worker is free again
        pass
    assert ended.state == "done"


def test_queued_solves_know_their_place_and_priority_goes_first(service: SolverService, client: Client) -> None:
    blocker = client.submit(tangle(2), **ENDLESS)
    while client.get(blocker.id).state != "running":
        pass
    waiting = [client.submit(uneven_chain(QUICK_OPS, seed=seed), budget_fraction=0.6) for seed in (11, 12)]
    assert [client.get(solve.id).queue_position for solve in waiting] == [1, 2]
    with Client(service.url, plan_cache=None, priority=5) as urgent_client:
        urgent = urgent_client.submit(uneven_chain(QUICK_OPS, seed=4712), budget_fraction=0.7)
    assert client.get(urgent.id).queue_position == 1
    with Client(service.url, plan_cache=None, queue_timeout_s=0.2) as hasty_client:
        hasty = hasty_client.submit(uneven_chain(QUICK_OPS, seed=4711), budget_fraction=0.57)
    while not (ended := client.get(hasty.id, wait_s=20)).is_over:
        pass
    assert isinstance(ended.error, QueueTimeout)
    client.cancel(blocker.id, keep="discard")
    while not client.get(waiting[1].id, wait_s=20).is_over:
        pass
    order = [_solve(service, solve_id)["started_at"] for solve_id in (urgent.id, waiting[0].id, waiting[1].id)]
    assert order == sorted(order)


@pytest.mark.parametrize("last_event_id", [0, 2])
def test_events_are_replayed_from_where_a_reader_left_off(
    service: SolverService, client: Client, last_event_id: int
) -> None:
    solve = client.submit(uneven_chain(QUICK_OPS, seed=20 + last_event_id), budget_fraction=0.6)
    url = f"{service.url}/v1/solves/{solve.id}/events"
    text = httpx.get(url, headers={"Last-Event-ID": str(last_event_id)}, timeout=60).text
    numbers = [int(line[4:]) for line in text.splitlines() if line.startswith("id: ")]
    kinds = [line[7:] for line in text.splitlines() if line.startswith("event: ")]
    assert numbers == list(range(last_event_id + 1, last_event_id + 1 + len(numbers)))
    assert kinds[-1] == "done"
    assert ("queued" in kinds) == (last_event_id == 0)
    assert httpx.get(url, headers={"Last-Event-ID": str(numbers[-1])}).status_code == 204


def _solve(service: SolverService, solve_id: str) -> dict[str, str]:
    found: dict[str, str] = httpx.get(f"{service.url}/v1/solves/{solve_id}").json()
    return found
