"""Budgets of modules: kept by every plan, and met by recomputing what is cheapest for its bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from remat_solver.errors import InvalidRequest, NoPlanInTime
from remat_solver.graph import Graph
from remat_solver.module_budgets import held_for_backward, read_module_budgets, solve_within
from remat_solver.options import SolveOptions
from remat_solver.pins import keeps_pins
from remat_solver.preparation import make_task
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.solve import solve
from tests.solver.graphs import chain, op

ROOMY = SolveOptions(budget_fraction=1.0)
LAYERS = 8


def two_modules(*, recomputable: bool = True) -> Graph:
    """A chain whose first half is called `low.*`, the second `high.*`; later ops take longer."""
    graph = chain(LAYERS, 100)
    ops = tuple(
        replace(
            op,
            name=f"{'low' if index < LAYERS // 2 else 'high'}.{op.name}",
            time_ns=10 + index,
            recomputable=recomputable or op.phase == "backward",
        )
        for index, op in enumerate(graph.ops)
    )
    return replace(graph, ops=ops)


def held_bytes(graph: Graph, schedule: tuple[int, ...], module: str) -> int:
    held = held_for_backward(graph, schedule)
    return sum(graph.sizes[value] for value in held if graph.ops[graph.producer[value]].name.startswith(module))


def test_a_store_all_plan_holds_what_the_backward_reads() -> None:
    graph = two_modules()
    assert held_for_backward(graph, store_all_schedule(graph)) == list(range(LAYERS))


@pytest.mark.parametrize("amount", [0, 99, 100, 250, 400])
def test_a_module_holds_at_most_its_budget(amount: int) -> None:
    graph = two_modules()
    plan = solve_within(graph, ROOMY, {"low": amount}, solve)
    held = held_bytes(graph, plan.schedule, "low")
    assert held == amount // 100 * 100
    assert held_bytes(graph, plan.schedule, "high") == 400
    assert simulate(graph, plan.schedule).peak_bytes <= plan.budget_bytes
    assert plan.recompute_count == 4 - held // 100


def test_the_cheapest_values_are_made_again() -> None:
    graph = two_modules()
    plan = solve_within(graph, ROOMY, {"*": 600}, solve)
    assert sorted(op for op, runs in plan.run_counts.items() if runs > 1) == [0, 1]


def test_budgets_of_several_modules_and_pins_go_together() -> None:
    graph = two_modules()
    options = replace(ROOMY, keep=("low.f0",), recompute=("high.f7",))
    plan = solve_within(graph, options, {"low": 100, "high": 200}, solve)
    assert held_bytes(graph, plan.schedule, "low") == 100
    assert held_bytes(graph, plan.schedule, "high") == 200
    assert plan.run_counts[0] == 1
    assert plan.run_counts[7] > 1


def test_what_can_not_be_recomputed_is_said() -> None:
    with pytest.raises(NoPlanInTime, match="'low' holds 300 B less"):
        solve_within(two_modules(recomputable=False), ROOMY, {"low": 100}, solve)


def test_a_pin_holds_for_values_that_only_the_forward_reads_too() -> None:
    """The noise of a dropout is soon made from its floats: those, too, can be held for the backward."""
    names = ("m.mask", "m.floats", "m.noise", "loss")
    ops = [op(name, *([i - 1] if i else []), phase="forward") for i, name in enumerate(names)]
    graph = Graph(ops=(*ops, op("back", 2, 3, phase="backward")), outputs=(4,))
    again = (0, 1, 2, 3, 2, 4)
    assert held_for_backward(graph, again) == [1, 3]
    for pins, is_kept in (("m.noise",), True), (("m.noise", "m.floats"), False):
        task = make_task(graph, SolveOptions(budget_bytes=100, recompute=pins), 100)
        assert keeps_pins(task, again) is is_kept


def test_a_pattern_without_ops_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no op's name matches 'lower'"):
        solve_within(two_modules(), ROOMY, {"lower": 100}, solve)


def test_amounts_are_read() -> None:
    assert read_module_budgets({"a": "1KiB", "b": 5}) == {"a": 1024, "b": 5}
    with pytest.raises(InvalidRequest, match="module_budgets '10%' is no number of bytes"):
        read_module_budgets({"a": "10%"})
