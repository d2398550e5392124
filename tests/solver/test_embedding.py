"""Every schedule that fits is a solution of every model: with any slots, and with range cuts."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from remat_solver.engines import engine_named
from remat_solver.engines.base import Limits, MixedIntegerProgram
from remat_solver.engines.incumbent import is_feasible
from remat_solver.formulation.embedding import embed
from remat_solver.formulation.lifetimes import find_lifetimes
from remat_solver.formulation.memory_cuts import build_model
from remat_solver.formulation.strengthening import strengthen
from remat_solver.graph import Graph
from remat_solver.simulate import simulate
from remat_solver.strategies.refinement import places
from tests.solver.brute_force import exhaustive_optimum
from tests.solver.random_graphs import random_budget, random_graph

HIGHS = engine_named("highs")


def relax(program: MixedIntegerProgram) -> tuple[float, ...] | None:
    return HIGHS.solve(program, Limits(time_limit_s=60)).x


def slots_around(graph: Graph, schedule: tuple[int, ...], seed: int) -> tuple[tuple[int, int], ...]:
    """Slots where the schedule recomputes, and others."""
    rng = random.Random(seed)
    used = [place for place in places(schedule) if rng.random() < 0.5]
    others = [(stage, rng.randint(-1, stage)) for stage in range(len(graph)) if rng.random() < 0.3]
    return tuple({*used, *others})


def test_a_schedule_is_a_solution_and_costs_no_more() -> None:
    cheaper = recomputing = 0
    for seed in range(200):
        graph = random_graph(seed, fewest_ops=4, most_ops=8)
        budget_bytes = random_budget(graph, seed)
        optimum = exhaustive_optimum(graph, budget_bytes)
        if optimum is None:
            continue
        schedule = optimum.schedule
        lifetimes = find_lifetimes(graph)
        model = build_model(lifetimes, slots_around(graph, schedule, seed), budget_bytes)
        assert not model.contradiction
        strengthen(lifetimes, model, [], relax)
        point = embed(lifetimes, model, schedule)
        assert is_feasible(model.program, point)
        extra = (simulate(graph, schedule).time_ns - graph.total_time_ns) / model.scale.time_unit
        assert model.program.price(point) <= extra + 1e-6
        recomputing += len(schedule) > len(graph)
        cheaper += model.program.price(point) < extra - 1e-6
    assert recomputing > 20
    assert cheaper > 0  # several runs in one interval are paid once


def test_a_schedule_over_the_budget_is_none() -> None:
    graph = random_graph(3, fewest_ops=8, most_ops=8)
    schedule = tuple(range(len(graph)))
    replayed = simulate(graph, schedule)
    slot = (replayed.peak_step, replayed.peak_step)
    lifetimes = find_lifetimes(graph)
    model = build_model(lifetimes, [slot], replayed.peak_bytes)
    assert is_feasible(model.program, embed(lifetimes, model, schedule))
    row = model.memory_row[0]
    tight = replace(model.program, row_upper=[*model.program.row_upper])
    tight.row_upper[row] -= 2.0 / model.scale.memory_unit
    assert math.isfinite(tight.row_upper[row])
    assert not is_feasible(tight, embed(lifetimes, model, schedule))
