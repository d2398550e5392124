"""`remat gc`: what is old and held by nobody goes, what is open or young stays, and a running service copes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from remat_api.service import Service
from remat_api.store.blobs import INLINE_LIMIT_BYTES, blob_store
from remat_api.store.retention import Forgotten, forget
from remat_api.store.tables import metadata
from remat_solver.files import dump_json
from tests.integration.training_graphs import ENDLESS, tangle, uneven_chain

pytestmark = pytest.mark.anyio
WAIT = {"Prefer": "wait=30"}


async def forget_all(service: Service) -> Forgotten:
    """Forgets whatever may be forgotten, however young."""
    return await forget(service.database, blob_store(service.settings), older_than_ms=-1000)


def body(seed: int, **fields: Any) -> dict[str, Any]:
    """A question that is quickly answered."""
    return {"graph": json.loads(dump_json(uneven_chain(8, seed=seed))), "budget_fraction": 0.9, **fields}


async def test_everything_that_is_old_goes_and_can_be_asked_again(app: FastAPI, http: httpx.AsyncClient) -> None:
    service: Service = app.state.service
    first = (await http.post("/v1/solves", json=body(1), headers=WAIT)).json()
    frontier = {"graph": body(1)["graph"], "points": 2, "time_limit_s": 2.0}
    await http.post("/v1/frontiers", json=frontier, headers=WAIT)
    forgotten = await forget_all(service)
    assert forgotten.solves >= 2
    assert forgotten.jobs >= 2
    assert min(forgotten.answers, forgotten.plans, forgotten.graphs) >= 1
    async with service.database.reading() as connection:
        for name in ("solves", "jobs", "answers", "plans", "graphs", "events", "points"):
            assert await connection.scalar(sa.select(sa.func.count()).select_from(metadata.tables[name])) == 0, name
    assert (await http.get(first["url"])).status_code == 404
    assert (await http.get(f"/v1/graphs/{first['graph_id']}/document")).status_code == 404
    again = await http.post("/v1/solves", json=body(1), headers=WAIT)  # the service had all of it in memory
    assert (again.status_code, again.json()["source"]) == (200, "solve")
    assert (await http.get(f"/v1/plans/{again.json()['key']}")).status_code == 200


async def test_a_graph_that_was_forgotten_is_asked_for_again(app: FastAPI, http: httpx.AsyncClient) -> None:
    solve = (await http.post("/v1/solves", json=body(2), headers=WAIT)).json()
    await forget_all(app.state.service)
    by_id = {"graph_id": solve["graph_id"], "budget_fraction": 0.8}
    assert (await http.post("/v1/solves", json=by_id)).status_code == 404
    document = dump_json(uneven_chain(8, seed=2))
    uploaded = await http.post("/v1/graphs", content=document, headers={"Content-Type": "application/json"})
    assert uploaded.status_code == 201
    by_id["graph_id"] = uploaded.json()["id"]
    assert (await http.post("/v1/solves", json=by_id, headers=WAIT)).status_code == 200


async def test_what_is_open_or_young_stays(app: FastAPI, http: httpx.AsyncClient) -> None:
    service: Service = app.state.service
    done = (await http.post("/v1/solves", json=body(3), headers=WAIT)).json()
    slow = {"graph": json.loads(dump_json(tangle())), **ENDLESS}
    running = (await http.post("/v1/solves", json=slow)).json()
    young = await forget(service.database, blob_store(service.settings), older_than_ms=3_600_000)
    assert young == Forgotten(solves=0, jobs=0, answers=0, plans=0, graphs=0)
    assert (await http.get(done["url"])).status_code == 200
    await forget_all(service)
    assert (await http.get(done["url"])).status_code == 404
    assert (await http.get(running["url"])).json()["state"] in ("queued", "running")
    await http.post(f"{running['url']}/cancel?keep=discard")


async def test_large_documents_live_in_files_that_go_too(app: FastAPI, http: httpx.AsyncClient) -> None:
    service: Service = app.state.service
    folder = Path(service.settings.data_dir) / "blobs"
    noisy = uneven_chain(10, seed=4)
    text = dump_json(noisy)[:-1] + b',"device":"' + _noise(2 * INLINE_LIMIT_BYTES) + b'"}'
    text = text.replace(b'"device":"",', b"")
    stored = await http.post("/v1/graphs", content=text, headers={"Content-Type": "application/json"})
    assert stored.status_code == 201, stored.text
    (path,) = folder.rglob("*.zst")
    assert (await http.get(f"{stored.json()['url']}/document")).content == text
    path.write_bytes(path.read_bytes()[:-100])
    damaged = await http.get(f"{stored.json()['url']}/document")
    assert damaged.status_code == 500
    assert "backup" in damaged.json()["hint"]
    await forget_all(service)
    assert not list(folder.rglob("*.zst"))


def _noise(length: int) -> bytes:
    """Text that does not compress below three quarters of its length."""
    rng = random.Random(0)
    return bytes(rng.choices(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", k=length))
