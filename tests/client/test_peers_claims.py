"""The claims of `benchmarks.peers`: whatever does not hold is named, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.peers import contenders
from benchmarks.peers.comparison import Comparison, Row
from benchmarks.peers.measuring import Ratio
from benchmarks.peers.tables import broken_claims

MEBIBYTE = 2**20


def at(median: float) -> Ratio:
    return Ratio(median=median, low=median - 0.01, high=median + 0.01)


def row(family: str, cpu: float, peak: int, **fields: Any) -> Row:
    values: dict[str, Any] = {
        "network": "net", "family": family, "setting": "a", "peak_bytes": peak, "peak_share": peak / (10 * MEBIBYTE),
        "budget_bytes": None, "predicted_peak_bytes": None, "predicted_overhead": None,
        "loss_and_gradients_identical": True, "gradients_right": True, "buffers_identical": True,
        "largest_difference": 0.0, "wall": at(cpu), "cpu": at(cpu), "to_store_all": None,
    }  # fmt: skip
    return Row(**{**values, **fields})


def claims_of(cpu: float = 1.1, peak: int = 5 * MEBIBYTE, **ours: Any) -> list[str]:
    """What is broken beside a peer that takes 1.1 times the plain run's time at 5 MiB."""
    fields = {"budget_bytes": 5 * MEBIBYTE, "predicted_peak_bytes": peak, "predicted_overhead": 0.1} | ours
    rows = (
        row(contenders.CHECKPOINT, 1.1, 5 * MEBIBYTE),
        row(contenders.EXACT, cpu, peak, **{"to_store_all": at(1.1), **fields}),
    )
    return broken_claims(
        [
            Comparison(
                network="net", families=contenders.FAMILIES, ops=1, plain_peak_bytes=10 * MEBIBYTE, targets=(0.5,),
                rounds=1, started="", cores=1, load=0.0, rows=rows, unplanned={},
            )
        ]
    )  # fmt: skip


def test_a_plan_as_fast_as_predicted_within_its_budget_breaks_no_claim() -> None:
    assert claims_of() == []
    assert claims_of(cpu=1.115) == []  # noise
    assert claims_of(to_store_all=at(1.145)) == []


@pytest.mark.parametrize(
    ("ours", "named"),
    [
        ({"cpu": 1.13}, "is faster at its peak, by 3.0 points"),
        ({"peak": 6 * MEBIBYTE}, "above its budget"),
        ({"peak": 6 * MEBIBYTE}, "for which we have no plan"),
        ({"to_store_all": at(1.16)}, "overhead off by +6.0 points"),
        ({"to_store_all": at(1.04)}, "overhead off by -6.0 points"),
        ({"predicted_peak_bytes": 5 * MEBIBYTE - 8192}, "measured peak 5242880, predicted 5234688"),
        ({"buffers_identical": False}, "not identical"),
    ],
)
def test_what_does_not_hold_is_named(ours: dict[str, Any], named: str) -> None:
    assert any(named in claim for claim in claims_of(**ours))
