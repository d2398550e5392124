"""`fits` and `largest_batch` on graphs whose answers can be worked out by hand."""

from __future__ import annotations

import pytest

import remat
from remat_solver.bounds import working_set_bound
from remat_solver.errors import InfeasibleBudget, InvalidRequest
from remat_solver.graph import Graph
from remat_solver.simulate import simulate, store_all_schedule
from tests.solver.graphs import chain

LAYERS = 8
UNIT = 1000


def step_of(batch: int) -> Graph:
    return chain(LAYERS, batch * UNIT)


def peak(graph: Graph) -> int:
    return simulate(graph, store_all_schedule(graph)).peak_bytes


def test_a_budget_of_the_whole_peak_needs_no_recomputation() -> None:
    fit = remat.fits(step_of(3), peak(step_of(3)))
    assert fit
    assert fit.verdict == "without recomputation"
    assert fit.plan is not None
    assert fit.plan.recompute_count == 0


def test_a_smaller_budget_needs_a_plan() -> None:
    fit = remat.fits(step_of(3), "75%")
    assert fit
    assert fit.verdict == "with a plan"
    assert fit.plan is not None
    assert fit.plan.recompute_count > 0
    assert fit.plan.peak_bytes <= fit.budget_bytes
    assert "more compute" in str(fit)


def test_what_is_reserved_is_not_for_the_step() -> None:
    graph = step_of(3)
    assert remat.fits(graph, peak(graph) + 2**10, reserve="1KiB").verdict == "without recomputation"
    assert remat.fits(graph, peak(graph) + 2**10 - 1, reserve="1KiB").verdict == "with a plan"
    reserved = remat.largest_batch(step_of, 40 * UNIT, reserve=10 * UNIT).batch
    assert reserved == remat.largest_batch(step_of, 30 * UNIT).batch < remat.largest_batch(step_of, 40 * UNIT).batch


def test_below_the_working_set_it_is_a_proven_no() -> None:
    graph = step_of(3)
    fit = remat.fits(graph, working_set_bound(graph) - 1)
    assert not fit
    assert fit.verdict == "no"
    assert fit.least_bytes == working_set_bound(graph)


def test_a_plan_that_takes_too_long_is_none() -> None:
    needed = remat.fits(step_of(3), "60%", gap=0.0)
    assert needed.plan is not None
    assert remat.fits(step_of(3), "60%", gap=0.0, max_overhead=needed.plan.overhead)
    refused = remat.fits(step_of(3), "60%", gap=0.0, max_overhead=needed.plan.overhead / 2)
    assert not refused
    assert refused.verdict == "no"
    assert "allowed" in refused.reason


@pytest.mark.parametrize("multiple_of", [1, 4])
def test_the_largest_batch_is_the_largest(multiple_of: int) -> None:
    budget = working_set_bound(step_of(37)) + UNIT // 2
    found = remat.largest_batch(step_of, budget, multiple_of=multiple_of)
    assert found.fit
    assert found.batch % multiple_of == 0
    assert remat.fits(step_of(found.batch), budget)
    assert not remat.fits(step_of(found.batch + multiple_of), budget)
    assert len(found.tried) < 15


def test_the_largest_batch_within_an_overhead_is_smaller() -> None:
    budget = working_set_bound(step_of(37))
    any_plan = remat.largest_batch(step_of, budget)
    quick = remat.largest_batch(step_of, budget, max_overhead=0.0)
    assert quick.batch == max(batch for batch in range(1, 40) if peak(step_of(batch)) <= budget)
    assert quick.batch < any_plan.batch
    assert quick.fit.verdict == "without recomputation"


def test_the_search_stops_at_its_limit() -> None:
    assert remat.largest_batch(step_of, "1GiB", at_most=100).batch == 100


def test_nothing_fits_is_said_with_the_proof() -> None:
    with pytest.raises(InfeasibleBudget, match="not even a batch of 1 fits") as caught:
        remat.largest_batch(step_of, 10)
    assert caught.value.fields["proven_infeasible_below_bytes"] == working_set_bound(step_of(1))


def test_a_share_of_the_peak_is_no_budget_for_a_batch() -> None:
    with pytest.raises(InvalidRequest, match="every batch has another peak"):
        remat.largest_batch(step_of, "80%")
