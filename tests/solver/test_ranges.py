"""Range rows take nothing away from the integer program, hold for schedules, and do what rounds of cuts do."""

from __future__ import annotations

import pytest

from remat_solver.engines.incumbent import is_feasible
from remat_solver.formulation.embedding import embed
from remat_solver.formulation.lifetimes import find_lifetimes
from remat_solver.formulation.memory_cuts import build_model
from remat_solver.formulation.ranges import add_ranges
from remat_solver.formulation.strengthening import strengthen
from tests.solver.brute_force import exhaustive_optimum
from tests.solver.random_graphs import random_budget, random_graph
from tests.solver.test_embedding import slots_around
from tests.solver.test_range_cuts import models, relax, relaxed_objective, solve, split_chain


def test_the_integer_optimum_stays_and_the_relaxation_rises() -> None:
    raised = 0
    for graph, model in models(range(80)):
        before = solve(model.program)
        if before.termination == "infeasible":
            continue
        relaxed_before = relaxed_objective(model.program)
        add_ranges(find_lifetimes(graph), model)
        after = solve(model.program)
        assert after.objective == pytest.approx(before.objective, abs=1e-6)
        raised += relaxed_objective(model.program) > relaxed_before + 1e-3
    assert raised >= 5


def test_a_schedule_that_fits_is_a_solution() -> None:
    recomputing = 0
    for seed in range(100):
        graph = random_graph(seed, fewest_ops=4, most_ops=8)
        budget_bytes = random_budget(graph, seed)
        optimum = exhaustive_optimum(graph, budget_bytes)
        if optimum is None:
            continue
        lifetimes = find_lifetimes(graph)
        model = build_model(lifetimes, slots_around(graph, optimum.schedule, seed), budget_bytes)
        add_ranges(lifetimes, model)
        assert is_feasible(model.program, embed(lifetimes, model, optimum.schedule))
        recomputing += len(optimum.schedule) > len(graph)
    assert recomputing > 10


def test_one_relaxation_is_worth_rounds_of_cuts() -> None:
    lifetimes, cut = split_chain(14, 16, 18)
    _, ranged = split_chain(14, 16, 18)
    plain = relaxed_objective(cut.program)
    strengthen(lifetimes, cut, [], relax)
    add_ranges(lifetimes, ranged)
    gained = relaxed_objective(cut.program) - plain
    assert relaxed_objective(ranged.program) - plain > 0.8 * gained > 0
