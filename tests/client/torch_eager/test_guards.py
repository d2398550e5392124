"""What a model may do between its plan and its backward: it trains as without a plan, or it is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import remat
from remat.torch.attachment import eager_plans
from remat.torch.eager import rerun, survey
from remat.torch.step import Step
from remat_solver.errors import ApplyError
from tests.client.torch_eager.networks import WIDTH, Chain, rows
from tests.client.torch_eager.test_eager import least_budget, with_regions
from tests.client.torch_eager.test_eager import planned as planned_with_plan
from tests.client.torch_exact.training import Case, differences, seeded_model


class Mixing(nn.Module):
    """A product between two functions; what is in between is for those that inherit."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.register_buffer("seen", torch.zeros(WIDTH))
        self.told = False

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.between(self.mix(x).exp()))

    def between(self, x: Tensor) -> Tensor:
        return x


class Residual(nn.Module):
    """Adds in place behind a BatchNorm, which counts its batches in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x)).add_(x)).tanh()  # type: ignore[no-any-return]


class Counting(Mixing):
    """Counts in place until it is told to stop, then adds in place."""

    def between(self, x: Tensor) -> Tensor:
        if not self.told:
            self.seen.add_(1)
        return self.mix(x.mul(2).add_(1))


class CountingThroughViews(Mixing):
    """Counts in place through a view of a buffer once it is told to."""

    def between(self, x: Tensor) -> Tensor:
        if self.told:
            self.seen.view(2, -1)[0].add_(1)
        return x


class Tabulating(Mixing):
    """Makes a table in its first call, and finds it in all others: the result is the same, the ops are not."""

    table: Tensor | None = None

    def between(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(WIDTH).mul(2).cos()
        return x * self.table


class CountingLater(Mixing):
    """Counts in place once it is told to."""

    def between(self, x: Tensor) -> Tensor:
        if self.told:
            self.seen.add_(1)
        return x


class Drawing(Mixing):
    """Draws once, and once more when it is told to."""

    def between(self, x: Tensor) -> Tensor:
        x = torch.sin(x * torch.rand_like(x))
        return torch.sin(x * torch.rand_like(x)) if self.told else x


class PythonsNumbers(Mixing):
    """Draws from Python's generator, which no recompute sets back."""

    def between(self, x: Tensor) -> Tensor:
        return x * random.uniform(1, 2)


class NumPysNumbers(Mixing):
    """Draws from NumPy's generator, which no recompute sets back."""

    def between(self, x: Tensor) -> Tensor:
        return x * float(np.random.uniform(1, 2))


class Packed(Mixing):
    """Takes its input inside a list."""

    def forward(self, x: Any) -> Tensor:
        return super().forward(x[0])


class ChangesPacked(Chain):
    """Changes what it handed to a block in a list, after the block ran."""

    def forward(self, x: Tensor) -> Tensor:
        packed = [x + 0]
        y = self.blocks[1](self.blocks[0](packed))
        with torch.no_grad():
            packed[0].add_(1)
        return y.square().mean()  # type: ignore[no-any-return]


def chain(block: Callable[[], nn.Module]) -> Case:
    return Case(name="", model=lambda: Chain(*(block() for _ in range(4))), batch=lambda _: (rows(),))


def after_a_change(model: nn.Module, change: Callable[[nn.Module], Any]) -> dict[str, Tensor]:
    """One step, in which a plan is made, then the change, then what a second step leaves behind."""
    for seed in range(2):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        model.zero_grad()
        loss = model(rows())
        loss.backward()
        if seed == 0:
            change(model)
    seen = {f"gradient {name}": parameter.grad for name, parameter in model.named_parameters()}
    return {"loss": loss.detach()} | seen | dict(model.named_buffers())  # type: ignore[dict-item]


def planned(case: Case, budget: str = "80%") -> nn.Module:
    return remat.compile(seeded_model(case), mode="eager", budget=budget)


def tell(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, Mixing):
            module.told = True


def freeze_statistics(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()


class OwnNorm(Mixing):
    """Normalises by PyTorch's function, which counts no batches, and by statistics of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("variance", torch.ones(WIDTH))

    def between(self, x: Tensor) -> Tensor:
        return functional.batch_norm(x, self.get_buffer("mean"), self.get_buffer("variance"), training=True)


class Doubling(Mixing):
    """Changes in place what a plan must not save."""

    def between(self, x: Tensor) -> Tensor:
        return torch.sin(x.mul(2).add_(1))


def nothing(_model: nn.Module) -> None:
    pass


@pytest.mark.parametrize("block", [Counting, CountingLater, CountingThroughViews])
def test_in_place_ops_that_come_and_go_are_passed_over_by_what_they_write(block: Callable[[], nn.Module]) -> None:
    case = chain(block)
    model = planned(case)
    assert differences(after_a_change(seeded_model(case), tell), after_a_change(model, tell)) == []
    (plan,) = eager_plans(model)
    assert any(region is not None for region in plan.regions.values())
    assert all(region is None or region.has_side_effects is (block is Counting) for region in plan.regions.values())


def test_what_takes_other_ops_the_second_time_is_not_recomputed() -> None:
    model = Tabulating()
    step = Step(nn.Sequential(model), (rows(),))
    assert "a second time" in survey.survey(step, {"0": model})["0"].obstacle
    assert survey.survey(step, {"0": model})["0"].obstacle == ""  # now it has its table


def test_what_is_compiled_inside_is_refused_and_stays() -> None:
    case = chain(Mixing)
    model = planned(case)
    block = model.get_submodule("blocks.2")
    block.compile(backend="eager")
    compiled = block._compiled_call_impl
    with pytest.raises(ApplyError, match=r"blocks.2 is compiled already"):
        model(rows())
    assert block._compiled_call_impl is compiled


def test_another_plan_is_made_where_modules_stop_training() -> None:
    case = chain(Residual)
    model = planned(case)
    frozen = after_a_change(seeded_model(case), freeze_statistics)
    assert differences(frozen, after_a_change(model, freeze_statistics)) == []
    assert len(eager_plans(model)) == 2


def test_statistics_that_nothing_else_gives_away_are_updated_once() -> None:
    """They are changed behind PyTorch's back: their versions stay."""
    case = chain(OwnNorm)
    assert differences(after_a_change(seeded_model(case), nothing), after_a_change(planned(case), nothing)) == []


def test_a_saved_result_that_was_changed_in_place_is_refused() -> None:
    case = chain(Doubling)
    plan = planned_with_plan(case, "80%")[1]
    loss = with_regions(case, plan, saved=frozenset({("aten.mul.Tensor", 0)}))(rows())
    with pytest.raises(ApplyError, match=r"a result of aten.mul.Tensor .* was changed in place"):
        loss.backward()


def test_a_second_backward_through_saved_results_is_refused() -> None:
    case = chain(Mixing)
    plan = planned_with_plan(case, "80%")[1]
    loss = with_regions(case, plan, saved=frozenset({("aten.exp.default", 0)}))(rows())
    loss.backward(retain_graph=True)
    with pytest.raises(ApplyError, match="a second backward"):
        loss.backward()


def test_what_a_second_run_takes_beside_its_ops_is_in_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "rerun_ns", lambda *_args, **_flags: 10**10)
    plan = planned_with_plan(chain(Mixing), "80%")[1]
    again = [region for region in plan.regions.values() if region is not None]
    assert again
    assert all(0 <= 10**10 - region.recompute_ns < 10**9 for region in again)  # less what is saved
    assert plan.recompute_ns == sum(region.recompute_ns for region in again)


def test_timing_a_second_run_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "rerun_ns", rerun.rerun_ns)
    model = nn.Sequential(Residual())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    step = Step(model, (rows(),))
    state = torch.get_rng_state()
    survey.survey(step, {"0": model.get_submodule("0")})
    assert int(model.get_buffer("0.norm.num_batches_tracked")) == 1  # the survey runs the model itself, once
    assert {name for name in differences(before, model.state_dict()) if "norm" not in name} == set()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(state, torch.get_rng_state())


def test_a_second_backward_finds_its_buffers_as_the_first_one_did() -> None:
    """Passing over a write leaves a mark on what it would have changed."""
    case = chain(Residual)
    gradients = []
    for model in (seeded_model(case), planned(case, str(least_budget(case)))):
        torch.manual_seed(0)
        loss = model(rows())
        loss.backward(retain_graph=True)
        loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert differences(*gradients) == []  # type: ignore[arg-type]


def test_a_draw_more_behind_a_saved_random_result_is_refused() -> None:
    case = chain(Drawing)
    model = planned(case, "90%")
    assert differences(after_a_change(seeded_model(case), nothing), after_a_change(model, nothing)) == []
    assert any(region is not None and region.draws for region in eager_plans(model)[0].regions.values())
    with pytest.raises(ApplyError, match="drew random numbers 2 times"):
        after_a_change(model, tell)


@pytest.mark.parametrize("block", [PythonsNumbers, NumPysNumbers])
def test_what_draws_numbers_that_no_recompute_repeats_is_not_recomputed(block: Callable[[], nn.Module]) -> None:
    model = block()
    step = Step(nn.Sequential(model), (rows(),))
    assert "a second time" in survey.survey(step, {"0": model})["0"].obstacle
    assert survey.survey(step, {"0.mix": model.get_submodule("mix")})["0.mix"].obstacle == ""


def test_an_argument_in_a_list_that_is_changed_before_the_recompute_is_refused() -> None:
    case = Case(name="", model=lambda: ChangesPacked(Packed(), Mixing()), batch=lambda _: (rows(),))
    with pytest.raises(ApplyError, match=r"that blocks.0.* read was changed in place after it ran"):
        after_a_change(planned(case, "60%"), nothing)


def test_a_parameter_that_is_changed_before_the_recompute_is_refused() -> None:
    """Autograd itself would not mind: no gradient needs a bias."""
    model = planned(chain(Mixing))
    loss = model(rows())
    (plan,) = eager_plans(model)
    path = next(path for path, region in plan.regions.items() if region is not None)
    with torch.no_grad():
        next(p for name, p in model.get_submodule(path).named_parameters() if name.endswith("bias")).add_(0.5)
    with pytest.raises(ApplyError, match=rf"that {path} read was changed in place after it ran"):
        loss.backward()
