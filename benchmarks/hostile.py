"""Hostile requests against a real service: what it answers, how it grows, whether it stays up.

`python -m benchmarks.hostile` sends a seeded corpus of 10,000, and what schemathesis makes of docs/openapi.json. It
prints the figures and writes them to benchmarks/results/hostile.md. The tests run a small part of the same.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.machine import describe_machine
from tests.integration.hostile_bodies import Attack, attacks
from tests.integration.solver_service import SolverService

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "hostile.md"
SENDERS = 8
PATIENCE_S = 120.0


@dataclass(kw_only=True)
class Outcome:
    """What came back: (kind, status) -> how often, status 0 standing for uploads that were cut; and the faults."""

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def note(self, kind: str, status: int, headers: Any, what: str) -> None:
        """Counts an answer; a 5xx is a fault unless it is a 503 that says when to come again."""
        self.answers[kind, status] += 1
        if status >= 500 and not (status == 503 and "retry-after" in {name.lower() for name in headers}):
            self.faults.append(f"{status} for {what}")


def attack(url: str, requests: Iterable[Attack], outcome: Outcome) -> None:
    """Sends requests, several at a time."""
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client, ThreadPoolExecutor(SENDERS) as pool:
        for _ in pool.map(lambda one: _send(client, one, outcome), requests):
            pass


def _send(client: httpx.Client, one: Attack, outcome: Outcome) -> None:
    what = f"{one.name}: {one.method} {one.path[:80]} {one.content[:200]!r}"
    if one.cut is not None:
        _send_part(client.base_url, one)
        outcome.answers[one.name, 0] += 1
        return
    headers = [(name.encode(), value.encode()) for name, value in one.headers.items()]
    try:
        answer = client.request(one.method, one.path, content=one.content, headers=headers)
    except httpx.RemoteProtocolError as error:  # the server hung up on what is no HTTP
        outcome.faults.append(f"{error} for {what}")
        return
    outcome.note(one.name, answer.status_code, answer.headers, what)


def _send_part(url: httpx.URL, one: Attack) -> None:
    head = f"{one.method} {one.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(one.content)}\r\n\r\n"
    assert url.port is not None
    with socket.create_connection((url.host, url.port)) as connection:
        connection.sendall(head.encode() + one.content[: one.cut])


def attack_from_description(url: str, count: int, seed: int, outcome: Outcome) -> None:
    """Sends what schemathesis makes of the committed description, sound and unsound, spread over all operations."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded
    from hypothesis.errors import Unsatisfiable

    operations = [
        found.ok() for found in schemathesis.openapi.from_path(ROOT / "docs" / "openapi.json").get_all_operations()
    ]
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    each = max(1, count // (len(operations) * len(modes)))
    for operation in operations:
        for mode in modes:

            @seeded(seed)
            @settings(
                max_examples=each,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def send(case: Any) -> None:
                answer = case.call(base_url=url, timeout=PATIENCE_S)
                what = f"{case.method} {case.formatted_path} {case.body!r:.200}"
                outcome.note(
                    f"schemathesis, {case.meta.generation.mode.value}", answer.status_code, answer.headers, what
                )

            with warnings.catch_warnings(), contextlib.suppress(Unsatisfiable):  # nothing unsound about `GET /healthz`
                warnings.simplefilter("ignore")
                send()


def main() -> None:
    """Runs the whole and writes its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bodies", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    outcome, began_s = Outcome(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        service = SolverService(Path(folder), "--workers", "1")
        service.start()
        try:
            before_kib = service.peak_memory_kib()
            attack(service.url, attacks(arguments.seed, arguments.bodies), outcome)
            attack_from_description(service.url, arguments.bodies // 5, arguments.seed, outcome)
            growth_mib = (service.peak_memory_kib() - before_kib) / 1024
            ready = httpx.get(f"{service.url}/readyz", timeout=PATIENCE_S).status_code
        finally:
            service.stop()
    text = _report(outcome, growth_mib, ready, time.monotonic() - began_s, arguments.seed)
    print(text)
    RESULTS.write_text(text)


def _report(outcome: Outcome, growth_mib: float, ready: int, seconds: float, seed: int) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in describe_machine().items())
    kinds = sorted({kind for kind, _ in outcome.answers})
    statuses = sorted({status for _, status in outcome.answers})
    lines = [
        "# Hostile requests",
        "",
        f"`python -m benchmarks.hostile --seed {seed}`: {machine}.",
        "",
        f"{outcome.answers.total()} requests in {seconds:.0f} s.",
        f"Answered with a 5xx (other than 503 with Retry-After) or not at all: {len(outcome.faults)}.",
        f"The service's memory grew by {growth_mib:.0f} MiB at most; 300 are allowed.",
        f"/readyz afterwards: {ready}.",
        "",
        "| kind | " + " | ".join(str(status or "cut") for status in statuses) + " |",
        "|---" * (len(statuses) + 1) + "|",
    ]
    for kind in kinds:
        counts = " | ".join(str(outcome.answers[kind, status] or "") for status in statuses)
        lines.append(f"| {kind} | {counts} |")
    return "\n".join([*lines, *outcome.faults[:20], ""])


if __name__ == "__main__":
    main()
