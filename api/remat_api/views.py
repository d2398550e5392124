"""What clients get: the bodies of responses, as frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from remat_api.problems import stored_problem
from remat_api.store.clock import iso_time
from remat_api.store.solves import Solve
from remat_api.stored_graph import StoredGraph
from remat_solver.bounds import working_set_bound


@dataclass(frozen=True, kw_only=True)
class GraphView:
    """A stored graph: `id` is the sha256 of its JSON, `hash` names the planning problem without names."""

    id: str
    hash: str
    name: str
    op_count: int
    value_count: int
    fixed_bytes: int
    store_all_peak_bytes: int
    store_all_time_ns: int
    size_bytes: int
    created_at: str | None
    url: str


@dataclass(frozen=True, kw_only=True)
class GraphForecast:
    """What a graph would be, were it stored, and what planning it takes.

    `least_budget_bytes`: no budget below it has a plan. `dense_columns`: how large the paper's own
    formulation (strategy "checkmate") would be; the default strategy stays far below it.
    """

    id: str
    hash: str
    op_count: int
    value_count: int
    fixed_bytes: int
    size_bytes: int
    store_all_peak_bytes: int
    store_all_time_ns: int
    least_budget_bytes: int
    dense_columns: int


@dataclass(frozen=True, kw_only=True)
class PlanSummary:
    """A plan's figures; the plan itself is at `url`."""

    id: str
    url: str
    objective: str
    status: str
    budget_bytes: int
    peak_bytes: int
    time_ns: int
    bound_ns: int
    gap: float
    overhead: float


@dataclass(frozen=True, kw_only=True)
class SolveView:
    """A solve: what was asked, how it stands, and what came of it.

    `state`: queued, running, done, failed or cancelled. `source`: "solve" (its own job), "joined" (an
    equal question was already being solved) or "cache". `progress`: the solver's last report.
    """

    id: str
    state: str
    key: str
    graph_id: str
    graph_hash: str
    options: dict[str, Any]
    priority: int
    tags: tuple[str, ...]
    source: str
    stop: str
    attempt: int
    queue_position: int | None
    progress: dict[str, Any] | None
    plan: PlanSummary | None
    error: dict[str, Any] | None
    created_at: str | None
    started_at: str | None
    finished_at: str | None
    url: str
    events_url: str


@dataclass(frozen=True, kw_only=True)
class FrontierView(SolveView):
    """A frontier: as a solve, with the plans found so far in `points`, ascending in budget (`plan` stays null)."""

    points: tuple[PlanSummary, ...]


@dataclass(frozen=True, kw_only=True)
class SolvePage:
    """Solves, newest first; `next` leads to older ones."""

    solves: tuple[SolveView, ...]
    next: str | None


def graph_view(stored: StoredGraph) -> GraphView:
    """A stored graph as clients see it."""
    graph = stored.graph
    return GraphView(
        id=stored.id,
        hash=graph.hash,
        name=graph.name,
        op_count=len(graph),
        value_count=len(graph.values),
        fixed_bytes=graph.fixed_bytes,
        store_all_peak_bytes=stored.store_all_peak_bytes,
        store_all_time_ns=graph.total_time_ns,
        size_bytes=stored.size_bytes,
        created_at=iso_time(stored.created_ms),
        url=f"/v1/graphs/{stored.id}",
    )


def solve_view(solve: Solve) -> SolveView:
    """A solve as clients see it."""
    return SolveView(**_solve_fields(solve))


def frontier_view(solve: Solve, points: list[tuple[str, dict[str, Any]]]) -> FrontierView:
    """A frontier as clients see it."""
    fields = _solve_fields(solve)
    fields["options"] = {**solve.options, "points": solve.points, "budget_fraction": None}
    plans = (PlanSummary(id=plan, url=f"{fields['url']}/plans/{plan}", **figures) for plan, figures in points)
    return FrontierView(**fields, points=tuple(plans))


def _solve_fields(solve: Solve) -> dict[str, Any]:
    url = f"/v1/{solve.kind}s/{solve.id}"
    plan = solve.plan and PlanSummary(id=solve.plan_id or "", url=f"{url}/plan", **solve.plan)
    return {
        "id": solve.id,
        "state": solve.state,
        "key": solve.key,
        "graph_id": solve.graph_id,
        "graph_hash": solve.graph_hash,
        "options": solve.options,
        "priority": solve.priority,
        "tags": solve.tags,
        "source": solve.source,
        "stop": solve.stop,
        "attempt": solve.attempt,
        "queue_position": solve.queue_position,
        "progress": solve.progress,
        "plan": plan or None,
        "error": stored_problem(solve.error),
        "created_at": iso_time(solve.created_ms),
        "started_at": iso_time(solve.started_ms),
        "finished_at": iso_time(solve.finished_ms),
        "url": url,
        "events_url": f"{url}/events",
    }


def graph_forecast(stored: StoredGraph) -> GraphForecast:
    """The figures of a graph that is not stored."""
    graph = stored.graph
    ops, values = len(graph), len(graph.values)
    return GraphForecast(
        id=stored.id,
        hash=graph.hash,
        op_count=ops,
        value_count=values,
        fixed_bytes=graph.fixed_bytes,
        size_bytes=stored.size_bytes,
        store_all_peak_bytes=stored.store_all_peak_bytes,
        store_all_time_ns=graph.total_time_ns,
        least_budget_bytes=working_set_bound(graph),
        dense_columns=ops * (ops + 1) // 2 + ops * values // 2,
    )
