"""The service is killed in mid-solve: no job is lost, none is solved twice, and clients notice nothing."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from remat.client import Client
from remat_solver.errors import EngineFailed, ServiceUnavailable
from remat_solver.options import Progress
from tests.integration.solver_service import SolverService, free_port, is_alive, wait_until, worker_pids
from tests.integration.training_graphs import ENDLESS, QUICK_OPS, tangle, uneven_chain


def test_a_client_resumes_after_the_service_was_killed_in_mid_solve(service: SolverService) -> None:
    graph = tangle()
    found = threading.Event()
    enough = threading.Event()

    def on_progress(progress: Progress) -> None:
        if progress.incumbent_ns is not None:
            found.set()

    with Client(service.url, plan_cache=None) as client, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.solve, graph, **ENDLESS, on_progress=on_progress, should_stop=enough.is_set)
        found.wait()
        left_behind = worker_pids(service.pid)
        service.kill()
        wait_until(lambda: not any(is_alive(pid) for pid in left_behind))
        service.start()
        (solve,) = httpx.get(f"{service.url}/v1/solves", params={"limit": 1}).json()["solves"]
        wait_until(lambda: _has_a_plan(client, solve["id"]))
        enough.set()
        plan = asked.result()
    assert left_behind
    assert plan.provenance.stopped_by == "caller"
    assert plan.peak_bytes <= plan.budget_bytes
    (solve,) = httpx.get(f"{service.url}/v1/solves", params={"limit": 1}).json()["solves"]
    assert (solve["state"], solve["attempt"]) == ("done", 2)


def test_queued_and_running_jobs_survive_a_clean_restart(service: SolverService) -> None:
    graphs = [uneven_chain(QUICK_OPS, seed=seed) for seed in range(4)]
    with Client(service.url, plan_cache=None) as client:
        slow = client.submit(tangle(), **ENDLESS)
        wait_until(lambda: client.get(slow.id).state == "running")
        waiting = [client.submit(graph, budget_fraction=0.6) for graph in graphs]
        children = worker_pids(service.pid)
        assert service.stop() in (0, -signal.SIGTERM)
        assert not any(is_alive(pid) for pid in children)
        service.start()
        assert client.cancel(slow.id, keep="discard").state == "cancelled"
        for graph, solve in zip(graphs, waiting, strict=True):
            wait_until(lambda solve=solve: client.get(solve.id, wait_s=5).is_over)  # type: ignore[misc]
            assert client.plan_of(solve.id, graph).peak_bytes > 0


def test_a_job_whose_worker_is_killed_is_tried_again_and_given_up_after_three_attempts(
    service: SolverService,
) -> None:
    with Client(service.url, plan_cache=None) as client:
        solve = client.submit(tangle(), **ENDLESS)
        for attempt in (1, 2, 3):
            wait_until(lambda attempt=attempt: _attempt_at_work(service, solve.id) == attempt)  # type: ignore[misc]
            for pid in worker_pids(service.pid):
                os.kill(pid, signal.SIGKILL)
        while not (ended := client.get(solve.id, wait_s=20)).is_over:
            pass
    assert ended.state == "failed"
    assert isinstance(ended.error, EngineFailed)
    assert "SIGKILL" in str(ended.error)


def test_a_second_service_on_the_same_folder_is_refused(service: SolverService) -> None:
    second = SolverService(service.folder)
    with pytest.raises(AssertionError, match="remat: another remat service uses") as refusal:
        second.start()
    assert "Traceback" not in str(refusal.value).rpartition("Remat serves")[2]


def test_a_service_that_is_not_there_is_one_clear_error() -> None:
    client = Client(f"http://127.0.0.1:{free_port()}", plan_cache=None, retry_for_s=0.5)
    with client, pytest.raises(ServiceUnavailable, match=r"can't reach the solver service at .*remat serve"):
        client.solve(uneven_chain(QUICK_OPS), budget_fraction=0.6)


def test_a_service_lost_for_good_says_that_the_solve_can_be_taken_up(service: SolverService) -> None:
    with Client(service.url, plan_cache=None, retry_for_s=1.0) as client:
        solve = client.submit(tangle(), **{**ENDLESS, "time_limit_s": 2.0})
        service.kill()
        with pytest.raises(ServiceUnavailable, match=rf"lost .* take it up \(id {solve.id}\)"):
            client.get(solve.id)


def _has_a_plan(client: Client, solve_id: str) -> bool:
    progress = client.get(solve_id).progress
    return progress is not None and progress.incumbent_ns is not None


def _attempt_at_work(service: SolverService, solve_id: str) -> int:
    """The number of the attempt whose engine is running; 0 while none is."""
    solve = httpx.get(f"{service.url}/v1/solves/{solve_id}").json()
    return solve["attempt"] if solve["state"] == "running" and solve["progress"] else 0
