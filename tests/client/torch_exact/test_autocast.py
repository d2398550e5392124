"""Models whose training loop casts: the forward under autocast, the backward outside."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import remat
from remat.torch import autocast, both_ways, joint_capture
from remat.torch.attachment import Mode, attach, eager_plans, planned_graphs
from remat.torch.backend import Backend
from tests.client.torch_exact.networks import WIDTH, rows
from tests.client.torch_exact.schedules import evict_all, planner_of


class FullPrecisionInside(nn.Module):
    """A layer that keeps full precision in spite of autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = nn.Linear(WIDTH, 2 * WIDTH)
        self.inner = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.outer(x))
        with torch.autocast("cpu", enabled=False):
            return self.inner(hidden.float()).square().mean()  # type: ignore[no-any-return]


def under_autocast(model: nn.Module) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(rows())  # type: ignore[no-any-return]


def gradients(train: Callable[[nn.Module], None], *, planned: bool) -> list[Tensor | None]:
    torch.manual_seed(3)
    model = FullPrecisionInside()
    if planned:
        attach(model, Backend(model=model, planner=planner_of(evict_all), measure=lambda graph: graph))
    train(model)
    assert len(planned_graphs(model)) == planned
    return [parameter.grad for parameter in model.parameters()]


def backward_outside(model: nn.Module) -> None:
    for _ in range(2):
        model.zero_grad()
        under_autocast(model).backward()


def backward_inside(model: nn.Module) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(2):
            model.zero_grad()
            model(rows()).backward()


def equal(ones: list[Tensor | None], others: list[Tensor | None]) -> bool:
    pairs = zip(ones, others, strict=True)
    return all(one is not None and other is not None and torch.equal(one, other) for one, other in pairs)


def test_what_keeps_full_precision_keeps_it_in_the_backward(caplog: pytest.LogCaptureFixture) -> None:
    eager = gradients(backward_outside, planned=False)
    assert equal(eager, gradients(backward_outside, planned=True))
    assert "under autocast" not in caplog.text


def test_without_tracing_the_backward_outside_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    eager = gradients(backward_outside, planned=False)
    monkeypatch.setattr(joint_capture, "backward_traced_outside", contextlib.nullcontext)
    assert not equal(eager, gradients(backward_outside, planned=True))


def test_a_backward_under_autocast_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    autocast._warn.cache_clear()
    seen = gradients(backward_inside, planned=True)
    assert caplog.text.count("backward() was called under autocast") == 1
    assert equal(seen, gradients(backward_outside, planned=False))


@pytest.mark.parametrize("mode", ["exact", "eager", "pieces"])
def test_plans_made_under_autocast_are_verified(mode: Mode) -> None:
    torch.manual_seed(3)
    model = remat.compile(nn.Sequential(nn.Sequential(FullPrecisionInside())), mode=mode, budget="100%", verify=True)
    under_autocast(model).backward()


def test_trial_steps_call_their_backward_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    model = remat.compile(FullPrecisionInside(), budget="100%")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert remat.verify(model, None, rows()).identical_to == "eager"
        monkeypatch.setattr(both_ways, "outside_autocast", contextlib.nullcontext)
        assert remat.verify(model, None, rows()).identical_to == "aot_eager"


def test_in_eager_mode_calls_with_and_without_autocast_have_plans_of_their_own() -> None:
    torch.manual_seed(3)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)]
    model = remat.compile(nn.Sequential(*layers), mode="eager", budget="100%")
    for _ in range(2):
        under_autocast(model).square().mean().backward()
        model(rows()).square().mean().backward()
    assert len(eager_plans(model)) == 2
