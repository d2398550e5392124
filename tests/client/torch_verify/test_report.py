"""`report`: counts that add up, for people and for machines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import remat
from remat.torch import planned_graphs
from remat.torch.report import RecomputedOp, SavedValue, saved_values
from remat_solver.errors import ApplyError
from remat_solver.graph import Graph, Op, Value
from remat_solver.simulate import simulate
from tests.client.torch_verify.models import Small, batch


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))
    yield
    torch._dynamo.reset()


def _chain() -> Graph:
    """Forward a, b, c; backward of c, b, a, each of which reads its forward value."""
    value = (Value(size_bytes=10),)
    return Graph(
        ops=(
            Op(name="a", time_ns=1, writes=value, phase="forward"),
            Op(name="b", time_ns=2, reads=(0,), writes=value, phase="forward"),
            Op(name="c", time_ns=3, reads=(1,), writes=value, phase="forward"),
            Op(name="dc", time_ns=1, reads=(2,), writes=value, phase="backward"),
            Op(name="db", time_ns=1, reads=(1, 3), writes=value, phase="backward"),
            Op(name="da", time_ns=1, reads=(0, 4), writes=value, phase="backward"),
        ),
        outputs=(5,),
    )


def test_saved_is_what_the_backward_reads_from_the_forward() -> None:
    graph = _chain()
    assert [value.name for value in saved_values(graph, (0, 1, 2, 3, 4, 5))] == ["a", "b", "c"]
    recomputing_b = (0, 1, 2, 3, 1, 4, 5)
    simulate(graph, recomputing_b)
    assert saved_values(graph, recomputing_b) == [
        SavedValue(name="a", size_bytes=10),
        SavedValue(name="c", size_bytes=10),
    ]


def test_a_planned_model_is_reported_with_and_without_a_batch() -> None:
    model = remat.compile(Small(), budget="80%", gap=0.05)
    with pytest.raises(ApplyError, match="no plan runs"):
        remat.report(model)
    measured = remat.report(model, batch()).graphs[0]
    (record,) = planned_graphs(model)
    assert measured.measured_peak_bytes == pytest.approx(measured.predicted_peak_bytes, rel=0.005)
    assert measured.measured_peak_bytes <= measured.budget_bytes < measured.store_all_peak_bytes
    assert measured.recompute_count == record.plan.recompute_count > 0
    assert measured.runs_requested == measured.runs_built
    assert measured.recompute_ns == record.plan.time_ns - record.plan.store_all_time_ns
    assert all(isinstance(op, RecomputedOp) and op.recomputes >= 1 for op in measured.recomputed)
    assert measured.saved_bytes >= sum(value.size_bytes for value in measured.saved)
    assert remat.report(model).graphs[0].measured_peak_bytes is None


def test_it_prints_for_people_and_dumps_for_machines() -> None:
    model = remat.compile(Small(), budget="80%", gap=0.05)
    report = remat.report(model, batch())
    text = str(report)
    for words in ("budget", "predicted peak", "measured peak", "saved:", "recomputed:", "requested", "gap"):
        assert words in text
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["graphs"][0]["budget_bytes"] == report.graphs[0].budget_bytes
