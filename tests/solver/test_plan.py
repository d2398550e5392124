"""Plans carry the referee's figures, and only those."""

import dataclasses

import pytest

from remat_solver.errors import InvalidPlan, PlanMismatch
from remat_solver.plan import Plan, Provenance, confirm_plan, referee_plan, share
from tests.solver.graphs import chain

RECOMPUTING = (0, 1, 2, 3, 4, 0, 5)


def make_plan(bound_ns: int = 6, budget_bytes: int = 40) -> Plan:
    return referee_plan(
        chain(3),
        RECOMPUTING,
        budget_bytes=budget_bytes,
        bound_ns=bound_ns,
        proof_scope="order",
        provenance=Provenance(strategy="by hand"),
    )


def test_figures_are_the_referees() -> None:
    plan = make_plan()
    assert (plan.peak_bytes, plan.time_ns, plan.store_all_peak_bytes, plan.store_all_time_ns) == (35, 7, 45, 6)
    assert plan.overhead == pytest.approx(1 / 6)
    assert (plan.bound_overhead, plan.gap, plan.status) == (0, pytest.approx(1 / 6), "feasible")
    assert plan.recompute_count == 1
    assert plan.run_counts[0] == 2


def test_status_follows_from_the_gap() -> None:
    assert make_plan(bound_ns=7).status == "optimal"
    # an engine's bound above the plan's time is noise, not a better proof
    assert make_plan(bound_ns=99).bound_ns == 7


def test_a_plan_over_its_budget_is_never_built() -> None:
    with pytest.raises(InvalidPlan, match="exceeds its budget"):
        make_plan(budget_bytes=34)


def test_confirming() -> None:
    assert confirm_plan(chain(3), make_plan()).peak_bytes == 35


def test_a_plan_for_another_graph_is_refused() -> None:
    with pytest.raises(PlanMismatch, match="made for graph") as caught:
        confirm_plan(chain(4), make_plan())
    assert caught.value.graph_hash == chain(4).hash


@pytest.mark.parametrize("change", [{"peak_bytes": 34}, {"time_ns": 8}, {"schedule": (0, 1, 2, 3, 4, 5)}])
def test_a_doctored_plan_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidPlan, match="claims"):
        confirm_plan(chain(3), dataclasses.replace(make_plan(), **change))  # type: ignore[arg-type]


def test_share_of_nothing() -> None:
    assert share(0, 0) == 0
    assert share(1, 0) == float("inf")
