"""The frontier with its page, and memory in money."""

from __future__ import annotations

from pathlib import Path

import pytest

import remat
from remat.trade_off import price
from remat_solver.errors import InvalidRequest
from tests.client.test_page import embedded_data
from tests.solver.graphs import chain

GRAPH = chain(12, 2**20)
HOUR_NS = 3600 * 10**9


def test_the_frontier_draws_itself(tmp_path: Path) -> None:
    page = tmp_path / "frontier.html"
    plans = remat.frontier(GRAPH, points=4, html=page, gap=1e-2)
    assert [plan.peak_bytes for plan in plans] == sorted(plan.peak_bytes for plan in plans)
    (data,) = embedded_data(page.read_text())
    drawn = data["frontier"]
    assert isinstance(drawn, list)
    assert [point["peak_bytes"] for point in drawn] == [plan.peak_bytes for plan in plans]


def test_a_step_is_priced_by_its_time() -> None:
    plans = remat.frontier(GRAPH, points=3, gap=1e-2)
    priced = price(plans, gpu_hour=2.5, steps=1000)
    for plan, money in zip(plans, priced, strict=True):
        assert money.cost == pytest.approx(2.5 * 1000 * plan.time_ns / HOUR_NS)
        hours = 1000 * plan.time_ns / HOUR_NS
        store_all_hours = 1000 * plan.store_all_time_ns / HOUR_NS
        assert money.break_even_per_hour * hours == pytest.approx(2.5 * store_all_hours)
    assert priced[-1].break_even_per_hour == 2.5


@pytest.mark.parametrize(("gpu_hour", "steps"), [(0.0, 1), (-1.0, 1), (float("nan"), 1), (1.0, 0)])
def test_prices_that_are_none(gpu_hour: float, steps: int) -> None:
    with pytest.raises(InvalidRequest, match="makes no sense"):
        price([], gpu_hour=gpu_hour, steps=steps)
