"""The service's table of op costs, as JSON and back."""

from __future__ import annotations

import json

import httpx

from remat_solver.errors import ServiceError

Costs = dict[str, tuple[int, int]]
"""(time_ns, workspace_bytes) by sha256 of an op's signature."""


def write_costs(costs: Costs) -> bytes:
    """The body that adds costs to the table."""
    entries = [
        {"signature": signature, "time_ns": time_ns, "workspace_bytes": workspace_bytes}
        for signature, (time_ns, workspace_bytes) in costs.items()
    ]
    return json.dumps({"costs": entries}).encode()


def read_costs(response: httpx.Response) -> Costs:
    """The costs in a response; raises `ServiceError` if it holds none."""
    try:
        return {
            entry["signature"]: (int(entry["time_ns"]), int(entry["workspace_bytes"]))
            for entry in response.json()["costs"]
        }
    except (ValueError, KeyError, TypeError):
        raise ServiceError(
            f"{response.url} answered with something that is no table of costs.",
            hint="Is this the address of a Remat service of this version?",
            status_code=response.status_code,
            url=str(response.url),
        ) from None
