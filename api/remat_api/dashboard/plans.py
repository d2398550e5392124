"""A plan: memory before and after, the schedule, what is computed again, and the proof."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from fastapi import APIRouter, Request, Response

from remat_api.dashboard.page_route import PageRoute
from remat_api.dashboard.pages import embedded, render
from remat_api.dashboard.visitor import ReadingVisitor, Visitor
from remat_api.routes.context import ServiceOf
from remat_api.routes.frontiers import FrontierId, PlanId
from remat_api.routes.solves import SolveId
from remat_api.service import Service
from remat_api.store.solves import Solve
from remat_api.stored_graph import StoredGraph
from remat_solver.charts.recomputed import recomputed_ops, schedule_matrix
from remat_solver.charts.timeline import plan_timeline, store_all_timeline
from remat_solver.files import parse_json
from remat_solver.plan import Plan

router = APIRouter(prefix="/dashboard", route_class=PageRoute, include_in_schema=False)
TABLE_LENGTH = 500
"""Rows of a table; the plan's own document has the rest."""


@router.get("/solves/{solve_id}/plan", response_class=Response)
async def get_solve_plan(solve_id: SolveId, request: Request, service: ServiceOf, visitor: ReadingVisitor) -> Response:
    """The plan of a solve."""
    solve = await service.solves.get(solve_id, owner=visitor.caller.sees)
    _, document = await service.plan_of(solve)
    return await _page(request, visitor, service, solve, document, f"solves/{solve.id}/plan")


@router.get("/frontiers/{frontier_id}/plans/{plan_id}", response_class=Response)
async def get_frontier_plan(
    frontier_id: FrontierId, plan_id: PlanId, request: Request, service: ServiceOf, visitor: ReadingVisitor
) -> Response:
    """One of a frontier's plans."""
    frontier = await service.solves.get(frontier_id, owner=visitor.caller.sees, kind="frontier")
    document = await service.frontier_plan(frontier, plan_id)
    return await _page(request, visitor, service, frontier, document, f"frontiers/{frontier.id}/plans/{plan_id}")


async def _page(
    request: Request, visitor: Visitor, service: Service, solve: Solve, document: bytes, source: str
) -> Response:
    stored = await service.graphs.get(solve.graph_id)
    shown = await asyncio.to_thread(_show, stored, document)
    return render("plan", request, visitor, solve=solve, stored=stored, source=source, **shown)


def _show(stored: StoredGraph, document: bytes) -> dict[str, Any]:
    """What the page draws and lists; seconds for the largest graphs, so not in the event loop."""
    graph, plan = stored.graph, parse_json(Plan, document)
    before, after = store_all_timeline(graph), plan_timeline(graph, plan, "plan")
    matrix = schedule_matrix(plan)
    charts = {
        "timelines": [dataclasses.asdict(before), dataclasses.asdict(after)],
        "matrix": dataclasses.asdict(matrix),
    }
    recomputed = recomputed_ops(graph, plan)
    again = list(zip(matrix.again_steps, matrix.again_ops, strict=True))
    return {
        "plan": plan,
        "figures": embedded(charts),
        "phases": _phases(stored, plan),
        "recomputed": recomputed[:TABLE_LENGTH],
        "recomputed_count": len(recomputed),
        "extra_time_ns": sum(row.extra_time_ns for row in recomputed),
        "again": [(step, op, graph.ops[op].name) for step, op in again[:TABLE_LENGTH]],
        "again_count": len(again),
        "peaks": [("store-all", before), ("plan", after)],
    }


def _phases(stored: StoredGraph, plan: Plan) -> dict[str, int]:
    """How many recomputations fall to ops of each phase."""
    counts: dict[str, int] = {}
    for op, runs in plan.run_counts.items():
        if runs > 1:
            phase = stored.graph.ops[op].phase
            counts[phase] = counts.get(phase, 0) + runs - 1
    return counts
