"""With one slot an optimum of the relaxation lies between two integral points, one of which fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from remat_solver.engines import engine_named
from remat_solver.engines.base import Limits, MixedIntegerProgram, Outcome
from remat_solver.engines.incumbent import is_feasible
from remat_solver.formulation.lifetimes import find_lifetimes
from remat_solver.formulation.memory_cuts import build_model
from remat_solver.formulation.one_slot import edge_ends
from remat_solver.options import SolveOptions
from remat_solver.preparation import make_task, referee
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.strategies.memory_cuts import memory_cuts
from tests.solver.graphs import chain
from tests.solver.random_graphs import random_budget, random_graph

HIGHS = engine_named("highs")


def vertices(seeds: range) -> list[tuple[MixedIntegerProgram, tuple[float, ...]]]:
    """One-slot programs, each with an optimal vertex of its relaxation; halves say nothing about the edge."""
    found = []
    for seed in seeds:
        graph = random_graph(seed, fewest_ops=5, most_ops=12)
        lifetimes = find_lifetimes(graph)
        for stage in range(len(graph)):
            program = build_model(lifetimes, [(stage, stage)], random_budget(graph, seed)).program
            if program.column_count:
                relaxed = replace(program, integer=[False] * program.column_count)
                outcome = HIGHS.solve(relaxed, Limits(time_limit_s=60))
                if outcome.x is not None and not any(abs(share - 0.5) < 1e-6 for share in outcome.x):
                    found.append((program, outcome.x))
    return found


def test_a_vertex_lies_between_integral_points_of_which_one_fits() -> None:
    fractional = with_states = 0
    for program, x in vertices(range(120)):
        ends = edge_ends(x)
        assert any(is_feasible(program, end) for end in ends)
        assert all(set(end) <= {0.0, 1.0} for end in ends)
        assert min(map(program.price, ends)) - 1e-6 <= program.price(x) <= max(map(program.price, ends)) + 1e-6
        if len(ends) == 2:
            fractional += 1
            share = next(share for share in x if 1e-6 < share < 1 - 1e-6)
            first, second = ends
            between = [share * a + (1 - share) * b for a, b in zip(first, second, strict=True)]
            assert between == pytest.approx(list(x), abs=1e-5)
        with_states += not all(program.integer)
    assert fractional > 20
    assert with_states > 20


class Linear:
    """HiGHS, for programs without integrality only."""

    name = "linear"

    def version(self) -> str:
        return "1"

    def solve(self, program: MixedIntegerProgram, limits: Limits, **options: Any) -> Outcome:
        assert not any(program.integer)
        return HIGHS.solve(program, limits, **options)


def test_many_like_layers_need_no_integer_program() -> None:
    """A chain of 80 layers in which a single edge is at most 1/160 of the time: the relaxation closes a gap of 2%."""
    graph = chain(80)
    peak_bytes = simulate(graph, store_all_schedule(graph)).peak_bytes
    for share in (0.8, 0.9):
        task = make_task(graph, SolveOptions(budget_fraction=share, gap=0.02), int(share * peak_bytes))
        plan = referee(graph, task, memory_cuts(replace(task, find_engine=Linear)))
        assert plan.peak_bytes <= plan.budget_bytes < peak_bytes
        assert plan.gap <= 0.02
        assert (plan.provenance.engine, plan.provenance.rounds, plan.provenance.slots) == ("linear", 1, 1)
        assert plan.provenance.columns > 0
