"""Several input shapes: what a plan made for one is worth for another.

Every shape is captured and measured for itself, because a plan is a promise in bytes. Solving is what takes long, and
batches that differ in a few tokens have graphs that differ in sizes only. Under the policy "bucket" the schedule
of a known plan is tried on such a graph: if its peak is within the budget, it is taken, with this graph's own figures.
"""

from __future__ import annotations

from typing import Literal, get_args

from remat.torch.planning import Planner
from remat_solver.errors import InvalidRequest
from remat_solver.graph import Graph
from remat_solver.options import SolveOptions
from remat_solver.plan import Plan, Provenance, referee_plan
from remat_solver.simulate import simulate, store_all_schedule

Shapes = Literal["exact", "bucket"]

BUCKET = 0.75
"""A bucket reaches from the shape that was solved down to graphs of this share of its memory (fixed bytes aside)."""

_Topology = tuple[tuple[tuple[int, ...], int, bool, str], ...]


def check_shapes(shapes: str, max_shapes: int) -> None:
    """Raises `InvalidRequest` for what is no policy or no cap."""
    if shapes not in get_args(Shapes):
        known = ", ".join(get_args(Shapes))
        raise InvalidRequest(f"shapes {shapes!r} is unknown.", hint=f"Choose one of {known}.", field="shapes")
    if max_shapes < 1:
        raise InvalidRequest("max_shapes must be at least 1.", hint="It is 64 by default.", field="max_shapes")


def bucketing(planner: Planner, options: SolveOptions) -> Planner:
    """`planner`, asked only for graphs that no known plan of their bucket fits; `InvalidRequest` without a budget."""
    if options.max_overhead is not None:
        raise InvalidRequest(
            'shapes="bucket" needs a budget, which says when a plan still fits.',
            hint='Give budget= instead of max_overhead=, or shapes="exact".',
            field="shapes",
        )
    solved: list[tuple[_Topology, int, Plan]] = []

    def plan(graph: Graph) -> Plan:
        topology = _topology(graph)
        peak_bytes = simulate(graph, store_all_schedule(graph)).peak_bytes
        budget_bytes = options.budget_in_bytes(peak_bytes)
        assert budget_bytes is not None
        size_bytes = peak_bytes - graph.fixed_bytes
        for known_topology, known_bytes, known in solved:
            in_bucket = known_topology == topology and BUCKET * known_bytes <= size_bytes <= known_bytes
            if in_bucket and budget_bytes < peak_bytes:
                reused = _reused(graph, known, budget_bytes)
                if reused is not None:
                    return reused
        made = planner(graph)
        solved.append((topology, size_bytes, made))
        return made

    return plan


def _topology(graph: Graph) -> _Topology:
    """Everything about a graph but sizes and costs."""
    return tuple((op.reads, len(op.writes), op.recomputable, op.phase) for op in graph.ops)


def _reused(graph: Graph, known: Plan, budget_bytes: int) -> Plan | None:
    """The known plan's schedule as a plan for `graph`; None if its peak is above the budget."""
    if simulate(graph, known.schedule).peak_bytes > budget_bytes:
        return None
    return referee_plan(
        graph,
        known.schedule,
        budget_bytes=budget_bytes,
        bound_ns=0,
        proof_scope="order",
        provenance=Provenance(strategy="bucket"),
    )
