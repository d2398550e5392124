"""HTTP to the solver service: one request, retried over lost connections, and problems turned into errors."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import httpx

from remat_solver.errors import InvalidRequest, RematError, ServiceError, ServiceUnavailable

PROBLEM_PREFIX = "urn:remat:problem:"
FIRST_CONTACT_S = 10.0
"""How long a service that has never answered is tried: a wrong address should show soon."""
FIRST_DELAY_S = 0.1
MAX_DELAY_S = 5.0
_PASSING = frozenset({502, 503, 504, 429})
"""Statuses that may be gone when asked again; 502 and 504 come from proxies before a service that restarts."""


class Connection:
    """A service at `endpoint`. Every request of ours may be repeated: equal uploads and questions coincide."""

    def __init__(
        self,
        endpoint: str,
        *,
        api_key: str | None,
        timeout_s: float,
        retry_for_s: float,
        transport: httpx.BaseTransport | None,
    ) -> None:
        self.endpoint = check_endpoint(endpoint)
        self._timeout_s = timeout_s
        self._retry_for_s = retry_for_s
        self._was_reached = False
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        uses_tls = self.endpoint.startswith("https:")  # without, reading the certificates is 40 ms wasted per rank
        self._http = httpx.Client(
            base_url=self.endpoint, headers=headers, timeout=timeout_s, transport=transport, verify=uses_tls
        )

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
        wait_s: float = 0.0,
        hint: str = "",
    ) -> httpx.Response:
        """The response to a request. `wait_s`: ask the service to wait so long before it answers.

        Raises the error that the service describes, and `ServiceUnavailable` (with `hint`) once it has
        not been reached for the retry time.
        """
        headers = dict(headers or {})
        if wait_s:
            headers["Prefer"] = f"wait={max(1, round(wait_s))}"
        if content is not None:
            headers.setdefault("Content-Type", "application/json")
        began_s, delay_s = time.monotonic(), FIRST_DELAY_S
        while True:
            failure, pause_s = self._try(method, path, content, headers, wait_s)
            if isinstance(failure, httpx.Response):
                return failure
            patience_s = self._retry_for_s if self._was_reached else min(self._retry_for_s, FIRST_CONTACT_S)
            sleep_s = max(pause_s, delay_s * random.uniform(0.5, 1.5))
            if time.monotonic() - began_s + sleep_s > patience_s:
                raise self._lost(failure, hint)
            time.sleep(sleep_s)
            delay_s = min(2 * delay_s, MAX_DELAY_S)

    def _try(
        self, method: str, path: str, content: bytes | None, headers: dict[str, str], wait_s: float
    ) -> tuple[httpx.Response | Exception, float]:
        """The response, or what went wrong and may pass, with the least time to wait before trying again."""
        try:
            response = self._http.request(
                method, path, content=content, headers=headers, timeout=self._timeout_s + wait_s
            )
        except httpx.TransportError as error:
            return error, 0.0
        if response.status_code in _PASSING:
            return error_of(response), _retry_after_s(response)
        self._was_reached = True
        if not response.is_success:
            raise error_of(response)
        return response, 0.0

    def _lost(self, failure: Exception, hint: str) -> RematError:
        if isinstance(failure, RematError) and not isinstance(failure, ServiceUnavailable):
            return failure
        what = "lost" if self._was_reached else "can't reach"
        reason = str(failure) or type(failure).__name__
        return ServiceUnavailable(
            f"{what} the solver service at {self.endpoint}: {reason.rstrip('.')}.",
            hint=hint or "Check the address, start one with `remat serve`, or leave out the endpoint to solve here.",
            url=self.endpoint,
        )


def check_endpoint(endpoint: str) -> str:
    """The endpoint without a trailing slash; raises `InvalidRequest` if it is no HTTP address."""
    try:
        url = httpx.URL(endpoint)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidRequest(
            f"the endpoint {endpoint!r} is no HTTP address.", hint="Write it as http://solver:8417.", field="endpoint"
        )
    return endpoint.rstrip("/")


def error_of(response: httpx.Response) -> RematError:
    """The error that a response describes: the same class that a local solve raises."""
    body = _problem_of(response)
    url = str(response.url)
    if body is None:
        return ServiceError(
            f"{url} answered {response.status_code} {response.reason_phrase}.",
            hint="Is this the address of a Remat service?",
            status_code=response.status_code,
            url=url,
        )
    error = revive(body)
    for name, value in (("status_code", response.status_code), ("url", url)):
        if name in error.field_names:
            error.fields[name] = value
    return error


def revive(problem: dict[str, Any]) -> RematError:
    """The error in an RFC 9457 problem."""
    return RematError.from_dict({**problem, "type": str(problem.get("type", "")).removeprefix(PROBLEM_PREFIX)})


def _problem_of(response: httpx.Response) -> dict[str, Any] | None:
    if "problem+json" not in response.headers.get("content-type", ""):
        return None
    try:
        body = response.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        return None
    return body if isinstance(body, dict) else None


def _retry_after_s(response: httpx.Response) -> float:
    text = response.headers.get("retry-after", "")
    return min(float(text), MAX_DELAY_S) if text.isdigit() else 0.0
