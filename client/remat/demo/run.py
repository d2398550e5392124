"""The demo itself: capture, measure, upload, solve, apply, train, compare; a row for each model and budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from remat.client import Client
from remat.demo.row import MAX_GAP, Row
from remat.demo.side_by_side import measured_overhead, planned_copy, run_planned, trains_identically
from remat.page import PlannedModel
from remat.torch import Step, capture
from remat.torch.heap import keep_freed_memory
from remat.torch.measure import measure
from remat.torch.peak import measure_peak
from remat_solver.bounds import working_set_bound
from remat_solver.errors import RematError
from remat_solver.graph import Graph
from remat_solver.plan import Plan

BUDGET_FRACTIONS = (0.8, 0.6, 0.4)
"""Shares of the measured store-all peak."""
BUDGET_FLOOR = 1.1
"""No budget is below this many times the working-set bound: below it the best plans are mostly recomputation."""

ASKED_GAP = 0.8 * MAX_GAP
TIME_LIMIT_S = 60.0

Announce = Callable[[str], None]


@dataclass(kw_only=True)
class ModelResult:
    """What became of one model: its graph, and a plan and a row for each budget."""

    name: str
    graph: Graph
    plans: list[Plan] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def for_page(self, frontier: Sequence[Plan]) -> PlannedModel:
        """The model's section of the report page."""
        facts = tuple((label, f"{seconds:.1f} s") for label, seconds in self.seconds.items())
        return PlannedModel(
            title=self.name, graph=self.graph, plans=tuple(self.plans), frontier=tuple(frontier), facts=facts
        )


def run_demo(
    client: Client, steps: Mapping[str, Callable[[], Step]], announce: Announce = lambda _: None
) -> Iterator[ModelResult]:
    """Runs every model under every budget; yields each model's result when it is complete.

    `announce` is told what is being done, several times per model. Freed memory is kept in the process from
    here on: otherwise page faults, which fall on high peaks most, would hide what recomputation costs.
    """
    keep_freed_memory()
    for name, make_step in steps.items():
        step = make_step()
        result = _prepare(name, step, announce)
        announce(f"{name}: store-all")
        store_all = client.solve(result.graph, strategy="store_all", budget_fraction=1.0)
        base = planned_copy(step, store_all)
        run_planned(base)
        store_all_peak = _measured_peak(base, result.graph)
        for fraction in BUDGET_FRACTIONS:
            budget_bytes = max(int(fraction * store_all_peak), int(BUDGET_FLOOR * working_set_bound(result.graph)))
            label = f"{name} at {budget_bytes / store_all_peak:.0%}"
            announce(f"{label}: solve")
            plan = client.solve(result.graph, budget_bytes=budget_bytes, gap=ASKED_GAP, time_limit_s=TIME_LIMIT_S)
            planned = planned_copy(step, plan)
            announce(f"{label}: train beside the unmodified model")
            identical = trains_identically(step, planned)
            announce(f"{label}: measure")
            result.plans.append(plan)
            result.rows.append(_make_row(result, plan, identical, base, planned, store_all_peak))
        yield result


def steps_to_announce(model_count: int) -> int:
    """How many announcements a whole demo makes."""
    return model_count * (3 + 3 * len(BUDGET_FRACTIONS))


def _prepare(name: str, step: Step, announce: Announce) -> ModelResult:
    """Captures and measures."""
    started = time.perf_counter()
    announce(f"{name}: capture")
    bare = capture(step)
    captured = time.perf_counter()
    announce(f"{name}: measure {len({op.signature for op in bare.ops})} distinct ops")
    graph = measure(bare)
    measured = time.perf_counter()
    if graph.estimated:
        raise RematError(f"some ops of {name} could not be measured.", hint="The log names them.")
    seconds = {"Captured in": captured - started, "Measured in": measured - captured}
    return ModelResult(name=name, graph=graph, seconds=seconds)


def _make_row(result: ModelResult, plan: Plan, identical: bool, base: Step, planned: Step, store_all_peak: int) -> Row:
    return Row(
        model=result.name,
        ops=len(result.graph),
        store_all_peak_bytes=store_all_peak,
        budget_bytes=plan.budget_bytes,
        predicted_peak_bytes=plan.peak_bytes,
        measured_peak_bytes=_measured_peak(planned, result.graph),
        predicted_overhead=plan.overhead,
        measured_overhead=measured_overhead(base, planned),
        bound_overhead=plan.bound_overhead,
        gap=plan.gap,
        status=plan.status,
        solve_s=plan.provenance.solve_s,
        identical=identical,
    )


def _measured_peak(planned: Step, graph: Graph) -> int:
    """Bytes at the peak of one step, everything included, as the allocator saw them."""
    planned.model.zero_grad(set_to_none=True)
    device = next(planned.model.parameters()).device
    return graph.fixed_bytes + measure_peak(lambda: run_planned(planned), device).peak_bytes_above_start
