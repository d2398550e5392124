"""How a question stands on the service: what the SDK reads of a solve or frontier there."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import httpx

from remat.connection import revive
from remat_solver.errors import RematError, ServiceError
from remat_solver.options import Progress


@dataclass(frozen=True, kw_only=True)
class RemoteSolve:
    """How a solve (or frontier) on the service stands. `error` is set once it has failed or was cancelled.

    `source`: "solve" (it has a job of its own), "joined" (an equal question was open) or "cache".
    `url` is its path on the service, `plan_urls` those of the plans of a frontier so far, ascending in budget.
    """

    id: str
    url: str
    state: str
    key: str
    source: str
    queue_position: int | None
    progress: Progress | None
    error: RematError | None
    plan_urls: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in ("done", "failed", "cancelled")


def read_remote_solve(response: httpx.Response) -> RemoteSolve:
    """The solve or frontier in a response; raises `ServiceError` if it holds none."""
    try:
        view = response.json()
        return RemoteSolve(
            id=view["id"],
            url=view["url"],
            state=view["state"],
            key=view["key"],
            source=view["source"],
            queue_position=view["queue_position"],
            progress=_progress(view["progress"]) if view["progress"] else None,
            error=revive(view["error"]) if view["error"] else None,
            plan_urls=tuple(point["url"] for point in view.get("points", ())),
        )
    except (ValueError, KeyError, TypeError):
        raise ServiceError(
            f"{response.url} answered with something that is no solve.",
            hint="Is this the address of a Remat service of this version?",
            status_code=response.status_code,
            url=str(response.url),
        ) from None


def _progress(body: dict[str, Any]) -> Progress:
    """A newer service may report more than this version knows."""
    return Progress(**{field.name: body[field.name] for field in dataclasses.fields(Progress) if field.name in body})
