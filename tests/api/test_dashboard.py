"""The pages without a browser: who may see what, which forms count, and what never gets out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from remat_api.dashboard.sessions import COOKIE
from remat_solver.files import dump_json
from tests.api.test_security import ADMIN_KEY, serving, shows
from tests.integration.training_graphs import QUICK_OPS, uneven_chain

pytestmark = pytest.mark.anyio
GRAPH = json.loads(dump_json(uneven_chain(QUICK_OPS)))
HOSTILE = "</script><script>alert(1)</script><img src=x>"


def token_in(page: httpx.Response) -> str:
    """The token of the page's forms."""
    found = re.search(r'name="csrf_token" value="([^"]+)"', page.text)
    assert found is not None
    return found[1]


async def sign_in(client: httpx.AsyncClient, key: str, *, under: str = "") -> httpx.Response:
    """Fills in the form; cookies stay with the client."""
    page = await client.get(f"{under}/dashboard/sign-in")
    return await client.post(f"{under}/dashboard/sign-in", data={"api_key": key, "csrf_token": token_in(page)})


async def solved(client: httpx.AsyncClient, headers: dict[str, str] | None = None, **fields: Any) -> str:
    """The id of a solve that is over."""
    headers = {"Prefer": "wait=30", **(headers or {})}
    body = {"graph": GRAPH, "budget_fraction": 0.7, **fields}
    answer = await client.post("/v1/solves", json=body, headers=headers)
    while answer.status_code == 202 or answer.json()["state"] in ("queued", "running"):
        answer = await client.get(answer.json()["url"], headers=headers)
    assert answer.json()["state"] == "done", answer.text
    found: str = answer.json()["id"]
    return found


async def test_pages_need_nothing_from_elsewhere(app: FastAPI, http: httpx.AsyncClient) -> None:
    del app
    solve = await solved(http, graph={**GRAPH, "name": HOSTILE})
    frontier = (await http.post("/v1/frontiers", json={"graph": GRAPH, "points": 2})).json()["id"]
    pages = ["", "/solves", f"/solves/{solve}", f"/solves/{solve}/plan", f"/frontiers/{frontier}", "/keys", "/sign-in"]
    files: set[str] = set()
    for path in pages:
        page = await http.get(f"/dashboard{path}")
        assert page.status_code == 200, path
        assert "script-src 'self'" in page.headers["content-security-policy"]
        assert "unsafe" not in page.headers["content-security-policy"]
        assert page.headers["cache-control"] == "no-store"
        assert "<script>alert" not in page.text
        assert "<img src=x" not in page.text
        # What the policy would stop: inline scripts, handlers and styles.
        assert not re.search(r"<script(?![^>]*(?:src=|application/json))|\son\w+=|<style|\sstyle=", page.text), path
        links = re.findall(r"""(?:src|href|action|hx-get)=["']([^"']+)""", page.text)
        assert all(link.startswith(("/dashboard", "#")) for link in links), links
        files |= {link for link in links if "/assets/" in link}
    for file in files:
        answer = await http.get(file)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
    assert (await http.get("/dashboard/assets/0/keys.py")).status_code == 404


async def test_the_address_alone_leads_to_the_dashboard(http: httpx.AsyncClient) -> None:
    assert (await http.get("/")).headers["location"] == "/dashboard"


async def test_signing_in_and_out(tmp_path: Path) -> None:
    async with serving(tmp_path) as (service, client):
        key, text = await service.keys.create("reader", ("read",))
        away = await client.get("/dashboard/solves")
        assert (away.status_code, away.headers["location"]) == (303, "/dashboard/sign-in?next=/dashboard/solves")
        refused = await sign_in(client, "rmt_0_wrong")
        assert refused.status_code == 401
        assert "unknown" in refused.text
        assert (await client.get("/dashboard")).status_code == 303
        signed_in = await sign_in(client, text)
        assert signed_in.status_code == 303
        cookie = signed_in.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert text.lower() not in cookie
        page = await client.get("/dashboard")
        assert page.status_code == 200
        assert ">reader<" in page.text
        await client.post("/dashboard/sign-out", data={"csrf_token": token_in(page)})
        assert (await client.get("/dashboard")).status_code == 303
        await sign_in(client, text)
        await service.keys.revoke(key.id)
        assert (await client.get("/dashboard")).status_code == 303
        live = await client.get("/dashboard", headers={"HX-Request": "true"})
        assert (live.status_code, live.headers["hx-redirect"]) == (401, "/dashboard/sign-in")


async def test_sign_in_leads_to_pages_of_ours_only(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, client):
        for wanted, led_to in [
            ("/dashboard/keys", "/dashboard/keys"),
            ("https://evil.example/dashboard/", "/dashboard"),
            ("//evil.example", "/dashboard"),
            ("/dashboard/..//evil.example", "/dashboard"),
        ]:
            page = await client.get("/dashboard/sign-in")
            form = {"api_key": ADMIN_KEY, "csrf_token": token_in(page), "next": wanted}
            assert (await client.post("/dashboard/sign-in", data=form)).headers["location"] == led_to


async def test_actions_need_the_token_of_their_session(tmp_path: Path) -> None:
    async with serving(tmp_path) as (service, client):
        await sign_in(client, ADMIN_KEY)
        token = token_in(await client.get("/dashboard/keys"))
        for form in ({}, {"csrf_token": ""}, {"csrf_token": "x" * 32}, {"csrf_token": "é"}):
            answer = await client.post("/dashboard/keys", data={"name": "stolen", "scope": "admin", **form})
            assert answer.status_code == 403
        client.cookies.delete(COOKIE)
        await sign_in(client, ADMIN_KEY)
        answer = await client.post("/dashboard/keys", data={"name": "stolen", "scope": "admin", "csrf_token": token})
        assert answer.status_code == 403
        assert not await service.keys.listing()
        large = await client.post("/dashboard/keys", content=b"a" * 100_000)
        assert large.status_code == 413
        broken = await client.post("/dashboard/keys", content=b"\xff\xfe=1")
        assert broken.status_code == 422


async def test_forged_and_outlived_sessions_open_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, client):
        await sign_in(client, ADMIN_KEY)
        cookie = client.cookies[COOKIE]
        for forged in ("", "x", cookie[:-2], "W10." + cookie.partition(".")[2]):
            answer = await client.get("/dashboard", headers={"Cookie": f"{COOKIE}={forged}"})
            assert answer.status_code == 303, forged
    async with serving(tmp_path) as (_, client):
        client.cookies.set(COOKIE, cookie)
        assert (await client.get("/dashboard")).status_code == 200  # the service came back, and knows its own hand
    async with serving(tmp_path, admin_key="another operator's key, also long") as (_, client):
        client.cookies.set(COOKIE, cookie)
        assert (await client.get("/dashboard")).status_code == 303


async def test_a_visitor_does_and_sees_what_the_key_may(tmp_path: Path) -> None:
    async with serving(tmp_path) as (service, client):
        _, reader = await service.keys.create("reader", ("read",))
        _, solver = await service.keys.create("solver", ("solve",))
        own = await solved(client, shows(solver))
        foreign = await solved(client, shows(ADMIN_KEY))
        await sign_in(client, solver)
        listed = (await client.get("/dashboard/solves")).text
        assert own in listed
        assert foreign not in listed
        assert (await client.get(f"/dashboard/solves/{foreign}")).status_code == 404
        assert (await client.get(f"/dashboard/solves/{foreign}/plan")).status_code == 404
        assert (await client.get("/dashboard/keys")).status_code == 403
        page = await client.get("/dashboard")
        assert "/dashboard/keys" not in page.text
        form = {"csrf_token": token_in(page), "keep": "discard"}
        assert (await client.post(f"/dashboard/solves/{foreign}/cancel", data=form)).status_code == 404
        assert (await client.post(f"/dashboard/solves/{own}/cancel", data=form)).status_code == 303
        assert (await client.post(f"/dashboard/solves/{own}/cancel", data={**form, "keep": "all"})).status_code == 422
        await sign_in(client, reader)
        form["csrf_token"] = token_in(await client.get("/dashboard"))
        assert (await client.post(f"/dashboard/solves/{own}/cancel", data=form)).status_code == 403


async def test_keys_are_made_shown_once_and_revoked(tmp_path: Path) -> None:
    async with serving(tmp_path) as (service, client):
        await sign_in(client, ADMIN_KEY)
        token = token_in(await client.get("/dashboard/keys"))
        form = {"csrf_token": token, "name": "team <b>", "scope": "solve", "expires_days": "3", "max_open_solves": "5"}
        made = await client.post("/dashboard/keys", data=form)
        found = re.search(r'value="(rmt_[^"]+)"', made.text)
        assert found is not None
        assert (await client.get("/v1/solves", headers=shows(found[1]))).status_code == 200
        page = await client.get("/dashboard/keys")
        assert found[1] not in page.text
        assert "team &lt;b&gt;" in page.text
        (key,) = await service.keys.listing()
        assert (key.scopes, key.max_open_solves) == (("solve",), 5)
        assert key.expires_ms is not None
        for bad in ({"name": ""}, {"scope": "root"}, {"expires_days": "-1"}, {"max_open_solves": "9" * 30}):
            answer = await client.post("/dashboard/keys", data={**form, **bad})
            assert answer.status_code == 422
        assert len(await service.keys.listing()) == 1
        await client.post(f"/dashboard/keys/{key.id}/revoke", data={"csrf_token": token})
        assert (await service.keys.listing())[0].revoked_ms is not None


async def test_behind_a_proxy_that_shows_it_under_a_path(tmp_path: Path) -> None:
    async with serving(tmp_path, root_path="/remat") as (_, client):
        signed_in = await sign_in(client, ADMIN_KEY, under="/remat")
        assert signed_in.headers["location"] == "/remat/dashboard"
        assert "Path=/remat/dashboard" in signed_in.headers["set-cookie"]
        page = await client.get("/remat/dashboard")
        assert page.status_code == 200
        links = re.findall(r"""(?:src|href|action|hx-get)=["']([^"'#]+)""", page.text)
        assert all(link.startswith("/remat/dashboard") for link in links), links
        asked = await client.post("/v1/solves", json={"graph": GRAPH, "budget_fraction": 0.9}, headers=shows(ADMIN_KEY))
        assert asked.headers["location"].startswith("/remat/v1/solves/")
