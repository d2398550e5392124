"""What memory costs: in time (the frontier, with its page) and in money."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remat.page import PlannedModel, render_page
from remat_solver import solve as solver
from remat_solver.errors import InvalidRequest
from remat_solver.files import write_whole
from remat_solver.graph import Graph
from remat_solver.plan import Plan

if TYPE_CHECKING:
    from remat.torch import Step

NS_PER_HOUR = 3600 * 10**9


@dataclass(frozen=True, kw_only=True)
class PricedPlan:
    """A plan in money. Currencies are whatever the hourly price was given in.

    `cost` is that of `steps` steps (forward and backward) on a GPU at the given price. `break_even_per_hour` is the
    price at which an equally fast GPU with just `peak_bytes` of memory costs as much as the given one without any
    recomputation: a smaller GPU that costs less pays off.
    """

    peak_bytes: int
    time_ns: int
    overhead: float
    cost: float
    break_even_per_hour: float


def frontier(
    step: Graph | Step,
    points: int = 12,
    *,
    html: str | PathLike[str] | None = None,
    **solve_fields: Any,
) -> tuple[Plan, ...]:
    """Plans for `points` budgets, from the least known feasible one to the store-all peak, ascending.

    step: a measured graph, or a `Step`, which is captured and measured first.
    html: also writes a page that draws the frontier and the memory timeline of its two ends; it needs no network.
    solve_fields: what `remat_solver.solve.frontier` takes, such as `time_limit_s` (for the whole frontier), `on_point`.

    Raises `InvalidRequest`, and the errors of `solve` where not even one plan was found.
    """
    if isinstance(step, Graph):
        graph = step
    else:
        from remat.torch import capture, measure

        graph = measure(capture(step))
    plans = solver.frontier(graph, points, **solve_fields)
    if html is not None:
        write_whole(Path(html), frontier_page(graph, plans).encode())
    return plans


def frontier_page(graph: Graph, plans: Sequence[Plan], *, title: str = "") -> str:
    """The page of a frontier as HTML text: the curve, its table, and the memory timelines of its two ends."""
    title = title or graph.name or "frontier"
    model = PlannedModel(title=title, graph=graph, plans=(plans[0],), frontier=tuple(plans))
    return render_page(title, [model])


def price(plans: Sequence[Plan], *, gpu_hour: float, steps: int) -> list[PricedPlan]:
    """Each plan in money, in the order given. Raises `InvalidRequest` for a price that is none."""
    if not gpu_hour > 0 or steps < 1:
        raise InvalidRequest(
            f"{gpu_hour} an hour for {steps} steps makes no sense.", hint="Both are above 0.", field="gpu_hour"
        )
    return [
        PricedPlan(
            peak_bytes=plan.peak_bytes,
            time_ns=plan.time_ns,
            overhead=plan.overhead,
            cost=gpu_hour * steps * plan.time_ns / NS_PER_HOUR,
            break_even_per_hour=gpu_hour / (1 + plan.overhead),
        )
        for plan in plans
    ]
