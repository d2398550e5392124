"""Keys, scopes, quotas, rates and what a service without keys answers to."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from remat_api.app import create_app
from remat_api.commands import check_keys
from remat_api.key_commands import app as keys_command
from remat_api.service import Service
from remat_api.settings import Settings, read_settings
from remat_api.store.clock import now_ms
from remat_solver.errors import InvalidRequest
from remat_solver.files import dump_json
from tests.integration.training_graphs import ENDLESS, tangle, uneven_chain

pytestmark = pytest.mark.anyio
ADMIN_KEY = "the operator's own key, long enough"
GRAPH = json.loads(dump_json(uneven_chain(5)))
SLOW = {"graph": json.loads(dump_json(tangle())), **ENDLESS}


@contextlib.asynccontextmanager
async def serving(folder: Path, **settings: Any) -> AsyncIterator[tuple[Service, httpx.AsyncClient]]:
    """A service that asks for keys, and a client that shows the operator's."""
    fields = {"workers": 1, "require_keys": True, "admin_key": ADMIN_KEY, "drain_s": 0.0, **settings}
    app = create_app(Settings(data_dir=folder, **fields))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://solver.example") as client:
            yield app.state.service, client


def shows(key: str) -> dict[str, str]:
    """The header that shows a key."""
    return {"Authorization": f"Bearer {key}"}


REQUESTS: list[tuple[str, str, str]] = [
    ("GET", "/v1/solves", "read"),
    ("GET", f"/v1/solves/{'0' * 32}", "read"),
    ("GET", f"/v1/solves/{'0' * 32}/plan", "read"),
    ("GET", f"/v1/solves/{'0' * 32}/events", "read"),
    ("GET", f"/v1/plans/{'0' * 64}", "read"),
    ("GET", f"/v1/graphs/{'0' * 64}", "read"),
    ("GET", f"/v1/graphs/{'0' * 64}/document", "read"),
    ("POST", "/v1/solves", "solve"),
    ("POST", "/v1/graphs", "solve"),
    ("POST", "/v1/graphs:validate", "solve"),
    ("PUT", f"/v1/graphs/{'0' * 64}", "solve"),
    ("POST", f"/v1/solves/{'0' * 32}/cancel", "solve"),
    ("DELETE", f"/v1/solves/{'0' * 32}", "solve"),
    ("POST", "/v1/frontiers", "solve"),
    ("GET", f"/v1/frontiers/{'0' * 32}", "read"),
    ("GET", f"/v1/frontiers/{'0' * 32}/events", "read"),
    ("GET", f"/v1/frontiers/{'0' * 32}/plans/{'0' * 64}", "read"),
    ("POST", f"/v1/frontiers/{'0' * 32}/cancel", "solve"),
    ("DELETE", f"/v1/frontiers/{'0' * 32}", "solve"),
    ("GET", f"/v1/costs/{'0' * 64}/{'0' * 64}", "read"),
    ("PUT", f"/v1/costs/{'0' * 64}/{'0' * 64}", "solve"),
]


async def test_every_route_asks_for_its_scope(tmp_path: Path) -> None:
    async with serving(tmp_path) as (service, client):
        _, reader = await service.keys.create("reader", ("read",))
        _, solver = await service.keys.create("solver", ("solve",))
        for method, path, scope in REQUESTS:
            statuses = [
                (await client.request(method, path, headers=headers)).status_code
                for headers in ({}, shows("rmt_0_x"), shows(reader), shows(solver), shows(ADMIN_KEY))
            ]
            assert statuses[:2] == [401, 401], path
            assert (statuses[2] == 403) == (scope == "solve"), path
            assert all(status not in (401, 403) for status in statuses[3:]), path
        for path in ("/healthz", "/readyz", "/version"):
            assert (await client.get(path)).status_code in (200, 503)


async def test_no_route_was_forgotten(tmp_path: Path) -> None:
    """Every path under /v1 of the API's own description is in the table above."""
    described = create_app(Settings(data_dir=tmp_path)).openapi()["paths"]
    known = {(method, path.replace("0" * 64, "{}").replace("0" * 32, "{}")) for method, path, _ in REQUESTS}
    for path, methods in described.items():
        blank = "/".join("{}" if part.startswith("{") else part for part in path.split("/"))
        assert not path.startswith("/v1") or {(method.upper(), blank) for method in methods} <= known, path


async def test_revoked_and_expired_keys_open_nothing_and_say_so(tmp_path: Path) -> None:
    async with serving(tmp_path) as (service, client):
        key, revoked = await service.keys.create("old", ("read",))
        _, expired = await service.keys.create("late", ("read",), expires_ms=now_ms() - 1)
        await service.keys.revoke(key.id)
        for text, word in ((revoked, "revoked"), (expired, "expired"), (revoked[:-1] + "x", "unknown")):
            response = await client.get("/v1/solves", headers=shows(text))
            assert response.status_code == 401
            assert word in response.json()["detail"]
            assert response.headers["WWW-Authenticate"] == "Bearer"


async def test_a_key_sees_its_own_solves_only_and_an_administrator_sees_all(tmp_path: Path) -> None:
    async with serving(tmp_path) as (service, client):
        keys = [(await service.keys.create(name, ("solve",)))[1] for name in ("one", "two")]
        body = {"graph": GRAPH, "budget_fraction": 0.9}
        ids = [(await client.post("/v1/solves", json=body, headers=shows(key))).json()["id"] for key in keys]
        for key, own, other in ((keys[0], ids[0], ids[1]), (keys[1], ids[1], ids[0])):
            listed = (await client.get("/v1/solves", headers=shows(key))).json()["solves"]
            assert [solve["id"] for solve in listed] == [own]
            for method, path in (
                ("GET", ""),
                ("GET", "/plan"),
                ("GET", "/events"),
                ("POST", "/cancel"),
                ("DELETE", ""),
            ):
                response = await client.request(method, f"/v1/solves/{other}{path}", headers=shows(key))
                assert response.status_code == 404, path
        listed = (await client.get("/v1/solves", headers=shows(ADMIN_KEY))).json()["solves"]
        assert {solve["id"] for solve in listed} == set(ids)


async def test_secrets_are_in_no_file_and_no_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with serving(tmp_path) as (service, client):
        _, text = await service.keys.create("me", ("solve",))
        await client.get("/v1/solves", headers=shows(text))
        secret = text.rpartition("_")[2].encode()
        stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    printed = "".join(capfd.readouterr()).encode()
    assert b"me" in stored
    assert secret not in stored + printed
    assert ADMIN_KEY.encode() not in stored + printed
    assert ADMIN_KEY not in repr(service.settings)


async def test_quotas_of_open_solves(tmp_path: Path) -> None:
    async with serving(tmp_path) as (service, client):
        _, text = await service.keys.create("small", ("solve",), max_open_solves=1)
        first = await client.post("/v1/solves", json=SLOW, headers=shows(text))
        assert first.status_code == 202
        second = await client.post("/v1/solves", json={**SLOW, "budget_fraction": 0.71}, headers=shows(text))
        assert second.status_code == 429
        assert second.json()["type"] == "urn:remat:problem:too-many-requests"
        assert int(second.headers["Retry-After"]) > 0
        await client.post(f"{first.headers['Location']}/cancel?keep=discard", headers=shows(text))
        third = await client.post("/v1/solves", json={**SLOW, "budget_fraction": 0.71}, headers=shows(text))
        assert third.status_code == 202


async def test_quotas_of_solving_time(tmp_path: Path) -> None:
    async with serving(tmp_path) as (service, client):
        _, text = await service.keys.create("small", ("solve",), solve_seconds_per_day=1)
        body = {**SLOW, "time_limit_s": 1.5}
        asked = await client.post("/v1/solves", json=body, headers=shows(text))
        waiting = {**shows(text), "Prefer": "wait=30"}
        while (await client.get(asked.headers["Location"], headers=waiting)).json()["state"] in ("queued", "running"):
            pass
        refused = await client.post("/v1/solves", json={**body, "budget_fraction": 0.71}, headers=shows(text))
        assert refused.status_code == 429
        assert "today" in refused.json()["detail"]


async def test_rates(tmp_path: Path) -> None:
    async with serving(tmp_path, requests_per_minute=3) as (service, client):
        _, text = await service.keys.create("busy", ("read",))
        statuses = [(await client.get("/v1/solves", headers=shows(text))).status_code for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        assert (await client.get("/v1/solves", headers=shows(ADMIN_KEY))).status_code == 200


async def test_without_keys_only_loopback_names_are_answered(tmp_path: Path) -> None:
    async with serving(tmp_path, require_keys=False, admin_key="") as (_, client):
        assert (await client.get("http://127.0.0.1:8417/v1/solves")).status_code == 200
        assert (await client.get("http://[::1]/v1/solves")).status_code == 200
        assert (await client.get("http://attacker.example/v1/solves")).status_code == 403
    async with serving(tmp_path, require_keys=False, admin_key="", insecure=True) as (_, client):
        assert (await client.get("http://solver.example/v1/solves")).status_code == 200


async def test_an_idempotency_key_gives_the_same_solve_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, client):
        headers = {**shows(ADMIN_KEY), "Idempotency-Key": "once"}
        body = {"graph": GRAPH, "budget_fraction": 0.9}
        ids = [(await client.post("/v1/solves", json=body, headers=headers)).json()["id"] for _ in range(2)]
        assert ids[0] == ids[1]
        other = await client.post("/v1/solves", json={**body, "budget_fraction": 0.8}, headers=headers)
        assert other.status_code == 422
        headers["Idempotency-Key"] = "twice"
        assert (await client.post("/v1/solves", json=body, headers=headers)).json()["id"] != ids[0]


def test_keys_are_made_listed_and_revoked_by_command(tmp_path: Path) -> None:
    folder = ["--data-dir", str(tmp_path)]
    run = CliRunner().invoke
    settings = Settings(data_dir=tmp_path, require_keys=True)
    with pytest.raises(InvalidRequest, match="no API keys"):
        check_keys(settings)
    text = run(keys_command, ["create", "team", "--scope", "read", *folder]).output.strip()
    check_keys(settings)
    key_id = text.split("_")[1]
    listed = run(keys_command, ["list", *folder]).output
    assert key_id in listed
    assert "valid" in listed
    assert text not in listed
    assert run(keys_command, ["revoke", key_id, *folder]).exit_code == 0
    assert "revoked" in run(keys_command, ["list", *folder]).output
    with pytest.raises(InvalidRequest, match="no API keys"):
        check_keys(settings)


def test_settings_come_from_the_environment_and_fail_loudly() -> None:
    environment = {"REMAT_WORKERS": "3", "REMAT_DATA_DIR": "/x", "REMAT_REQUIRE_KEYS": "yes", "REMAT_DRAIN_S": "0.5"}
    settings = read_settings(environment, workers=None)
    assert (settings.workers, str(settings.data_dir), settings.require_keys, settings.drain_s) == (3, "/x", True, 0.5)
    assert read_settings(environment, workers=7).workers == 7
    for name, text in (("WORKERS", "many"), ("WORKERS", "0"), ("INSECURE", "maybe"), ("ADMIN_KEY", "short")):
        with pytest.raises(InvalidRequest, match=name.lower() if text in ("0", "short") else name):
            read_settings({f"REMAT_{name}": text})
