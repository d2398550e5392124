"""Range cuts take nothing away from the integer program, and much from its relaxation."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from remat_solver.bounds import working_set_bound
from remat_solver.engines import engine_named
from remat_solver.engines.base import Limits, MixedIntegerProgram, Outcome
from remat_solver.formulation.lifetimes import Lifetimes, find_lifetimes
from remat_solver.formulation.memory_cuts import CutModel, Slot, build_model
from remat_solver.formulation.range_cuts import RangeCut, add_cut, violated_cuts
from remat_solver.formulation.strengthening import Cut, strengthen
from remat_solver.graph import Graph, Value
from tests.solver.graphs import chain
from tests.solver.random_graphs import random_budget, random_graph

HIGHS = engine_named("highs")


def solve(program: MixedIntegerProgram) -> Outcome:
    return HIGHS.solve(program, Limits(time_limit_s=60))


def relax(program: MixedIntegerProgram) -> Sequence[float] | None:
    return solve(program).x


def relaxed_objective(program: MixedIntegerProgram) -> float:
    objective = solve(replace(program, integer=[False] * program.column_count)).objective
    assert objective is not None
    return objective


def random_slots(graph: Graph, seed: int) -> tuple[Slot, ...]:
    rng = random.Random(seed)
    stages = rng.sample(range(len(graph)), min(len(graph), rng.randint(2, 6)))
    slots = {(stage, stage) for stage in stages}
    slots |= {(stage, rng.randrange(stage)) for stage in stages if stage and rng.random() < 0.5}
    return tuple(slots)


def uneven_chain(seed: int) -> Graph:
    """A forward chain and its backward with sizes and times that differ: what splitting intervals hurts most."""
    rng = random.Random(seed)
    even = chain(rng.randint(6, 14))
    ops = [
        replace(one, time_ns=rng.randint(1, 9), writes=tuple(Value(size_bytes=rng.randint(5, 20)) for _ in one.writes))
        for one in even.ops
    ]
    return replace(even, ops=tuple(ops))


def models(seeds: range) -> list[tuple[Graph, CutModel]]:
    found = []
    for seed in seeds:
        if seed % 2:
            graph = uneven_chain(seed)
            budget_bytes = int(working_set_bound(graph) * random.Random(seed).uniform(1.0, 1.6))
        else:
            graph = random_graph(seed, fewest_ops=6, most_ops=14)
            budget_bytes = random_budget(graph, seed)
        model = build_model(find_lifetimes(graph), random_slots(graph, seed), budget_bytes)
        if not model.contradiction and model.program.column_count:
            found.append((graph, model))
    return found


def test_the_integer_optimum_stays_and_the_relaxation_rises() -> None:
    raised = 0
    for graph, model in models(range(80)):
        before = solve(model.program)
        if before.termination == "infeasible":
            continue
        relaxed_before = relaxed_objective(model.program)
        strengthen(find_lifetimes(graph), model, [], relax)
        after = solve(model.program)
        assert after.termination == "optimal"
        assert after.objective == pytest.approx(before.objective, abs=1e-6)
        relaxed_after = relaxed_objective(model.program)
        assert relaxed_after >= relaxed_before - 1e-6
        raised += relaxed_after > relaxed_before + 1e-3
    assert raised >= 5  # or the separation finds nothing, and the test above says nothing


def test_cuts_hold_for_every_integer_point_of_the_model() -> None:
    """Separated at wild points, so that every shape of cut comes up, and checked against the best integer point."""
    rng = random.Random(5)
    checked = 0
    for graph, model in models(range(200, 260)):
        before = solve(model.program)
        if before.objective is None:
            continue
        wild = [rng.random() ** 3 for _ in range(model.program.column_count)]
        cuts = violated_cuts(find_lifetimes(graph), model, wild, per_range=50)
        checked += sum(add_cut(model, cut) for cut in cuts)
        assert solve(model.program).objective == pytest.approx(before.objective, abs=1e-6)
    assert checked > 500


def split_chain(*stages: int) -> tuple[Lifetimes, CutModel]:
    """An uneven chain of 14 under a tight budget, with slots at these stages."""
    graph = uneven_chain(29)
    lifetimes = find_lifetimes(graph)
    budget_bytes = int(working_set_bound(graph) * 1.15)
    return lifetimes, build_model(lifetimes, tuple((stage, stage) for stage in stages), budget_bytes)


def test_a_pool_outlives_its_model() -> None:
    lifetimes, first = split_chain(14, 16, 18)
    pool: list[Cut] = []
    assert strengthen(lifetimes, first, pool, relax) == len(pool) > 0
    _, finer = split_chain(14, 16, 17, 18)
    plain = relaxed_objective(finer.program)
    for cut in pool:
        if isinstance(cut, RangeCut):
            assert add_cut(finer, cut)
    assert relaxed_objective(finer.program) > plain + 100


def test_without_its_slots_a_cut_says_nothing() -> None:
    """Read as one of the slots that are there, it would cut off schedules."""
    lifetimes, first = split_chain(14, 16, 18)
    pool: list[Cut] = []
    strengthen(lifetimes, first, pool, relax)
    _, other = split_chain(15, 17, 19)
    assert any(isinstance(cut, RangeCut) for cut in pool)
    assert not any(add_cut(other, cut) for cut in pool if isinstance(cut, RangeCut))


def test_slack_cuts_leave_the_program_and_the_pool() -> None:
    lifetimes, model = split_chain(14, 16, 18)
    rows = model.program.row_count
    pool: list[Cut] = []
    strengthen(lifetimes, model, pool, relax)
    assert model.program.row_count - rows == len(pool)
    x = relax(replace(model.program, integer=[False] * model.program.column_count))
    assert x is not None
    for row in range(rows, model.program.row_count):
        terms = zip(model.program.row_columns[row], model.program.row_coefficients[row], strict=True)
        activity = sum(c * x[j] for j, c in terms)
        bounds = model.program.row_lower[row], model.program.row_upper[row]
        assert any(math.isclose(activity, bound, abs_tol=1e-5) for bound in bounds)


def test_a_stopped_relaxation_adds_nothing_but_the_pool() -> None:
    lifetimes, model = split_chain(14, 16, 18)
    cut = RangeCut(base=(14, 14), path=(0,), producer=0, reader=27)
    pool: list[Cut] = [cut]
    assert strengthen(lifetimes, model, pool, lambda _: None) == 1
    assert pool == [cut]
