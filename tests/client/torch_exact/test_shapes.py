"""Several input shapes: a plan for each, shared within a bucket, and no more than the cap."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import remat
from remat.torch.attachment import attach, planned_graphs
from remat.torch.backend import Backend
from remat.torch.shapes import bucketing
from remat_solver.errors import CaptureError, InvalidRequest
from remat_solver.graph import Graph
from remat_solver.options import SolveOptions
from remat_solver.plan import Plan
from remat_solver.solve import solve
from tests.client.torch_exact.networks import Mlp, rows
from tests.client.torch_exact.schedules import evict_all, planner_of


def trained(model: nn.Module, sizes: list[int]) -> list[Tensor]:
    """Losses and gradients of a step with each batch size."""
    seen = []
    for seed, size in enumerate(sizes):
        torch.manual_seed(seed)
        model.zero_grad()
        loss = model(rows(size))
        loss.backward()
        seen += [loss.detach(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]
    return seen


def asked_sizes(sizes: list[int], fraction: float) -> tuple[list[int], nn.Module]:
    """The fixed bytes of the graphs that the planner was asked about, in order, and the model."""
    asked: list[int] = []
    options = SolveOptions(budget_fraction=fraction)
    planner = planner_of(evict_all) if fraction < 0.5 else lambda graph: solve(graph, options)

    def noting(graph: Graph) -> Plan:
        asked.append(graph.fixed_bytes)
        return planner(graph)

    torch.manual_seed(0)
    model = Mlp()
    bucket = bucketing(noting, options)
    attach(model, Backend(model=model, planner=bucket, measure=lambda graph: graph))
    torch.manual_seed(0)
    plain = Mlp()
    assert all(torch.equal(one, two) for one, two in zip(trained(plain, sizes), trained(model, sizes), strict=True))
    return asked, model


def test_a_smaller_shape_of_the_bucket_takes_the_known_plan() -> None:
    asked, model = asked_sizes([1000, 900, 800, 1000], 0.9)
    assert len(asked) == 1
    first, *others = planned_graphs(model)
    assert [record.plan.provenance.strategy for record in others] == ["bucket", "bucket"]
    for record in others:
        assert record.plan.schedule == first.plan.schedule
        assert record.predicted_peak_bytes <= record.plan.budget_bytes < record.plan.store_all_peak_bytes
        assert record.plan.peak_bytes < first.plan.peak_bytes


@pytest.mark.parametrize(
    ("sizes", "fraction"),
    [([1000, 500], 0.9), ([900, 1000], 0.9), ([1000, 900], 0.01), ([1000, 900], 1.0)],
    ids=["far smaller", "larger", "over the budget", "needs no plan"],
)
def test_any_other_shape_is_solved(sizes: list[int], fraction: float) -> None:
    asked, _ = asked_sizes(sizes, fraction)
    assert len(asked) == 2


def test_the_cap_is_said_and_the_planned_shapes_go_on() -> None:
    model = remat.compile(Mlp(), budget="100%", max_shapes=2)
    for size in (3, 4):
        model(rows(size)).backward()
    with pytest.raises(CaptureError, match="raise max_shapes"):
        model(rows(5))
    model(rows(3)).backward()
    assert len(planned_graphs(model)) == 2


class Annealed(Mlp):
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return super().forward(x) * scale


def test_a_number_that_changes_at_each_step_is_named_as_a_cause() -> None:
    model = remat.compile(Annealed(), budget="100%", max_shapes=2)
    for scale in (1.0, 0.5):
        model(rows(), scale=scale)
    with pytest.raises(CaptureError, match=r"numbers among arguments.*\. .*make numbers that change .* tensors"):
        model(rows(), scale=0.25)
    model = remat.compile(Annealed(), budget="100%", max_shapes=1)
    for scale in (1.0, 0.5, 0.25):
        model(rows(), scale=torch.tensor(scale))


@pytest.mark.parametrize(
    "question",
    [
        {"budget": "80%", "shapes": "some"},
        {"budget": "80%", "max_shapes": 0},
        {"max_overhead": "10%", "shapes": "bucket"},
    ],
)
def test_policies_without_sense_are_refused(question: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        remat.compile(Mlp(), **question)  # type: ignore[arg-type]


def test_the_policy_is_asked_for_by_name() -> None:
    model = remat.compile(Mlp(), budget="90%", shapes="bucket")
    for size in (4000, 3900):
        model(rows(size)).backward()
    assert [record.plan.provenance.strategy == "bucket" for record in planned_graphs(model)] == [False, True]
