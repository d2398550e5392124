"""The solver service from Python: ask it for plans as `remat.solve` asks this machine."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal
from urllib.parse import quote

import httpx
from backports import zstd

from remat.connection import Connection
from remat.plan_cache import PlanCache
from remat.remote_costs import read_costs, write_costs
from remat.remote_solve import RemoteSolve, read_remote_solve
from remat_solver.errors import InvalidPlan, InvalidRequest, NotFound, ServiceError
from remat_solver.files import dump_json, parse_json
from remat_solver.graph import Graph
from remat_solver.options import Progress, SolveOptions, plan_key
from remat_solver.plan import Plan, confirm_plan
from remat_solver.preparation import resolve_options
from remat_solver.simulate import simulate, store_all_schedule

QUIET_WAIT_S = 25.0
"""How long the service may hold a request when nobody watches the progress: below the usual minute of proxies."""
WATCHED_WAIT_S = 1.0
COMPRESS_ABOVE_BYTES = 4096
COSTS_AT_ONCE = 5000
FRONTIER_OPTIONS = ("gap", "time_limit_s", "threads", "engine", "keep", "recompute")
"""The options of a solve that a frontier takes too."""


@dataclass(frozen=True, kw_only=True)
class _Question:
    """What is asked, with its key and the budget in bytes (None: the objective is memory)."""

    graph: Graph
    options: SolveOptions
    key: str
    budget_bytes: int | None


class Client:
    """A connection to a solver service. Use it as a context manager, or `close` it.

    `endpoint` as in "http://solver:8417" (default: `REMAT_ENDPOINT`); `api_key` (default:
    `REMAT_API_KEY`). `timeout_s`: how long one answer may take. `retry_for_s`: how long a lost service
    is tried again before `ServiceUnavailable`; a restart of the service goes unnoticed within it.
    `plan_cache`: where plans are kept on this machine; None keeps none. `priority` (-100 to 100): higher goes first
    in the service's queue. `queue_timeout_s`: what no worker has begun by then fails. `transport` is httpx's.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        retry_for_s: float = 120.0,
        plan_cache: PlanCache | Literal["default"] | None = "default",
        priority: int = 0,
        queue_timeout_s: float | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        endpoint = endpoint or os.environ.get("REMAT_ENDPOINT")
        if not endpoint:
            raise InvalidRequest(
                "no solver service was named.",
                hint="Give its address, as in Client('http://solver:8417'), or set REMAT_ENDPOINT.",
                field="endpoint",
            )
        self._connection = Connection(
            endpoint,
            api_key=api_key or os.environ.get("REMAT_API_KEY"),
            timeout_s=timeout_s,
            retry_for_s=retry_for_s,
            transport=transport,
        )
        self._cache = PlanCache() if plan_cache == "default" else plan_cache
        self._terms: dict[str, Any] = {"priority": priority}
        if queue_timeout_s is not None:
            self._terms["queue_timeout_s"] = queue_timeout_s

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._connection.close()

    def solve(
        self,
        graph: Graph,
        options: SolveOptions | None = None,
        *,
        on_progress: Callable[[Progress], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
        **option_fields: Any,
    ) -> Plan:
        """The plan that `options` ask for: from this machine's cache, the service's, or a new solve there.

        Raises what `remat.solve` raises, and `ServiceError` where the service is at fault. A lost
        connection is taken up again; nothing is solved twice. The plan was replayed on `graph` here.
        """
        question = _pose(graph, resolve_options(options, option_fields))
        plan = self._cached(question) or self._known(question)
        if plan is None:
            plan = self._solved(question, on_progress, should_stop)
        return plan

    def frontier(
        self,
        graph: Graph,
        points: int = 12,
        options: SolveOptions | None = None,
        *,
        on_point: Callable[[Plan], None] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
        **option_fields: Any,
    ) -> tuple[Plan, ...]:
        """Plans for `points` budgets, as `remat.frontier` gives them: ascending in budget, each with its bound.

        `time_limit_s` is for all of them. Every plan was replayed on `graph` here. Raises what `solve` does.
        """
        asked = resolve_options(options, {"budget_fraction": 1.0, **option_fields})
        asked.refuse_reorder("a frontier")
        fields = {name: getattr(asked, name) for name in FRONTIER_OPTIONS}
        found: dict[str, Plan] = {}

        def fetch_points(frontier: RemoteSolve) -> None:
            for url in reversed(frontier.plan_urls):  # the service goes from large budgets to small ones
                if url not in found:
                    found[url] = _read_plan(self._connection.request("GET", url))
                    confirm_plan(graph, found[url])
                    if on_point is not None:
                        on_point(found[url])

        def ask() -> RemoteSolve:
            return self._ask("/v1/frontiers", graph, {"points": points, **fields})

        frontier = self._follow(ask, on_progress, should_stop, on_change=fetch_points)
        return tuple(found[url] for url in frontier.plan_urls)

    def submit(self, graph: Graph, options: SolveOptions | None = None, **option_fields: Any) -> RemoteSolve:
        """Asks and does not wait: look with `get`, fetch with `plan_of`."""
        return self._submit(_pose(graph, resolve_options(options, option_fields)))

    def get(self, solve_id: str, *, wait_s: float = 0.0) -> RemoteSolve:
        """How a solve stands, once it is over or after `wait_s` seconds. Raises `NotFound`."""
        return self._look(f"/v1/solves/{solve_id}", wait_s)

    def cancel(self, solve_id: str, *, keep: Literal["best", "discard"] = "best") -> RemoteSolve:
        """Ends a solve with the best plan so far, or with none. Those who asked the same are not disturbed."""
        return self._cancel(f"/v1/solves/{solve_id}", keep)

    def plan_of(self, solve_id: str, graph: Graph) -> Plan:
        """The plan of a finished solve, replayed on `graph`; raises what the solve ended with."""
        plan = _read_plan(self._connection.request("GET", f"/v1/solves/{solve_id}/plan"))
        confirm_plan(graph, plan)
        return plan

    def costs(self, device: str, torch: str) -> dict[str, tuple[int, int]]:
        """What ops take on a device under a PyTorch: (time_ns, workspace_bytes) by sha256 of the op's signature."""
        return read_costs(self._connection.request("GET", _costs_path(device, torch)))

    def share_costs(self, device: str, torch: str, costs: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        """Adds costs to the shared table; what now holds for them, for whoever came first counts."""
        kept: dict[str, tuple[int, int]] = {}
        entries = list(costs.items())
        for start in range(0, len(entries), COSTS_AT_ONCE):
            body = write_costs(dict(entries[start : start + COSTS_AT_ONCE]))
            kept |= read_costs(self._connection.request("PUT", _costs_path(device, torch), content=body))
        return kept

    def _cached(self, question: _Question) -> Plan | None:
        plan = self._cache.get(question.key) if self._cache else None
        if plan is None or self._cache is None:
            return None
        try:
            return _confirmed(question, plan)
        except InvalidPlan:
            self._cache.drop(question.key)
            return None

    def _known(self, question: _Question) -> Plan | None:
        try:
            response = self._connection.request("GET", f"/v1/plans/{question.key}")
        except NotFound:
            return None
        return self._keep(question, _read_plan(response))

    def _solved(
        self,
        question: _Question,
        on_progress: Callable[[Progress], None] | None,
        should_stop: Callable[[], bool] | None,
    ) -> Plan:
        solve = self._follow(lambda: self._submit(question), on_progress, should_stop)
        return self._keep(question, _read_plan(self._connection.request("GET", f"{solve.url}/plan")))

    def _follow(
        self,
        ask: Callable[[], RemoteSolve],
        on_progress: Callable[[Progress], None] | None,
        should_stop: Callable[[], bool] | None,
        on_change: Callable[[RemoteSolve], None] | None = None,
    ) -> RemoteSolve:
        """Asks and stays with the question to its end; raises what it ended with."""
        is_watched = any(watcher is not None for watcher in (on_progress, should_stop, on_change))
        longest_s = WATCHED_WAIT_S if is_watched else QUIET_WAIT_S
        solve, stop_asked, shown = ask(), False, None
        try:
            while not solve.is_over:
                if should_stop is not None and not stop_asked and should_stop():
                    solve, stop_asked = self._cancel(solve.url, "best"), True
                    continue
                solve = self._look_or_ask(solve, random.uniform(0.7, 1) * longest_s, ask)
                if on_progress is not None and solve.progress is not None and solve.progress != shown:
                    shown = solve.progress
                    on_progress(shown)
                if on_change is not None and not solve.is_over:
                    on_change(solve)
        except KeyboardInterrupt:
            self._abandon(solve.url)
            raise
        if solve.error is not None:
            raise solve.error
        if on_change is not None:
            on_change(solve)
        return solve

    def _look_or_ask(self, solve: RemoteSolve, wait_s: float, ask: Callable[[], RemoteSolve]) -> RemoteSolve:
        try:
            return self._look(solve.url, wait_s)
        except NotFound:  # the service came back without its memory
            return ask()

    def _look(self, url: str, wait_s: float) -> RemoteSolve:
        solve_id = url.rpartition("/")[2]
        hint = f"The solve goes on there: ask again with the same graph and options to take it up (id {solve_id})."
        return read_remote_solve(self._connection.request("GET", url, wait_s=wait_s, hint=hint))

    def _cancel(self, url: str, keep: str) -> RemoteSolve:
        return read_remote_solve(self._connection.request("POST", f"{url}/cancel?keep={keep}"))

    def _abandon(self, url: str) -> None:
        try:
            self._cancel(url, "discard")
        except ServiceError:
            return  # the user wants to leave, and the service finishes the solve for whoever asks next

    def _submit(self, question: _Question) -> RemoteSolve:
        fields = {name: value for name, value in dataclasses.asdict(question.options).items() if value is not None}
        return self._ask("/v1/solves", question.graph, fields)

    def _ask(self, path: str, graph: Graph, fields: dict[str, Any]) -> RemoteSolve:
        """Asks about a graph, which is uploaded if the service doesn't know it.

        The key makes a question that is sent again, because its answer was lost, the same solve: cancelling that
        one cancels all that was asked.
        """
        document = dump_json(graph)
        graph_id = hashlib.sha256(document).hexdigest()
        body = json.dumps({"graph_id": graph_id, **self._terms, **fields}).encode()
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        try:
            return read_remote_solve(self._connection.request("POST", path, content=body, headers=headers))
        except NotFound:
            self._upload(graph_id, document)
        return read_remote_solve(self._connection.request("POST", path, content=body, headers=headers))

    def _upload(self, graph_id: str, document: bytes) -> None:
        headers = {}
        if len(document) > COMPRESS_ABOVE_BYTES:
            document, headers = zstd.compress(document), {"Content-Encoding": "zstd"}
        self._connection.request("PUT", f"/v1/graphs/{graph_id}", content=document, headers=headers)

    def _keep(self, question: _Question, plan: Plan) -> Plan:
        _confirmed(question, plan)
        if self._cache is not None and plan.provenance.stopped_by != "caller":
            self._cache.put(question.key, plan)
        return plan


def _pose(graph: Graph, options: SolveOptions) -> _Question:
    peak_bytes = simulate(graph, store_all_schedule(graph)).peak_bytes
    return _Question(
        graph=graph,
        options=options,
        key=plan_key(graph, options, store_all_peak_bytes=peak_bytes),
        budget_bytes=options.budget_in_bytes(peak_bytes),
    )


def _confirmed(question: _Question, plan: Plan) -> Plan:
    """The plan, replayed on the asker's own graph and held against what was asked; raises `InvalidPlan`."""
    confirm_plan(question.graph, plan)
    if question.budget_bytes is not None and plan.budget_bytes != question.budget_bytes:
        raise InvalidPlan(
            f"the plan is for a budget of {plan.budget_bytes} bytes; {question.budget_bytes} were asked for.",
            hint="Another version of Remat may be at the other end: compare `remat --version` with its /version.",
        )
    return plan


def _costs_path(device: str, torch: str) -> str:
    parts = (quote(part.replace("/", "-")[:200], safe="") for part in (device, torch))
    return "/v1/costs/" + "/".join(parts)


def _read_plan(response: httpx.Response) -> Plan:
    return parse_json(Plan, response.content, path=str(response.url))
