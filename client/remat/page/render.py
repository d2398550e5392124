"""From plans to the page's HTML."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata, resources
from typing import Any

import jinja2

from remat_solver.budget import format_bytes
from remat_solver.charts import asset
from remat_solver.charts.recomputed import recomputed_ops
from remat_solver.charts.timeline import plan_timeline, store_all_timeline
from remat_solver.graph import Graph
from remat_solver.plan import Plan


@dataclass(frozen=True, kw_only=True)
class PlannedModel:
    """A graph with the plans to show for it. `frontier` may be empty. `facts` are extra (label, text) lines."""

    title: str
    graph: Graph
    plans: tuple[Plan, ...]
    frontier: tuple[Plan, ...] = ()
    facts: tuple[tuple[str, str], ...] = field(default=())


def render_page(
    title: str,
    models: Sequence[PlannedModel],
    *,
    lead: str = "",
    table_head: Sequence[str] = (),
    table_rows: Sequence[Sequence[str]] = (),
) -> str:
    """The whole page as HTML text. `table_head` and `table_rows` become the summary table on top."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("remat.page", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"bytes": format_bytes, "percent": _percent, "milliseconds": _milliseconds}
    return environment.get_template("page.html.jinja").render(
        title=title,
        lead=lead,
        table_head=table_head,
        table_rows=table_rows,
        sections=[_section(index, model) for index, model in enumerate(models)],
        made_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=metadata.version("remat"),
        style="\n".join([asset("uPlot.min.css"), _style()]),
        script="\n".join([asset("uPlot.iife.min.js"), asset("charts.js")]),
    )


def _section(index: int, model: PlannedModel) -> dict[str, Any]:
    timelines = [store_all_timeline(model.graph)]
    timelines += [plan_timeline(model.graph, plan, _label(plan)) for plan in model.plans]
    frontier = [
        {"peak_bytes": plan.peak_bytes, "overhead": plan.overhead, "bound_overhead": plan.bound_overhead}
        for plan in sorted(model.frontier, key=lambda plan: plan.peak_bytes)
    ]
    charts = {"timelines": [dataclasses.asdict(line) for line in timelines], "frontier": frontier}
    return {
        "anchor": f"model-{index}",
        "model": model,
        "plans": [(_label(plan), plan, recomputed_ops(model.graph, plan)[:12]) for plan in model.plans],
        "frontier": sorted(model.frontier, key=lambda plan: plan.peak_bytes),
        "charts": json.dumps(charts, separators=(",", ":")).replace("<", "\\u003c"),
    }


def _label(plan: Plan) -> str:
    return f"{plan.budget_bytes / plan.store_all_peak_bytes:.0%} budget"


def _percent(fraction: float) -> str:
    return f"{fraction * 100:.2f}%"


def _milliseconds(time_ns: int) -> str:
    return f"{time_ns / 1e6:,.2f} ms"


def _style() -> str:
    return resources.files("remat.page").joinpath("page.css").read_text(encoding="utf-8")
