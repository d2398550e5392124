"""The program of recomputes at given times says what its schedules cost, and its roundings become plans."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from remat_solver.bounds import working_set_bound
from remat_solver.engines import engine_named
from remat_solver.engines.base import Limits, Outcome
from remat_solver.formulation.lifetimes import find_lifetimes
from remat_solver.formulation.timed import TimedModel, build_timed
from remat_solver.graph import Graph
from remat_solver.options import SolveOptions
from remat_solver.preparation import make_task
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.strategies.cleaning import drop_unused
from remat_solver.strategies.timed_rounding import TimedRounding, peaks_above, stand_ins
from tests.solver.test_range_cuts import uneven_chain

HIGHS = engine_named("highs")
_LITTLE = 0.1
"""Of the program's unit of memory."""


def timed(graph: Graph, budget_bytes: int, *, reach_ns: float = math.inf, least_bytes: float = 0.0) -> TimedModel:
    pivot = simulate(graph, store_all_schedule(graph)).peak_step
    return build_timed(find_lifetimes(graph), pivot, budget_bytes, reach_ns=reach_ns, least_bytes=least_bytes)


def solve_with_all_rows(model: TimedModel) -> Outcome:
    for step in range(len(model.fixed_bytes)):
        model.add_memory_row(step)
    return HIGHS.solve(model.program, Limits(time_limit_s=60))


def test_a_solution_costs_what_its_schedule_costs_and_knows_its_memory() -> None:
    recomputing = 0
    for seed in range(40):
        graph = uneven_chain(seed)
        budget_bytes = int(working_set_bound(graph) * 1.3)
        model = timed(graph, budget_bytes)
        outcome = solve_with_all_rows(model)
        if outcome.x is None or outcome.objective is None:
            continue
        schedule = model.schedule(outcome.x, 0.5)
        replay = simulate(graph, schedule)
        extra_ns = replay.time_ns - graph.total_time_ns
        assert extra_ns / model.scale.time_unit == pytest.approx(outcome.objective, abs=1e-3)
        in_use = model.in_use(outcome.x)
        seen: set[int] = set()
        for op, real_bytes in zip(schedule, replay.timeline_bytes, strict=True):
            if op not in seen:
                assert real_bytes <= in_use[op] + 1e-6
            seen.add(op)
        recomputing += len(schedule) > len(graph)
    assert recomputing > 10


def test_without_recomputes_it_is_the_store_all_schedule() -> None:
    for seed in range(20):
        graph = uneven_chain(seed)
        model = timed(graph, working_set_bound(graph))
        nothing = [0.0] * model.program.column_count
        assert model.schedule(nothing, 0.5) == list(store_all_schedule(graph))
        assert np.array_equal(model.in_use(nothing), simulate(graph, store_all_schedule(graph)).timeline_bytes)


def test_every_threshold_gives_a_schedule_that_runs() -> None:
    fractional = 0
    for seed in range(20):
        graph = uneven_chain(seed)
        model = timed(graph, int(working_set_bound(graph) * 1.2))
        for step in range(len(graph)):
            model.add_memory_row(step)
        x = HIGHS.solve(replace(model.program, integer=[False] * model.program.column_count), Limits(time_limit_s=60)).x
        if x is None:
            continue
        fractional += any(0.01 < value < 0.99 for value in x)
        for threshold in (0.1, 0.3, 0.5, 0.9):
            schedule = drop_unused(model.lifetimes, model.schedule(x, threshold))
            simulate(graph, schedule)  # raises if something is read that was not computed
    assert fractional > 5


def test_small_values_and_long_ways_have_no_columns() -> None:
    graph = uneven_chain(3)
    budget_bytes = int(working_set_bound(graph) * 1.3)
    everything = timed(graph, budget_bytes).program.column_count
    assert timed(graph, budget_bytes, reach_ns=0.0).program.column_count < everything
    assert timed(graph, budget_bytes, least_bytes=math.inf).program.column_count == 0


def test_roundings_are_plans_where_the_first_places_are_many() -> None:
    graph = uneven_chain(4)
    budget_bytes = int(working_set_bound(graph) * 1.3)
    task = make_task(graph, SolveOptions(budget_bytes=budget_bytes, time_limit_s=3600), budget_bytes)
    rounding = TimedRounding(task, find_lifetimes(graph), HIGHS, overhead_ns=10 * graph.total_time_ns)
    assert rounding.relax()
    assert rounding.peaks
    assert peaks_above(rounding.model.in_use(rounding.x), budget_bytes * 1.002) == []
    schedules = [schedule for schedule, _ in rounding.roundings()]
    assert all(simulate(graph, schedule).time_ns > graph.total_time_ns for schedule in schedules)


def test_peaks_are_apart() -> None:
    assert peaks_above((1, 9, 8, 3, 3, 6, 1), 5) == [1, 5]
    assert peaks_above((1, 2), 5) == []


def test_prices_of_both_engines_are_what_less_room_at_a_step_costs_at_least() -> None:
    graph = uneven_chain(4)
    budget_bytes = int(working_set_bound(graph) * 1.3)
    task = make_task(graph, SolveOptions(budget_bytes=budget_bytes, time_limit_s=3600), budget_bytes)
    for name in ("cbc", "highs"):
        rounding = TimedRounding(task, find_lifetimes(graph), engine_named(name), overhead_ns=10 * graph.total_time_ns)
        assert rounding.relax()
        program = rounding.model.program
        program.integer = [False] * program.column_count
        assert any(price > 0 for price in rounding.prices.values())
        for step, row in rounding.memory_rows.items():
            program.row_upper[row] -= _LITTLE
            outcome = HIGHS.solve(program, Limits(time_limit_s=60))
            program.row_upper[row] += _LITTLE
            assert outcome.objective is not None
            lost = outcome.objective - program.price(rounding.x)
            assert lost >= _LITTLE * rounding.prices[step] - 1e-5


def test_stand_ins_leave_the_least_price_far_away() -> None:
    prices = {10: 5.0, 11: 4.0, 12: 0.0, 30: 1.0, 31: 1.0, 32: 1.0}
    assert stand_ins(prices, 2) == [11, 31]
    assert stand_ins(dict(reversed(prices.items())), 2) == [11, 31]
    assert sorted(stand_ins(prices, 9)) == [10, 11, 30, 31, 32]
    assert stand_ins({3: 0.0}, 2) == []
