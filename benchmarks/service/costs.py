"""What the service itself costs: per job, per cached plan, and to start."""

from __future__ import annotations

import http.client
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.service.burst import cpu_seconds
from remat.client import Client
from remat_solver.files import dump_json
from tests.integration.deployments import Deployment
from tests.integration.solver_service import SolverService
from tests.integration.training_graphs import QUICK_OPS, uneven_chain

FIRST_SEED = 5000


@dataclass(frozen=True, kw_only=True)
class JobCost:
    """From the claim to the stored result, less the time in which the solver process searches (its engine included)."""

    jobs: int
    median_ms: float
    best_ms: float
    ninth_decile_ms: float
    solver_median_ms: float


@dataclass(frozen=True, kw_only=True)
class ReadCost:
    """CPU of the service for one GET of a known plan: on a connection that stays, and on one of its own."""

    plan_bytes: int
    kept_connection_cpu_ms: float
    new_connection_cpu_ms: float


@dataclass(frozen=True, kw_only=True)
class StartCost:
    """From starting `remat serve` on an empty folder to the answer of a first solve. Medians."""

    starts: int
    answering_s: float
    first_plan_s: float
    service_cpu_s: float


def job_cost(deployment: Deployment, *, jobs: int) -> JobCost:
    """Solves small distinct graphs, one after the other."""
    already = _attempts(deployment)
    with Client(deployment.service.url, plan_cache=None) as client:
        for number in range(jobs):
            client.solve(uneven_chain(QUICK_OPS, seed=FIRST_SEED + number), budget_fraction=0.6)
    figures = _attempts(deployment)[len(already) :]
    own_ms = sorted((seconds - solver_s) * 1000 for seconds, solver_s in figures)
    return JobCost(
        jobs=len(own_ms),
        median_ms=statistics.median(own_ms),
        best_ms=own_ms[0],
        ninth_decile_ms=own_ms[9 * len(own_ms) // 10],
        solver_median_ms=statistics.median(solver_s * 1000 for _, solver_s in figures),
    )


def read_cost(deployment: Deployment, *, reads: int) -> ReadCost:
    """Gets one plan of a 1,000-op graph by its key, again and again."""
    service = deployment.service
    with Client(service.url, plan_cache=None) as client:
        solve = client.submit(uneven_chain(500, seed=1), budget_fraction=0.8)
        while not client.get(solve.id, wait_s=20).is_over:
            pass
    path = "/v1/plans/" + httpx.get(f"{service.url}/v1/solves/{solve.id}").json()["key"]
    host = service.url.removeprefix("http://")

    def cpu_ms(connections: int, each: int) -> tuple[float, int]:
        before_s, size = cpu_seconds(service.pid), 0
        for _ in range(connections):
            connection = http.client.HTTPConnection(host)
            for _ in range(each):
                connection.request("GET", path)
                response = connection.getresponse()
                assert response.status == httpx.codes.OK
                size = len(response.read())
            connection.close()
        return (cpu_seconds(service.pid) - before_s) * 1000 / (connections * each), size

    cpu_ms(1, 100)  # warm
    kept, size = cpu_ms(1, reads)
    new, _ = cpu_ms(reads, 1)
    return ReadCost(plan_bytes=size, kept_connection_cpu_ms=kept, new_connection_cpu_ms=new)


def start_cost(folder: Path, *, starts: int) -> StartCost:
    """Starts services on empty folders and asks each at once."""
    question = b'{"budget_fraction":0.6,"graph":' + dump_json(uneven_chain(QUICK_OPS)) + b"}"
    headers = {"Content-Type": "application/json", "Prefer": "wait=30"}
    figures = []
    for number in range(starts):
        own = folder / f"start{number}"
        own.mkdir(parents=True)
        service = SolverService(own, "--workers", "1")
        began_s = time.monotonic()
        service.begin()
        answering_s = 0.0
        while True:
            try:
                httpx.get(f"{service.url}/healthz")
                answering_s = answering_s or time.monotonic() - began_s
                answer = httpx.post(f"{service.url}/v1/solves", content=question, headers=headers, timeout=60)
                break
            except httpx.TransportError:
                time.sleep(0.01)
        assert answer.json()["state"] == "done", answer.text
        figures.append((answering_s, time.monotonic() - began_s, cpu_seconds(service.pid)))
        service.stop()
    answering, first, cpu = (statistics.median(column) for column in zip(*figures, strict=True))
    return StartCost(starts=starts, answering_s=answering, first_plan_s=first, service_cpu_s=cpu)


def _attempts(deployment: Deployment) -> list[tuple[float, float]]:
    ended = [line for process in deployment.solving() for line in process.logged() if line["event"] == "attempt ends"]
    return [(line["seconds"], line["solver_s"]) for line in sorted(ended, key=lambda line: line["timestamp"])]
