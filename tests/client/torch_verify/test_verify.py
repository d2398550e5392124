"""`verify`: equal is equal to the bit, a difference is named, and nothing is left changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat
from remat.torch import Step, capture, measure
from remat.torch.attachment import Mode, planned_graphs
from remat.torch.both_ways import Outcome, first_difference
from remat_solver.errors import ApplyError, InvalidRequest, PlanMismatch, VerificationFailed
from remat_solver.options import SolveOptions
from remat_solver.plan import Plan
from remat_solver.solve import solve
from tests.client.torch_verify.models import Small, Unequal, batch


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))
    yield
    torch._dynamo.reset()


def _plan(step: Step, fraction: float = 0.8) -> Plan:
    return solve(measure(capture(step)), SolveOptions(budget_fraction=fraction, gap=0.05))


def _state(model: nn.Module) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in model.state_dict().values()]


def test_a_plan_that_recomputes_is_identical_and_meets_its_prediction() -> None:
    step = Step(Small(), args=(batch(),))
    plan = _plan(step)
    verification = remat.verify(step, plan)
    assert plan.recompute_count > 0
    assert verification.identical_to == "eager"
    assert (verification.outputs, verification.gradients, verification.buffers) == (1, 16, 3)
    assert abs(verification.peak_error) <= 0.005
    assert verification.measured_peak_bytes <= plan.budget_bytes < verification.unmodified_peak_bytes


def test_everything_is_afterwards_as_it_was() -> None:
    model = Small()
    model(batch()).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    values = [gradient.clone() for gradient in gradients if gradient is not None]
    state, random_state = _state(model), torch.get_rng_state()
    remat.verify(model, _plan(Step(model, args=(batch(),)), 1.0), batch())
    assert all(torch.equal(one, other) for one, other in zip(state, _state(model), strict=True))
    assert [parameter.grad for parameter in model.parameters()] == gradients
    assert all(torch.equal(g, v) for g, v in zip(gradients, values, strict=True) if g is not None)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert planned_graphs(model) == ()


def test_the_plan_that_a_model_runs_is_verified_and_stays() -> None:
    model = remat.compile(Small(), budget="80%", gap=0.05)
    verification = remat.verify(model, None, batch())
    assert verification.identical_to == "eager"
    assert len(planned_graphs(model)) == 1


def test_a_loss_function_belongs_to_both_sides() -> None:
    labels = torch.randint(5, (6,))
    model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 5))
    step = Step(model, args=(torch.randn(6, 4),), loss_fn=lambda scores: nn.functional.cross_entropy(scores, labels))
    assert remat.verify(step, _plan(step, 1.0)).outputs == 1
    planned = remat.compile(model, budget="100%", loss_fn=step.loss_fn)
    assert remat.verify(planned, None, *step.args).outputs == 1


def test_gradients_of_inputs_are_compared_too() -> None:
    x = torch.randn(3, 8, requires_grad=True)
    model = nn.Linear(8, 8)
    step = Step(model, args=(x,), loss_fn=torch.sum)
    assert remat.verify(step, _plan(step, 1.0)).gradients == 3
    assert x.grad is None


def test_what_tracing_changes_is_said_and_not_blamed_on_the_plan() -> None:
    step = Step(Unequal(), args=(torch.ones(2, 8),))
    verification = remat.verify(step, _plan(step, 1.0))
    assert verification.identical_to == "aot_eager"
    assert "output 0" in verification.eager_difference


class UnequalInside(Unequal):
    """The same behind a layer that keeps full precision under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            x = torch.tanh(self.first(x))
        return super().forward(x)


def test_the_trace_calls_its_backward_outside_of_autocast_too() -> None:
    model = UnequalInside()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        remat.compile(model, budget="100%")
        assert remat.verify(model, None, torch.randn(5, 8)).identical_to == "aot_eager"


def test_a_difference_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is sound, so the corruption is put into what the planned run left behind."""
    from remat.torch import verify as verify_function
    from remat.torch.both_ways import run_once

    step = Step(nn.Linear(8, 8), args=(torch.ones(2, 8),), loss_fn=torch.sum)
    plan = _plan(step, 1.0)

    def corrupted(step: Step, call: Any, loss_fn: Any) -> Outcome:
        outcome = run_once(step, call, loss_fn)
        if call is step.model:
            outcome.gradients["weight"][3, 4] += 1e-6
        return outcome

    monkeypatch.setitem(verify_function.__globals__, "run_once", corrupted)
    with pytest.raises(VerificationFailed, match="gradient of weight: 1 of 64 elements differ") as caught:
        remat.verify(step, plan)
    assert "gradient of weight" in caught.value.difference
    assert planned_graphs(step.model) == ()


def test_a_peak_that_misses_its_prediction_is_an_error() -> None:
    step = Step(Small(), args=(batch(),))
    graph = measure(capture(step))
    inflated = replace(graph, ops=tuple(replace(op, workspace_bytes=op.workspace_bytes + 2**20) for op in graph.ops))
    plan = solve(inflated, SolveOptions(budget_fraction=1.0))
    remat.apply(step.model, plan)
    model = step.model
    model._compiled_call_impl.backend._planning.measure = lambda _: inflated  # type: ignore[union-attr]
    with pytest.raises(VerificationFailed, match="predicted"):
        remat.verify(model, None, batch())


def test_without_a_plan_or_with_anothers_plan_it_says_so() -> None:
    with pytest.raises(ApplyError, match="runs no plan"):
        remat.verify(Small(), None, batch())
    other = _plan(Step(nn.Linear(2, 2), args=(torch.ones(1, 2),), loss_fn=torch.sum), 1.0)
    model = Small()
    with pytest.raises(PlanMismatch):
        remat.verify(model, other, batch())
    assert planned_graphs(model) == ()


@pytest.mark.parametrize("mode", ["eager", "pieces", "inductor"])
def test_plans_of_other_modes_are_not_mistaken_for_none(mode: Mode) -> None:
    model = remat.compile(Small(), mode=mode, budget="80%")
    call = model._compiled_call_impl
    for plan in (None, _plan(Step(Small(), args=(batch(),)), 1.0)):
        with pytest.raises(ApplyError, match=f"planned in {mode} mode.*first call"):
            remat.verify(model, plan, batch())
    assert model._compiled_call_impl is call


def test_a_step_and_arguments_at_once_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="brings its own"):
        remat.verify(Step(Small()), None, batch())


def test_first_difference_in_words() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    assert first_difference(Outcome(outputs={"output 0": nan}), Outcome(outputs={"output 0": nan.clone()})) == ""
    longer = Outcome(outputs={"output 0": torch.ones(3)})
    assert "[2] against" in first_difference(Outcome(outputs={"output 0": nan}), longer)
    assert first_difference(Outcome(gradients={"w": nan}), Outcome()) == "only one of them has the gradient of w"
    counts = (Outcome(buffers={"n": torch.tensor([1, 2])}), Outcome(buffers={"n": torch.tensor([1, 3])}))
    assert first_difference(*counts) == "buffer n: 1 of 2 elements differ"
