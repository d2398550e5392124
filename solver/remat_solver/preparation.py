"""What happens before and after any strategy: options into a task, a found schedule into a refereed plan."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import time
from collections.abc import Callable
from typing import Any, cast

from remat_solver.engines import engine_named
from remat_solver.errors import InvalidRequest
from remat_solver.graph import Graph
from remat_solver.options import STRATEGIES, Progress, SolveOptions
from remat_solver.pins import apply_pins, check_pins
from remat_solver.plan import Objective, Plan, Provenance, referee_plan
from remat_solver.reordering import Reordering
from remat_solver.strategies.base import Found, Strategy, Task

_MODULES = {"chen_sqrt": "chen", "chen_greedy": "chen"}


def resolve_options(options: SolveOptions | None, option_fields: dict[str, Any]) -> SolveOptions:
    """One set of options from either form; raises `InvalidRequest` for an unknown field."""
    known = {field.name for field in dataclasses.fields(SolveOptions)}
    unknown = sorted(set(option_fields) - known)
    if unknown:
        raise InvalidRequest(
            f"solve has no option {unknown[0]!r}.", hint=f"Options: {', '.join(sorted(known))}.", field=unknown[0]
        )
    if options is None:
        return SolveOptions(**option_fields)
    return dataclasses.replace(options, **option_fields)


def make_task(
    graph: Graph,
    options: SolveOptions,
    budget_bytes: int,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    started_s: float | None = None,
) -> Task:
    """The task that a strategy gets: pins applied to the graph, the clock started (or taken to have been)."""
    now = time.monotonic() if started_s is None else started_s
    pinned = apply_pins(graph, keep=options.keep, recompute=options.recompute)
    task = Task(
        graph=pinned.graph,
        budget_bytes=budget_bytes,
        options=options,
        find_engine=lambda: engine_named(options.engine),
        started_s=now,
        deadline_s=now + options.time_limit_s,
        absent_at_boundary=pinned.absent_at_boundary,
        boundary=pinned.boundary,
    )
    if on_progress is not None:
        task = dataclasses.replace(task, on_progress=on_progress)
    if should_stop is not None:
        task = dataclasses.replace(task, stop_requested=should_stop)
    return task


def strategy_named(name: str) -> Strategy:
    """The strategy called `name`; raises `InvalidRequest`."""
    if name not in STRATEGIES:
        raise InvalidRequest(f"strategy {name!r} is unknown.", hint=f"Choose one of {', '.join(STRATEGIES)}.")
    module = importlib.import_module(f"remat_solver.strategies.{_MODULES.get(name, name)}")
    return cast(Strategy, getattr(module, name))


def referee(
    graph: Graph,
    task: Task,
    found: Found,
    *,
    objective: Objective = "time",
    bound_bytes: int = 0,
    reordering: Reordering | None = None,
) -> Plan:
    """The plan of a found schedule, replayed on the caller's own graph, pins checked.

    With `reordering` the task was about `reordering.graph`, and its schedule is led back to `graph`.
    """
    check_pins(task, found.schedule)
    options = task.options
    return referee_plan(
        graph,
        reordering.in_original(found.schedule) if reordering else found.schedule,
        budget_bytes=task.budget_bytes,
        bound_ns=found.bound_ns,
        proof_scope=found.proof_scope,
        objective=objective,
        bound_bytes=bound_bytes,
        provenance=Provenance(
            strategy=options.strategy,
            engine=found.engine,
            engine_version=found.engine_version,
            remat_version=importlib.metadata.version("remat"),
            solve_s=task.elapsed_s(),
            rounds=found.rounds,
            slots=found.slots,
            rows=found.rows,
            columns=found.columns,
            requested_gap=options.gap,
            time_limit_s=options.time_limit_s,
            threads=options.threads,
            stopped_by=found.stopped_by,
            reordered_peak_bytes=reordering.peak_bytes if reordering else 0,
        ),
    )
