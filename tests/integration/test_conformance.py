"""One suite over both engines: whatever happens to workers, no job is lost and each has one result."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.service.burst import burst
from benchmarks.service.mishaps import survive
from remat.client import Client
from remat_api.jobs.cluster import LOOK_INTERVAL_S
from remat_solver.errors import EngineFailed
from remat_solver.plan import Plan
from tests.integration.deployments import MAX_ATTEMPTS, STALLED_AFTER_S, Clustered, Deployment, Embedded, running
from tests.integration.postgres_server import PostgresServer
from tests.integration.solver_service import is_engine, wait_until
from tests.integration.training_graphs import ENDLESS, QUICK_OPS, tangle, uneven_chain


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def deployed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp(request.param)
    deployment: Deployment = Embedded(folder)
    if request.param == "postgresql":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        deployment = Clustered(folder, postgres)
    with running(deployment):
        yield deployment


@pytest.fixture
def deployment(deployed: Deployment) -> Deployment:
    """A deployment for all tests; all of it runs when a test begins."""
    deployed.start()
    return deployed


@pytest.fixture
def client(deployment: Deployment) -> Iterator[Client]:
    with Client(deployment.service.url, plan_cache=None) as asking:
        yield asking


def view(deployment: Deployment, solve_id: str) -> dict[str, object]:
    """A solve as the service shows it."""
    shown: dict[str, object] = httpx.get(f"{deployment.service.url}/v1/solves/{solve_id}").json()
    return shown


def wait_for_a_plan(deployment: Deployment, solve_id: str, *, attempt: int) -> None:
    """Returns once an attempt of at least that number has a schedule."""

    def has_one() -> bool:
        shown = view(deployment, solve_id)
        progress = shown["progress"]
        has_schedule = isinstance(progress, dict) and progress["incumbent_ns"] is not None
        return int(str(shown["attempt"])) >= attempt and has_schedule

    wait_until(has_one)


def kept_best(deployment: Deployment, client: Client, solve_id: str, seed: int) -> Plan:
    """Stops a solve with its best plan, which is the only result in its history."""
    client.cancel(solve_id, keep="best")
    wait_until(lambda: client.get(solve_id, wait_s=5).is_over)
    events = httpx.get(f"{deployment.service.url}/v1/solves/{solve_id}/events").text
    assert events.count("event: done") == 1
    assert client.get(solve_id).state == "done"
    plan = client.plan_of(solve_id, tangle(seed))
    assert plan.provenance.stopped_by == "caller"
    return plan


def solve_something(client: Client, seed: int) -> None:
    """The workers are free and able to solve."""
    assert client.solve(uneven_chain(QUICK_OPS, seed=seed), budget_fraction=0.7).peak_bytes > 0


def test_a_killed_worker_costs_an_attempt_and_no_job(deployment: Deployment, client: Client) -> None:
    solve = client.submit(tangle(100), **ENDLESS)
    wait_for_a_plan(deployment, solve.id, attempt=1)
    deployment.kill_worker()
    wait_for_a_plan(deployment, solve.id, attempt=2)
    kept_best(deployment, client, solve.id, 100)


def test_a_job_that_kills_every_worker_is_given_up(deployment: Deployment, client: Client) -> None:
    solve = client.submit(tangle(101), **ENDLESS)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        wait_for_a_plan(deployment, solve.id, attempt=attempt)
        deployment.kill_worker()
    wait_until(lambda: client.get(solve.id, wait_s=5).is_over)
    assert client.get(solve.id).state == "failed"
    assert isinstance(client.get(solve.id).error, EngineFailed)
    solve_something(client, 101)


def test_a_cancelled_solve_leaves_no_engine_behind(deployment: Deployment, client: Client) -> None:
    solve = client.submit(tangle(102), **ENDLESS)
    wait_for_a_plan(deployment, solve.id, attempt=1)
    busy = deployment.solver_pids()
    assert client.cancel(solve.id, keep="discard").state == "cancelled"
    solve_something(client, 102)
    wait_until(lambda: not any(is_engine(pid) for pid in busy | deployment.solver_pids()))


def test_stopping_keeps_the_best_and_ends_the_engine(deployment: Deployment, client: Client) -> None:
    solve = client.submit(tangle(103), **ENDLESS)
    wait_for_a_plan(deployment, solve.id, attempt=1)
    plan = kept_best(deployment, client, solve.id, 103)
    assert plan.peak_bytes <= plan.budget_bytes
    wait_until(lambda: not any(is_engine(pid) for pid in deployment.solver_pids()))


def test_draining_puts_jobs_back_as_often_as_it_takes(deployment: Deployment, client: Client) -> None:
    """A clean stop is no fault of the job's: it doesn't count against it."""
    solve = client.submit(tangle(104), **ENDLESS)
    for attempt in range(1, MAX_ATTEMPTS + 2):
        wait_for_a_plan(deployment, solve.id, attempt=attempt)
        busy = deployment.solver_pids()
        deployment.drain()
        wait_until(lambda busy=busy: not any(is_engine(pid) for pid in busy))  # type: ignore[misc]
    wait_for_a_plan(deployment, solve.id, attempt=MAX_ATTEMPTS + 2)
    kept_best(deployment, client, solve.id, 104)


def test_a_paused_worker_writes_nothing_over_its_successor(deployment: Deployment, client: Client) -> None:
    solve = client.submit(tangle(105), **ENDLESS)
    wait_for_a_plan(deployment, solve.id, attempt=1)
    paused = deployment.pause_worker()
    if deployment.is_clustered:  # the worker's beats have stopped: another takes the job
        wait_for_a_plan(deployment, solve.id, attempt=2)
    else:  # the solver process alone is paused: the service waits for it
        time.sleep(STALLED_AFTER_S + 1)
    os.kill(paused, signal.SIGCONT)
    kept_best(deployment, client, solve.id, 105)
    for seed in range(105, 109):  # the one that was paused is fit for work again, too
        solve_something(client, seed)
    wait_until(lambda: not any(is_engine(pid) for pid in deployment.solver_pids()))


def test_a_killed_service_costs_its_clients_nothing(deployment: Deployment, client: Client) -> None:
    solve = client.submit(tangle(106), **ENDLESS)
    wait_for_a_plan(deployment, solve.id, attempt=1)
    deployment.service.kill()
    deployment.service.start()
    wait_for_a_plan(deployment, solve.id, attempt=1 if deployment.is_clustered else 2)
    kept_best(deployment, client, solve.id, 106)


@pytest.mark.full
@pytest.mark.parametrize("deployed", ["postgresql"], indirect=True)
def test_a_database_that_was_away_costs_no_attempt(
    deployment: Deployment, client: Client, postgres: PostgresServer
) -> None:
    """It is away for longer than a worker may be silent: the solve goes on, and nobody takes it from its worker."""
    solve = client.submit(tangle(107), **ENDLESS)
    wait_for_a_plan(deployment, solve.id, attempt=1)
    postgres.stop()
    time.sleep(STALLED_AFTER_S + 1)
    postgres.start()
    time.sleep(2 * LOOK_INTERVAL_S)
    attempt = view(deployment, solve.id)["attempt"]
    kept_best(deployment, client, solve.id, 107)
    assert attempt == 1


def test_equal_questions_at_once_are_solved_once(deployment: Deployment) -> None:
    result = burst(deployment, uneven_chain(200, seed=108), asked=100)
    assert (result.right, result.solves) == (100, 1)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_no_mishap_loses_a_job(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    deployment: Deployment
    postgres: PostgresServer | None = None
    if kind == "sqlite":
        deployment = Embedded(tmp_path, REMAT_MAX_ATTEMPTS="10")
    else:
        postgres = request.getfixturevalue("postgres")
        deployment = Clustered(tmp_path, postgres, REMAT_MAX_ATTEMPTS="10")
    with running(deployment):
        result = survive(deployment, postgres, count=20, length=10)
    assert (result.lost, result.ended_twice, result.engines_left) == (0, 0, 0)
    assert result.done >= 18  # a cancel may come too late
