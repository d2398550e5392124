"""The gate that every request but those for health passes: who is it, and not too often.

Without keys the service answers to loopback names only, so that no web page can reach it through a
name of its own that points here (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import math
import secrets
import time

from fastapi import Request

from remat_api.security.callers import ADMINISTRATOR, LOCAL, Caller, caller_of
from remat_api.security.rate import RateLimit
from remat_api.settings import Settings
from remat_api.store.clock import now_ms
from remat_api.store.keys import ApiKey, KeyStore, hash_secret
from remat_solver.errors import TooManyRequests, Unauthorized

FRESH_S = 10.0
"""How long a key that was found is believed without another look: a revoked one works so long."""
TOUCH_INTERVAL_S = 60.0


class Gate:
    """Turns a request into its caller."""

    def __init__(self, settings: Settings, keys: KeyStore) -> None:
        self._settings = settings
        self._keys = keys
        self._rate = RateLimit(settings.requests_per_minute)
        self._seen: dict[str, tuple[float, ApiKey]] = {}
        self._touched_s: dict[str, float] = {}

    async def admit(self, request: Request) -> Caller:
        """The request's caller. Raises `Unauthorized` and `TooManyRequests`."""
        return self._count(request, await self._identify(request))

    async def admit_session(self, request: Request, owner: str) -> Caller:
        """The caller of a request whose signed session names `owner`. Raises `Unauthorized` and `TooManyRequests`."""
        if not self._settings.require_keys:
            self._check_host(request)
            caller = LOCAL
        elif owner == ADMINISTRATOR.owner and self._settings.admin_key:
            caller = ADMINISTRATOR
        else:
            key = await self._keys.by_id(owner)
            if key is None or not key.is_valid(now_ms()):
                raise Unauthorized("nobody is signed in.", hint="Sign in with an API key.")
            caller = caller_of(key)
        return self._count(request, caller)

    def _count(self, request: Request, caller: Caller) -> Caller:
        wait_s = self._rate.take(caller.owner)
        request.state.owner = caller.owner
        if wait_s:
            raise TooManyRequests(
                f"more than {self._rate.per_minute} requests in a minute.",
                hint=f"Wait {math.ceil(wait_s)} s; waiting for a solve takes one request: Prefer: wait=30.",
                retry_after_s=math.ceil(wait_s),
            )
        return caller

    async def _identify(self, request: Request) -> Caller:
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        if text and scheme.lower() == "bearer":
            return await self.open(text.strip())
        if self._settings.require_keys:
            raise Unauthorized(
                "no API key was given.", hint="Send the header Authorization: Bearer rmt_… (remat keys create)."
            )
        self._check_host(request)
        return LOCAL

    def _check_host(self, request: Request) -> None:
        if not self._settings.insecure and not _is_loopback(request.url.hostname or ""):
            raise Unauthorized(
                f"this service has no keys and answers to localhost only, not to {request.url.hostname!r}.",
                hint="Use http://localhost or 127.0.0.1, or make keys and start it with --require-keys.",
                status_code=403,
            )

    async def open(self, text: str) -> Caller:
        """The caller who shows this key's text; raises `Unauthorized`."""
        admin_key = self._settings.admin_key
        if admin_key and secrets.compare_digest(hash_secret(text), hash_secret(admin_key)):
            return ADMINISTRATOR
        key = await self._find(hash_secret(text), text)
        if key is None or not key.is_valid(now_ms()):
            what = "unknown" if key is None else "revoked" if key.revoked_ms else "expired"
            raise Unauthorized(f"the API key is {what}.", hint="Make one with `remat keys create`.")
        return caller_of(key)

    async def _find(self, digest: str, text: str) -> ApiKey | None:
        now_s = time.monotonic()
        found_s, key = self._seen.get(digest, (-math.inf, None))
        if key is None or now_s - found_s > FRESH_S:
            key = await self._keys.find(text)
            if key is None:
                self._seen.pop(digest, None)
                return None
            self._seen[digest] = (now_s, key)
        if now_s - self._touched_s.get(key.id, -math.inf) > TOUCH_INTERVAL_S:
            self._touched_s[key.id] = now_s
            await self._keys.touch(key.id)
        return key


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
