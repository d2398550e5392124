"""What clients send: the bodies of POST requests, as frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from remat_api.questions import Terms
from remat_api.store.costs import OpCost
from remat_solver.errors import InvalidRequest
from remat_solver.graph import Graph
from remat_solver.options import SolveOptions

MAX_PRIORITY = 100
MAX_TAGS = 16
MAX_PINS = 1000
MAX_TEXT = 200
MAX_POINTS = 200
MAX_QUEUE_TIMEOUT_S = 7 * 24 * 3600
MAX_COSTS = 10_000


@dataclass(frozen=True, kw_only=True)
class SolveRequest:
    """A question: a graph by `graph_id` or inline, and the fields of `SolveOptions`.

    `priority` (-100 to 100): higher goes first. `tags`: labels to find the solve by. `queue_timeout_s`: it fails if
    no worker has taken it up by then.
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
    reorder: bool = False
    priority: int = 0
    queue_timeout_s: float | None = None
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_question(self)
        self.options()

    def options(self) -> SolveOptions:
        """The solver's part of the question; raises `InvalidRequest`."""
        return SolveOptions(**{option.name: getattr(self, option.name) for option in fields(SolveOptions)})


@dataclass(frozen=True, kw_only=True)
class FrontierRequest:
    """A question for plans over the whole range of budgets: from the least feasible one to the store-all peak.

    `time_limit_s` is for all `points` together.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    graph_id: str | None = None
    graph: Graph | None = None
    points: int = 12
    gap: float = SolveOptions.gap
    time_limit_s: float = SolveOptions.time_limit_s
    threads: int = SolveOptions.threads
    engine: str = SolveOptions.engine
    keep: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    priority: int = 0
    queue_timeout_s: float | None = None
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_question(self)
        if not 2 <= self.points <= MAX_POINTS:
            raise InvalidRequest(f"points is {self.points}, outside 2 to {MAX_POINTS}.", field="points")
        self.options()

    def options(self) -> SolveOptions:
        """The solver's part of the question; raises `InvalidRequest`."""
        return SolveOptions(
            budget_fraction=1.0,
            gap=self.gap,
            time_limit_s=self.time_limit_s,
            threads=self.threads,
            engine=self.engine,
            keep=self.keep,
            recompute=self.recompute,
        )


@dataclass(frozen=True, kw_only=True)
class CancelRequest:
    """`keep="best"` asks for the best plan found so far, `"discard"` for none."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    keep: Literal["best", "discard"] = "best"


def terms_of(asked: SolveRequest | FrontierRequest) -> Terms:
    """How it is asked."""
    return Terms(tags=asked.tags, priority=asked.priority, queue_timeout_s=asked.queue_timeout_s)


@dataclass(frozen=True, kw_only=True)
class CostsRequest:
    """Costs measured on one device."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    costs: tuple[OpCost, ...]

    def __post_init__(self) -> None:
        if len(self.costs) > MAX_COSTS:
            raise InvalidRequest(f"{len(self.costs)} costs at once; at most {MAX_COSTS} are taken.", field="costs")
        if len({cost.signature for cost in self.costs}) < len(self.costs):
            raise InvalidRequest("a signature comes twice.", hint="Send each once.", field="costs")


def _check_question(asked: SolveRequest | FrontierRequest) -> None:
    if (asked.graph_id is None) == (asked.graph is None):
        raise InvalidRequest(
            "a question needs either graph_id or graph.",
            hint="Upload the graph once (PUT /v1/graphs/{sha256}) and name it, or send it inline.",
            field="graph_id",
        )
    if not -MAX_PRIORITY <= asked.priority <= MAX_PRIORITY:
        raise InvalidRequest(f"priority is {asked.priority}, outside -100 to 100.", field="priority")
    if asked.queue_timeout_s is not None and not 0 < asked.queue_timeout_s <= MAX_QUEUE_TIMEOUT_S:
        raise InvalidRequest(
            f"queue_timeout_s is {asked.queue_timeout_s}, outside 0 to {MAX_QUEUE_TIMEOUT_S}.", field="queue_timeout_s"
        )
    _check_texts("tags", asked.tags, MAX_TAGS)
    _check_texts("keep", asked.keep, MAX_PINS)
    _check_texts("recompute", asked.recompute, MAX_PINS)


def _check_texts(field: str, texts: tuple[str, ...], most: int) -> None:
    if len(texts) > most:
        raise InvalidRequest(f"{field} lists {len(texts)} entries; at most {most} are taken.", field=field)
    for text in texts:
        if not 0 < len(text) <= MAX_TEXT or not text.isprintable():
            raise InvalidRequest(f"{field}: entries are 1 to {MAX_TEXT} printable characters.", field=field)
