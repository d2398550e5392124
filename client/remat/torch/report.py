"""`report`: what a planned model saves and recomputes, what was promised, and what was seen."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from torch import nn

from remat.torch.attachment import eager_plans, inductor_plans, pieces_plans, planned_graphs
from remat.torch.both_ways import restored, run_once, run_unmeasured
from remat.torch.eager.plan import EagerPlan
from remat.torch.inductor.plan import InductorPlan
from remat.torch.pieces.plan import PiecesPlan
from remat.torch.printed import Printed
from remat.torch.record import PlannedGraph
from remat.torch.step import Step
from remat_solver.budget import format_bytes
from remat_solver.errors import ApplyError
from remat_solver.graph import Graph
from remat_solver.module_budgets import held_for_backward

LISTED = 10
"""How many of the largest saved values and the costliest recomputed ops a report names."""


@dataclass(frozen=True, kw_only=True)
class SavedValue:
    """A value that the forward makes and the backward reads without making it again."""

    name: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class RecomputedOp:
    """An op that runs `recomputes` times more than once, and the time that those take together."""

    name: str
    recomputes: int
    time_ns: int


@dataclass(frozen=True, kw_only=True)
class GraphReport:
    """One planned graph. Peaks include everything; overheads, bound and gap are shares of the store-all time.

    `saved` and `recomputed` name the largest and the costliest; the counts and sums are over all of them.
    `runs_requested` is what the schedule asks for, `runs_built` what the running code holds. `measured_peak_bytes`
    is None unless the report was given a batch.
    """

    name: str
    device: str
    ops: int
    budget_bytes: int
    fixed_bytes: int
    store_all_peak_bytes: int
    predicted_peak_bytes: int
    measured_peak_bytes: int | None
    predicted_overhead: float
    bound_overhead: float
    gap: float
    status: str
    costs_are_estimates: bool
    loss_is_outside: bool
    own_regions: int
    saved: tuple[SavedValue, ...]
    saved_count: int
    saved_bytes: int
    recomputed: tuple[RecomputedOp, ...]
    recompute_count: int
    recompute_ns: int
    runs_requested: int
    runs_built: int
    strategy: str
    engine: str
    trace_s: float
    measure_s: float
    solve_s: float
    build_s: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """A table of facts, then what is kept and what is made again."""
        facts = Table(box=None, show_header=False, pad_edge=False, title=f"{self.name} on {self.device}")
        facts.title_justify = "left"
        for label, text in self._facts():
            facts.add_row(label, text)
        yield Group(facts, self._saved_table(), self._recomputed_table())

    def _facts(self) -> list[tuple[str, str]]:
        measured = "not measured (give report a batch)"
        if self.measured_peak_bytes is not None:
            error = (self.predicted_peak_bytes - self.measured_peak_bytes) / self.measured_peak_bytes
            measured = f"{format_bytes(self.measured_peak_bytes)} (prediction {error:+.2%})"
        facts = [
            ("budget", f"{format_bytes(self.budget_bytes)}, {format_bytes(self.fixed_bytes)} of it fixed"),
            ("peak without recomputation", format_bytes(self.store_all_peak_bytes)),
            ("predicted peak", format_bytes(self.predicted_peak_bytes)),
            ("measured peak", measured),
            ("compute overhead", f"{self.predicted_overhead:.2%} predicted, {self.bound_overhead:.2%} at least"),
            ("proof", f"{self.status}, gap {self.gap:.3%} ({self.strategy}, {self.engine})"),
            ("op runs", f"{self.runs_requested} requested, {self.runs_built} built, of {self.ops} ops"),
            ("took", f"trace {self.trace_s:.1f} s, measure {self.measure_s:.1f} s, solve {self.solve_s:.1f} s"),
        ]
        if self.costs_are_estimates:
            facts.append(("note", "some costs are estimates: the log names the ops that could not be measured"))
        if self.own_regions:
            facts.append(("note", f"{self.own_regions} checkpoint regions of the model's own gave way to the plan"))
        if self.loss_is_outside:
            facts.append(("note", "the loss is computed outside the model, so its memory is not planned: loss_fn="))
        return facts

    def _saved_table(self) -> Table:
        table = Table("saved for the backward", "size", box=None, pad_edge=False, title_justify="left")
        table.title = f"saved: {self.saved_count} values, {format_bytes(self.saved_bytes)}"
        for value in self.saved:
            table.add_row(value.name, format_bytes(value.size_bytes))
        return table

    def _recomputed_table(self) -> Table:
        table = Table("recomputed", "times", "time", box=None, pad_edge=False, title_justify="left")
        table.title = f"recomputed: {self.recompute_count} op runs, {self.recompute_ns / 1e6:.1f} ms"
        for op in self.recomputed:
            table.add_row(op.name, str(op.recomputes), f"{op.time_ns / 1e6:.2f} ms")
        return table


@dataclass(frozen=True, kw_only=True)
class Report(Printed):
    """A report for each graph (each input shape) that was planned for a model."""

    graphs: tuple[GraphReport, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """All graphs, one below the other."""
        yield from self.graphs


def report(model: nn.Module, *args: Any, **kwargs: Any) -> Report | EagerPlan | PiecesPlan | InductorPlan:
    """What the plan on `model` does. With a batch, one step is run and its peak measured; nothing else changes.

    In eager, pieces and inductor mode that is the plan itself, of the last input shape: it carries what its trial steps
    measured.
    Raises `ApplyError` if no plan runs on the model yet.
    """
    measured: int | None = None
    if args or kwargs:
        step = Step(model, args, kwargs)
        with restored(step):
            run_unmeasured(step, model, None)  # plans and builds, if this is the model's first call
            measured = run_once(step, model, None).peak_bytes_above_start
    if plans := eager_plans(model):
        return plans[-1]
    if pieces := pieces_plans(model):
        return pieces[-1]
    if compiled := inductor_plans(model):
        return compiled[-1]
    records = planned_graphs(model)
    if not records:
        raise ApplyError(
            "no plan runs on this model yet.",
            hint="Plans are made at the first call in training mode: call the model once, or give report a batch.",
        )
    last = len(records) - 1
    return Report(
        graphs=tuple(_report_graph(record, measured if i == last else None) for i, record in enumerate(records))
    )


def _report_graph(record: PlannedGraph, peak_bytes_above_start: int | None) -> GraphReport:
    graph, plan = record.graph, record.plan
    saved = saved_values(graph, plan.schedule)
    recomputed = [
        RecomputedOp(name=graph.ops[op].name, recomputes=runs - 1, time_ns=(runs - 1) * graph.ops[op].time_ns)
        for op, runs in plan.run_counts.items()
        if runs > 1
    ]
    return GraphReport(
        name=graph.name or "model",
        device=graph.device,
        ops=len(graph),
        budget_bytes=plan.budget_bytes,
        fixed_bytes=graph.fixed_bytes,
        store_all_peak_bytes=plan.store_all_peak_bytes,
        predicted_peak_bytes=record.predicted_peak_bytes,
        measured_peak_bytes=None if peak_bytes_above_start is None else graph.fixed_bytes + peak_bytes_above_start,
        predicted_overhead=plan.overhead,
        bound_overhead=plan.bound_overhead,
        gap=plan.gap,
        status=plan.status,
        costs_are_estimates=graph.estimated,
        loss_is_outside=record.loss_is_outside,
        own_regions=record.own_regions,
        saved=tuple(sorted(saved, key=lambda value: (-value.size_bytes, value.name))[:LISTED]),
        saved_count=len(saved),
        saved_bytes=sum(value.size_bytes for value in saved),
        recomputed=tuple(sorted(recomputed, key=lambda op: (-op.time_ns, op.name))[:LISTED]),
        recompute_count=plan.recompute_count,
        recompute_ns=sum(op.time_ns for op in recomputed),
        runs_requested=record.runs_planned,
        runs_built=record.runs_built,
        strategy=plan.provenance.strategy,
        engine=plan.provenance.engine,
        trace_s=record.trace_s,
        measure_s=record.measure_s,
        solve_s=record.solve_s,
        build_s=record.build_s,
    )


def saved_values(graph: Graph, schedule: tuple[int, ...]) -> list[SavedValue]:
    """The values that the forward makes and the backward reads without making them again, in order of number."""
    held = held_for_backward(graph, schedule)
    return [SavedValue(name=_value_name(graph, value), size_bytes=graph.sizes[value]) for value in held]


def _value_name(graph: Graph, value: int) -> str:
    return graph.values[value].name or graph.ops[graph.producer[value]].name
