"""What clients send: the bodies of POST requests, as frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from remat_solver.errors import InvalidRequest
from remat_solver.graph import Graph
from remat_solver.options import SolveOptions

MAX_PRIORITY = 100
MAX_TAGS = 16
MAX_PINS = 1000
MAX_TEXT = 200


@dataclass(frozen=True, kw_only=True)
class SolveRequest:
    """A question: a graph by `graph_id` or inline, and the fields of `SolveOptions`.

    `priority` (-100 to 100): higher goes first. `tags`: labels to find the solve by.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    graph_id: str | None = None
    graph: Graph | None = None
    budget_bytes: int | None = None
    budget_fraction: float | None = None
    max_overhead: float | None = None
    gap: float = SolveOptions.gap
    time_limit_s: float = SolveOptions.time_limit_s
    threads: int = SolveOptions.threads
    strategy: str = SolveOptions.strategy
    engine: str = SolveOptions.engine
    keep: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    priority: int = 0
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.graph_id is None) == (self.graph is None):
            raise InvalidRequest(
                "a solve needs either graph_id or graph.",
                hint="Upload the graph once (PUT /v1/graphs/{sha256}) and name it, or send it inline.",
                field="graph_id",
            )
        if not -MAX_PRIORITY <= self.priority <= MAX_PRIORITY:
            raise InvalidRequest(f"priority is {self.priority}, outside -100 to 100.", field="priority")
        _check_texts("tags", self.tags, MAX_TAGS)
        _check_texts("keep", self.keep, MAX_PINS)
        _check_texts("recompute", self.recompute, MAX_PINS)
        self.options()

    def options(self) -> SolveOptions:
        """The solver's part of the question; raises `InvalidRequest`."""
        return SolveOptions(**{option.name: getattr(self, option.name) for option in fields(SolveOptions)})


@dataclass(frozen=True, kw_only=True)
class CancelRequest:
    """`keep="best"` asks for the best plan found so far, `"discard"` for none."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    keep: Literal["best", "discard"] = "best"


def _check_texts(field: str, texts: tuple[str, ...], most: int) -> None:
    if len(texts) > most:
        raise InvalidRequest(f"{field} lists {len(texts)} entries; at most {most} are taken.", field=field)
    for text in texts:
        if not 0 < len(text) <= MAX_TEXT or not text.isprintable():
            raise InvalidRequest(f"{field}: entries are 1 to {MAX_TEXT} printable characters.", field=field)
