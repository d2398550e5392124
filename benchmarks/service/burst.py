"""Many ask the same question at once, each as the SDK does: one solve, and everybody has its plan."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from dataclasses import dataclass

import httpx

from remat_solver.files import dump_json, parse_json
from remat_solver.graph import Graph
from remat_solver.options import SolveOptions, plan_key
from remat_solver.plan import Plan, confirm_plan
from remat_solver.simulate import simulate, store_all_schedule
from tests.integration.deployments import Deployment

TIMEOUT_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Burst:
    """What came of it. `solves`: how often a solver was set to work. `right`: how many got a plan that is confirmed."""

    ops: int
    asked: int
    right: int
    solves: int
    seconds: float
    service_cpu_s: float


def burst(deployment: Deployment, graph: Graph, *, asked: int, budget_fraction: float = 0.8) -> Burst:
    """Asks `asked` times at once."""
    cpu_s = cpu_seconds(deployment.service.pid)
    began_s, begun = time.monotonic(), _begun(deployment)
    plans = asyncio.run(_ask_all(deployment.service.url, graph, asked, budget_fraction))
    seconds = time.monotonic() - began_s
    right = 0
    for document in set(plans):
        confirm_plan(graph, parse_json(Plan, document))
        right += plans.count(document)
    return Burst(
        ops=len(graph),
        asked=asked,
        right=right,
        solves=_begun(deployment) - begun,
        seconds=seconds,
        service_cpu_s=cpu_seconds(deployment.service.pid) - cpu_s,
    )


def _begun(deployment: Deployment) -> int:
    """How many attempts at jobs began so far."""
    return sum(line["event"] == "attempt begins" for process in deployment.solving() for line in process.logged())


async def _ask_all(url: str, graph: Graph, asked: int, budget_fraction: float) -> list[bytes]:
    document = dump_json(graph)
    options = SolveOptions(budget_fraction=budget_fraction)
    key = plan_key(graph, options, store_all_peak_bytes=simulate(graph, store_all_schedule(graph)).peak_bytes)
    limits = httpx.Limits(max_connections=asked, max_keepalive_connections=asked)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits, verify=False) as client:
        return await asyncio.gather(*(_ask(client, document, key, budget_fraction) for _ in range(asked)))


async def _ask(client: httpx.AsyncClient, document: bytes, key: str, budget_fraction: float) -> bytes:
    known = await _call(client, "GET", f"/v1/plans/{key}")
    if known.status_code == httpx.codes.OK:
        return known.content
    graph_id = hashlib.sha256(document).hexdigest()
    question = json.dumps({"graph_id": graph_id, "budget_fraction": budget_fraction}).encode()
    solve = await _call(client, "POST", "/v1/solves", question)
    if solve.status_code == httpx.codes.NOT_FOUND:
        (await _call(client, "PUT", f"/v1/graphs/{graph_id}", document)).raise_for_status()
        solve = await _call(client, "POST", "/v1/solves", question)
    while solve.raise_for_status().json()["state"] in ("queued", "running"):
        solve = await _call(client, "GET", solve.json()["url"], wait=25)
    plan = await _call(client, "GET", f"{solve.json()['url']}/plan")
    return plan.raise_for_status().content


async def _call(
    client: httpx.AsyncClient, method: str, path: str, content: bytes | None = None, *, wait: int = 0
) -> httpx.Response:
    headers = {"Content-Type": "application/json"} if content is not None else {}
    if wait:
        headers["Prefer"] = f"wait={wait}"
    while True:
        try:
            response = await client.request(method, path, content=content, headers=headers)
        except httpx.TransportError:
            await asyncio.sleep(0.2)
            continue
        if response.status_code not in (429, 503):
            return response
        await asyncio.sleep(1.0)


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process's threads so far."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
