"""What to ask the planner, and whom: the embedded solver, or a service at an endpoint."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from remat.torch.measure import measure
from remat.torch.planning import Measure, Planner
from remat_solver.budget import parse_budget
from remat_solver.errors import InvalidRequest
from remat_solver.graph import Graph
from remat_solver.module_budgets import solve_within
from remat_solver.options import Progress, SolveOptions
from remat_solver.plan import Plan
from remat_solver.solve import solve

OnProgress = Callable[[Progress], None]


def solve_options(budget: str | int | None, max_overhead: str | float | None, **fields: Any) -> SolveOptions:
    """The question in the planner's terms; raises `InvalidRequest` when it makes no sense.

    Pins (`keep`, `recompute`) may be one pattern or several.
    """
    for pins in ("keep", "recompute"):
        if pins in fields:
            fields[pins] = (fields[pins],) if isinstance(fields[pins], str) else tuple(fields[pins])
    if (budget is None) == (max_overhead is None):
        raise InvalidRequest(
            "give either a budget or max_overhead (or a plan made before).",
            hint='For example budget="8GiB", budget="80%" or max_overhead="10%".',
            field="budget",
        )
    if budget is None:
        assert max_overhead is not None
        return SolveOptions(max_overhead=_share(max_overhead), **fields)
    parsed = parse_budget(budget)
    asked = SolveOptions(budget_bytes=parsed.budget_bytes, budget_fraction=parsed.budget_fraction, **fields)
    asked.refuse_reorder("the exact runtime")
    return asked


def asking_planner(
    options: SolveOptions,
    *,
    endpoint: str | None,
    on_progress: OnProgress | None,
    module_budgets: Mapping[str, int] | None = None,
) -> Planner:
    """A planner that asks `options` of every graph: in this process, or of the service at `endpoint`."""

    def ask(graph: Graph, options: SolveOptions) -> Plan:
        if endpoint is None:
            return solve(graph, options, on_progress=on_progress)
        from remat.client import Client  # an HTTP client is loaded only by those who use one

        with Client(endpoint) as client:
            return client.solve(graph, options, on_progress=on_progress)

    if module_budgets:
        return lambda graph: solve_within(graph, options, module_budgets, ask)
    return lambda graph: ask(graph, options)


def measuring(endpoint: str | None) -> Measure:
    """Measures with the costs on this machine's disk, and those at the endpoint if there is one."""
    if endpoint is None:
        return measure
    from remat.torch.shared_costs import SharedCosts

    return functools.partial(measure, cache=SharedCosts(endpoint))


def _share(text: str | float) -> float:
    """Reads "10%" or 0.1."""
    try:
        if isinstance(text, str) and text.strip().endswith("%"):
            return float(text.strip()[:-1]) / 100
        return float(text)
    except ValueError:
        raise InvalidRequest(
            f"can't read max_overhead {text!r}.", hint='Write "10%" or 0.1.', field="max_overhead"
        ) from None
