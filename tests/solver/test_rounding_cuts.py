"""Rounding cuts hold for every choice of whole values that fits, and see what a relaxation cuts in pieces."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from remat_solver.bounds import working_set_bound
from remat_solver.formulation.lifetimes import find_lifetimes
from remat_solver.formulation.memory_cuts import CutModel, build_model
from remat_solver.formulation.rounding_cuts import RoundingCut, add_rounding_cut, violated_rounding_cuts
from remat_solver.graph import Graph, Op, Value
from tests.solver.test_range_cuts import models, relax, relaxed_objective, solve, uneven_chain

_MOST_COLUMNS = 9


def activity(model: CutModel, row: int, point: dict[int, float]) -> float:
    program = model.program
    terms = zip(program.row_columns[row], program.row_coefficients[row], strict=True)
    return sum(coefficient * point[column] for column, coefficient in terms)


def test_whatever_fits_at_a_slot_keeps_its_cuts() -> None:
    checked = 0
    for _, model in models(range(60)):
        rows = [
            (row, slot)
            for row, slot in zip(model.memory_row, model.slots, strict=True)
            if len(model.program.row_columns[row]) <= _MOST_COLUMNS and all(model.program.integer)
        ]
        for row, slot in rows:
            columns = model.program.row_columns[row]
            sizes = [round(size * model.scale.memory_unit) for size in model.program.row_coefficients[row]]
            kept = model.kept[model.slots.index(slot)]
            values = [value for value, column in kept.items() if column in columns]
            for divisor, absent in itertools.product(sorted(set(sizes)), (values, values[::2], [])):
                if not divisor or not add_rounding_cut(
                    model, RoundingCut(slot=slot, divisor=divisor, absent=frozenset(absent))
                ):
                    continue
                cut = model.program.row_count - 1
                for choice in itertools.product((0.0, 1.0), repeat=len(columns)):
                    point = dict(zip(columns, choice, strict=True))
                    if activity(model, row, point) <= model.program.row_upper[row]:
                        assert activity(model, cut, point) <= model.program.row_upper[cut] + 1e-9
                checked += 1
    assert checked > 100


def chain_of_few_sizes(seed: int) -> CutModel:
    """An uneven chain whose values have one of three sizes, with slots at three stages."""
    rng = random.Random(seed)
    graph = uneven_chain(seed)
    ops = [replace(op, writes=tuple(Value(size_bytes=rng.choice((9, 18, 36))) for _ in op.writes)) for op in graph.ops]
    graph = replace(graph, ops=tuple(ops))
    budget_bytes = int(working_set_bound(graph) * rng.uniform(1.0, 1.6))
    turn = len(graph) // 2
    slots = [(stage, stage) for stage in (turn, turn + 2, turn + 4) if stage < len(graph)]
    return build_model(find_lifetimes(graph), slots, budget_bytes)


def test_the_integer_optimum_stays() -> None:
    added = 0
    for model in map(chain_of_few_sizes, range(60)):
        before = solve(model.program)
        if model.contradiction or before.termination == "infeasible":
            continue
        for _ in range(4):
            x = relax(replace(model.program, integer=[False] * model.program.column_count))
            assert x is not None
            added += sum(add_rounding_cut(model, cut) for cut in violated_rounding_cuts(model, x))
        assert solve(model.program).objective == pytest.approx(before.objective, abs=1e-6)
    assert added > 20


def equal_values(count: int, *, small: int) -> Graph:
    """Ops whose values of 10 bytes each, and one of `small`, are read again at the end, one after the other."""
    ops = [Op(name=f"make{i}", time_ns=10, writes=(Value(size_bytes=10),)) for i in range(count)]
    ops.append(Op(name="small", time_ns=1000, writes=(Value(size_bytes=small),)))
    ops.append(Op(name="turn", time_ns=1, writes=(Value(size_bytes=1),)))
    ops += [Op(name=f"use{i}", time_ns=1, reads=(i,)) for i in range(count + 1)]
    return Graph(ops=tuple(ops))


def test_half_a_value_is_not_kept_where_no_whole_one_fits() -> None:
    graph = equal_values(6, small=3)
    turn = next(index for index, op in enumerate(graph.ops) if op.name == "turn")
    model = build_model(find_lifetimes(graph), [(turn, turn)], budget_bytes=49)
    optimum = solve(model.program).objective
    assert optimum is not None
    assert relaxed_objective(model.program) < 0.8 * optimum
    x = relax(replace(model.program, integer=[False] * model.program.column_count))
    assert x is not None
    (cut,) = violated_rounding_cuts(model, x)
    assert add_rounding_cut(model, cut)
    assert relaxed_objective(model.program) == pytest.approx(optimum, abs=1e-6)
