"""A plan: a schedule, what the referee says it costs, and how far from the optimum it can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from remat_solver.errors import InvalidPlan, PlanMismatch
from remat_solver.graph import Graph
from remat_solver.simulate import Replay, simulate, store_all_schedule

Status = Literal["optimal", "feasible"]
ProofScope = Literal["order", "checkmate"]
Objective = Literal["time", "memory"]

OPTIMAL_GAP = 1e-4
"""A plan at most this far (as a share of the store-all time) above its bound is called optimal."""
PlanSchema = Literal["remat.plan/1"]
PLAN_SCHEMA: PlanSchema = "remat.plan/1"


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """How a plan came to be: enough to make it again.

    `reordered_peak_bytes`: where first runs come in another order than the graph's, the peak of that order without
    recomputation; the plan's `store_all_peak_bytes` is that of the graph's own. 0: they come in the graph's order.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    strategy: str
    engine: str = ""
    engine_version: str = ""
    remat_version: str = ""
    solve_s: float = 0.0
    rounds: int = 0
    slots: int = 0
    rows: int = 0
    columns: int = 0
    requested_gap: float = 0.0
    time_limit_s: float = 0.0
    threads: int = 1
    stopped_by: str = ""
    reordered_peak_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A schedule for the graph with hash `graph_hash`, refereed, with its proof.

    `schedule` lists op indices in the order in which they run; frees follow from last use.
    `peak_bytes` (everything included, `fixed_bytes` too) and `time_ns` are the simulator's.

    `bound_ns` is a proven lower bound on the time of every plan within the budget. The proof holds
    within `proof_scope`: "order" for every schedule whose first computations keep the graph's order,
    "checkmate" for those that compute each op at most once per stage, in index order.
    With `objective="memory"` the plan has the least peak within a time allowance, and `bound_bytes`
    is the proven lower bound on that peak. `structure_hash` is the graph's: on a graph measured
    elsewhere, with the same structure, the schedule still runs, but its figures are other ones.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    graph_hash: str
    schedule: tuple[int, ...]
    budget_bytes: int
    peak_bytes: int
    time_ns: int
    store_all_peak_bytes: int
    store_all_time_ns: int
    bound_ns: int
    status: Status
    proof_scope: ProofScope = "order"
    objective: Objective = "time"
    bound_bytes: int = 0
    provenance: Provenance = field(default_factory=lambda: Provenance(strategy="unknown"))
    structure_hash: str = ""
    schema: PlanSchema = PLAN_SCHEMA

    def __post_init__(self) -> None:
        if self.schema != PLAN_SCHEMA:
            raise InvalidPlan(f"the plan's schema is {self.schema!r}, and this version reads {PLAN_SCHEMA!r}.")
        if not self.schedule:
            raise InvalidPlan("the plan's schedule is empty.")
        if self.peak_bytes > self.budget_bytes:
            raise InvalidPlan(f"the plan's peak, {self.peak_bytes} bytes, exceeds its budget, {self.budget_bytes}.")
        if self.bound_ns > self.time_ns:
            raise InvalidPlan(f"the plan's bound, {self.bound_ns} ns, exceeds its time, {self.time_ns} ns.")

    @property
    def overhead(self) -> float:
        """Compute overhead: (time - store-all time) / store-all time."""
        return share(self.time_ns - self.store_all_time_ns, self.store_all_time_ns)

    @property
    def bound_overhead(self) -> float:
        """The lower bound on the compute overhead, as a share of the store-all time."""
        return share(self.bound_ns - self.store_all_time_ns, self.store_all_time_ns)

    @property
    def gap(self) -> float:
        """(time - bound) / store-all time."""
        return share(self.time_ns - self.bound_ns, self.store_all_time_ns)

    @property
    def is_reordered(self) -> bool:
        """Whether first runs come in another order than the graph's."""
        order = first_runs(self.schedule)
        return order != tuple(range(len(order)))

    @cached_property
    def run_counts(self) -> Counter[int]:
        """How many times each op runs, by op index."""
        return Counter(self.schedule)

    @property
    def recompute_count(self) -> int:
        """How many of the schedule's runs are recomputations."""
        return len(self.schedule) - len(self.run_counts)


def share(amount: float, whole: float) -> float:
    """amount / whole, and 0 where both are 0 (a graph whose ops take no time)."""
    return amount / whole if whole else (0.0 if not amount else float("inf"))


def first_runs(schedule: Sequence[int]) -> tuple[int, ...]:
    """The ops in the order in which they run for the first time."""
    return tuple(dict.fromkeys(schedule))


def referee_plan(
    graph: Graph,
    schedule: Sequence[int],
    *,
    budget_bytes: int,
    bound_ns: int,
    proof_scope: ProofScope,
    provenance: Provenance,
    objective: Objective = "time",
    bound_bytes: int = 0,
) -> Plan:
    """The only way from a schedule to a plan: the simulator's figures, and its veto (`InvalidPlan`).

    First runs may leave the graph's order only where `provenance` says so (`reordered_peak_bytes`).
    """
    replay = _replay(graph, schedule, provenance)
    store_all = simulate(graph, store_all_schedule(graph))
    bound_ns = max(min(bound_ns, replay.time_ns), graph.total_time_ns)
    if objective == "time":
        gap = share(replay.time_ns - bound_ns, graph.total_time_ns)
    else:
        gap = share(replay.peak_bytes - bound_bytes, store_all.peak_bytes)
    return Plan(
        graph_hash=graph.hash,
        schedule=tuple(schedule),
        budget_bytes=budget_bytes,
        peak_bytes=replay.peak_bytes,
        time_ns=replay.time_ns,
        store_all_peak_bytes=store_all.peak_bytes,
        store_all_time_ns=store_all.time_ns,
        bound_ns=bound_ns,
        status="optimal" if gap <= OPTIMAL_GAP else "feasible",
        proof_scope=proof_scope,
        objective=objective,
        bound_bytes=bound_bytes,
        provenance=provenance,
        structure_hash=graph.structure_hash,
    )


def confirm_plan(graph: Graph, plan: Plan) -> Replay:
    """Replays a plan that came from elsewhere.

    Raises `PlanMismatch` if it was made for another graph and `InvalidPlan` if its schedule can't
    run, its peak exceeds its budget, or its figures are not what the simulator finds. A plan that says that
    it changes the order of first runs passes: whoever runs it asks `is_reordered`.
    """
    if plan.graph_hash != graph.hash:
        raise PlanMismatch(
            f"the plan was made for graph {plan.graph_hash[:12]}, and this is graph {graph.hash[:12]}.",
            hint="Make a plan for this graph: costs, shapes or the model have changed.",
            plan_graph_hash=plan.graph_hash,
            graph_hash=graph.hash,
        )
    replay = _replay(graph, plan.schedule, plan.provenance)
    for field_name, found in (("peak_bytes", replay.peak_bytes), ("time_ns", replay.time_ns)):
        claimed = getattr(plan, field_name)
        if claimed != found:
            raise InvalidPlan(f"the plan claims {field_name} = {claimed}; the simulator finds {found}.")
    return replay


def _replay(graph: Graph, schedule: Sequence[int], provenance: Provenance) -> Replay:
    """The schedule's replay, in another order if the provenance says so, and gives that order's own peak."""
    claimed = provenance.reordered_peak_bytes
    if not claimed:
        return simulate(graph, schedule)
    replay = simulate(graph, schedule, any_order=True)
    found = simulate(graph, first_runs(schedule), any_order=True).peak_bytes
    if claimed != found:
        raise InvalidPlan(f"the plan claims reordered_peak_bytes = {claimed}; the simulator finds {found}.")
    return replay
