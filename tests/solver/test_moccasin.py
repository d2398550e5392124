"""The rival's model of the benchmarks: with runs enough it is Checkmate's class, with fewer a part of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from benchmarks.cp_sat import Answer, Question, ask
from remat_solver.graph import Graph
from remat_solver.simulate import simulate
from tests.solver.brute_force import exhaustive_optimum
from tests.solver.graphs import op
from tests.solver.random_graphs import random_budget, random_graph

MOST_OPS = 6
HOUR_S = 3600.0


def ask_all(cases: Sequence[tuple[Graph, int]], *, runs: int) -> list[Answer]:
    """Each graph and budget, solved to its end however slow the machine."""
    return ask(
        [
            Question(graph=graph, budget_bytes=budget_bytes, runs=runs, time_limit_s=HOUR_S, workers=1)
            for graph, budget_bytes in cases
        ]
    )


def random_cases(seeds: Sequence[int]) -> list[tuple[Graph, int]]:
    graphs = [random_graph(seed, most_ops=MOST_OPS) for seed in seeds]
    return [(graph, random_budget(graph, seed)) for graph, seed in zip(graphs, seeds, strict=True)]


@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(60, 300), marks=pytest.mark.full)], ids=len)
def test_equals_brute_force_where_every_op_may_run_in_every_stage(seeds: range) -> None:
    cases, endings = random_cases(seeds), set()
    for seed, (graph, budget_bytes), answer in zip(seeds, cases, ask_all(cases, runs=MOST_OPS), strict=True):
        optimum = exhaustive_optimum(graph, budget_bytes)
        assert answer.time_ns == (None if optimum is None else optimum.time_ns), seed
        assert answer.status == ("infeasible" if optimum is None else "optimal"), seed
        assert answer.bound_ns == answer.time_ns, seed
        endings.add("infeasible" if optimum is None else "recomputing" if len(optimum.schedule) > len(graph) else "")
    assert endings == {"infeasible", "recomputing", ""}


def test_with_two_runs_it_never_beats_the_optimum_and_keeps_to_them() -> None:
    cases = random_cases(range(40))
    for (graph, budget_bytes), answer in zip(cases, ask_all(cases, runs=2), strict=True):
        optimum = exhaustive_optimum(graph, budget_bytes)
        if answer.schedule is None:
            continue
        assert optimum is not None
        assert answer.time_ns is not None
        assert answer.time_ns >= optimum.time_ns
        assert max(Counter(answer.schedule).values()) <= 2
        assert simulate(graph, answer.schedule).peak_bytes <= budget_bytes


def test_what_is_always_resident_and_replay_state_count() -> None:
    graph = Graph(
        ops=(
            op("a", sizes=(4,), recompute_state_bytes=3),
            op("b", 0),
            op("c", 1, workspace_bytes=6),
            op("d", 0, 2),
        ),
        fixed_bytes=20,
    )
    kept, again, neither, nothing = ask_all([(graph, budget) for budget in (32, 31, 30, 19)], runs=2)
    assert kept.schedule == (0, 1, 2, 3)
    assert again.schedule == (0, 1, 2, 0, 3)
    assert neither.status == nothing.status == "infeasible"
