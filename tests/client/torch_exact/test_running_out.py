"""Out of memory in spite of a plan: the step comes out as if it had fitted, and the next plan is smaller."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed._functional_collectives import all_reduce
from torch.nn.utils import parametrizations

import remat
from remat.torch import exact_call, random_state, running_out
from remat.torch.attachment import planned_graphs
from remat.torch.running_out import Shortage, is_out_of_memory, shortage_of, smaller_budget
from remat_solver.errors import InfeasibleBudget, InvalidRequest, NoPlanInTime
from tests.client.torch_exact.networks import rows

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # PyTorch's own, where it traces `scale`

WIDTH = 16
failures: Counter[str] = Counter()
"""How many of the next runs of `scale` in each phase ask the allocator for more than there is."""


@torch.library.custom_op("remat_tests::scale", mutates_args=())
def scale(x: Tensor, phase: str) -> Tensor:
    if failures[phase] > 0:
        failures[phase] -= 1
        torch.empty(2**55, dtype=torch.uint8)
    if failures[f"{phase} otherwise"] > 0:
        failures[f"{phase} otherwise"] -= 1
        raise RuntimeError("another failure")
    return x * 1.5


@scale.register_fake
def _(x: Tensor, phase: str) -> Tensor:
    return torch.empty_like(x)


scale.register_autograd(lambda ctx, gradient: (scale(gradient, "backward"), None))


class Network(nn.Module):
    """Random ops, and buffers that each forward reads and replaces."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))
        self.norm = nn.BatchNorm1d(WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = scale(self.norm(self.first(x)), "forward")
        for layer in self.layers:
            x = self.dropout(torch.relu(layer(x)))
        return x.square().sum()


@pytest.fixture(autouse=True)
def _enough_memory() -> Iterator[None]:
    failures.clear()
    yield
    failures.clear()


def train(model: nn.Module, failing: dict[str, int], budgets: list[int] | None = None) -> list[Tensor]:
    """Three steps; in the second memory runs out. Losses, gradients, buffers and the random state.

    `budgets` gets that of the plan after each step.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1)
    seen = []
    for turn in range(3):
        failures.update(failing if turn == 1 else {})
        loss = model(rows(40))
        loss.backward()
        seen += [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
        if budgets is not None:
            budgets.append(planned_graphs(model)[-1].plan.budget_bytes)
    return [*seen, *(buffer.clone() for buffer in model.buffers()), torch.get_rng_state()]


def planned(**settings: Any) -> nn.Module:
    return remat.compile(Network(), **{"budget": "95%", "on_oom": "replan", "gap": 0.01, **settings})


def are_equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.parametrize("failing", [{"forward": 1}, {"backward": 1}, {"backward": 2}], ids=str)
def test_a_step_that_runs_out_comes_out_as_if_it_had_fitted(
    failing: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    model = planned()
    budgets: list[int] = []
    with caplog.at_level(logging.WARNING, logger="remat"):
        assert are_equal(train(Network(), {}), train(model, failing, budgets))
    assert sum(failures.values()) == 0
    assert caplog.text.count("out of memory with a plan for") == sum(failing.values())
    assert budgets[0] > budgets[1] == budgets[2]
    (record,) = planned_graphs(model)
    assert record.plan.recompute_count


@pytest.mark.parametrize("what", ["random state", "buffers"])
def test_without_what_is_kept_the_numbers_would_differ(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if what == "random state":
        monkeypatch.setattr(running_out.random_state, "write", lambda *_: None)
        monkeypatch.setattr(random_state.Replay, "__call__", lambda self, _state, *args, **kw: self.target(*args, **kw))
    else:
        guard = running_out.Repeatable.guard_forward

        def guard_without_copies(self: running_out.Repeatable, run: Any) -> Any:
            self.joint = replace(self.joint, mutated_inputs=frozenset())
            return guard(self, run)

        monkeypatch.setattr(running_out.Repeatable, "guard_forward", guard_without_copies)
        monkeypatch.setattr(running_out, "_versions", lambda _inputs: [])
    expected = train_first_two(Network(), {})
    assert not are_equal(expected, train_first_two(planned(), {"backward": 1}))


def train_first_two(model: nn.Module, failing: dict[str, int]) -> list[Tensor]:
    torch.manual_seed(1)
    model(rows(40)).backward()
    model.zero_grad()
    failures.update(failing)
    model(rows(40)).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def test_the_random_state_after_a_repeated_backward_is_that_before_it() -> None:
    model = planned()
    model(rows(40)).backward()
    torch.manual_seed(1)
    loss = model(rows(40))
    torch.rand(3)  # what the loop draws between forward and backward is drawn once
    before = torch.get_rng_state()
    failures["backward"] = 1
    loss.backward()
    assert torch.equal(torch.get_rng_state(), before)


def test_no_step_is_repeated_that_failed_otherwise() -> None:
    model = planned()
    model(rows(40)).backward()
    loss = model(rows(40))
    failures["backward otherwise"] = 1
    with pytest.raises(RuntimeError, match="another failure"):
        loss.backward()


def test_no_step_is_repeated_from_what_has_changed_since() -> None:
    model = planned()
    model(rows(40)).backward()
    loss = model(rows(40))
    with torch.no_grad():
        model.get_parameter("layers.0.bias").add_(1)  # which no backward reads, but a forward does
    failures["backward"] = 1
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        loss.backward()


def test_a_repeated_step_is_not_cast_by_what_surrounds_its_backward() -> None:
    gradients = []
    for failing in (0, 1):
        model = planned()
        torch.manual_seed(1)
        model(rows(40)).backward()
        model.zero_grad()
        loss = model(rows(40))
        failures["backward"] = failing
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bool(failing)):
            loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert are_equal(*gradients)


def test_a_backward_after_a_later_forward_is_not_repeated() -> None:
    model = planned()
    model(rows(40)).backward()
    model.zero_grad()
    first, second = model(rows(40)), model(rows(40))
    failures["backward"] = 1
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        first.backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    second.backward()
    assert len(planned_graphs(model)) == 1


def test_the_forward_of_a_sharded_model_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    model = planned()
    model(rows(40)).backward()
    monkeypatch.setattr(exact_call, "is_sharded", lambda _model: True)  # its hooks would wait for the other ranks
    failures["forward"] = 1
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        model(rows(40))


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_what_ranks_do_together_is_not_repeated(phase: str) -> None:
    class Together(Network):
        def forward(self, x: Tensor) -> Tensor:
            summed: Tensor = all_reduce(super().forward(x), "sum", distributed.group.WORLD)
            return summed

    model = remat.compile(Together(), budget="95%", on_oom="replan", gap=0.01)
    model(rows(40)).backward()
    failures[phase] = 1
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        model(rows(40)).backward()


def test_where_nothing_smaller_fits_that_is_said() -> None:
    model = planned(time_limit_s=1)
    model(rows(40)).backward()
    model.zero_grad()
    loss = model(rows(40))
    failures["backward"] = 100
    with pytest.raises((InfeasibleBudget, NoPlanInTime)):
        loss.backward()


def test_without_replan_it_raises_as_ever() -> None:
    model = planned(on_oom="raise")
    model(rows(40)).backward()
    failures["backward"] = 1
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        model(rows(40)).backward()


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="on_oom 'retry' is unknown"):
        planned(on_oom="retry")
    plan = remat.solve(remat.capture(remat.torch.Step(Network(), (rows(40),))), budget_fraction=0.95)
    with pytest.raises(InvalidRequest, match="a given plan can't be planned again"):
        planned(budget=None, plan=plan)
    with pytest.raises(InvalidRequest, match="eager mode takes no on_oom"):
        planned(mode="eager", gap=0.1)


def test_what_an_error_says_about_the_shortage() -> None:
    error = torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 8 GiB."
    )
    assert is_out_of_memory(error)
    assert shortage_of(error, torch.device("cpu")) == Shortage(held_bytes=None, requested_bytes=3 * 2**29)
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**55, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def test_the_next_budget_is_below_what_there_was() -> None:
    assert smaller_budget(1000, 200, Shortage(held_bytes=None, requested_bytes=0)) == 919
    assert smaller_budget(1000, 200, Shortage(held_bytes=600, requested_bytes=100)) == 649
    assert smaller_budget(1000, 200, Shortage(held_bytes=5000, requested_bytes=100)) == 919
