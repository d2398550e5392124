"""What people do with a model besides calling it: save, load, copy, freeze, adapt, and train for long."""

from __future__ import annotations

import copy
import gc
import io
import logging
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import remat
from remat.torch.attachment import attach, planned_graphs
from remat.torch.backend import Backend
from remat_solver.errors import GraphBreak
from tests.client.torch_exact.networks import CASES, WIDTH, Attention, Checkpointed, Mlp, rows
from tests.client.torch_exact.schedules import evict_all, planner_of
from tests.client.torch_exact.training import Case, differences, seeded_model, train, train_planned

BATCH_NORM = CASES[1]


def planned(model: nn.Module) -> nn.Module:
    """The model under a plan that recomputes all it can."""
    attach(model, Backend(model=model, planner=planner_of(evict_all), measure=lambda graph: graph))
    return model


class LowRank(nn.Module):
    """A frozen matrix with a trained update of low rank, as LoRA has it."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(WIDTH, 2, bias=False)
        self.up = nn.Linear(2, WIDTH, bias=False)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + 0.5 * self.up(self.down(self.dropout(x)))  # type: ignore[no-any-return]


def adapted() -> nn.Module:
    """A chain of which only low-rank updates are trained."""
    model = Mlp().requires_grad_(False)
    for index in range(len(model.layers)):
        model.layers[index] = LowRank(model.get_submodule(f"layers.{index}"))  # type: ignore[arg-type]
    return model


def test_low_rank_updates_of_frozen_weights() -> None:
    case = Case(name="lora", model=adapted, batch=lambda _: (rows(),))
    seen, (record,) = train_planned(case, evict_all)
    assert differences(train(case, seeded_model(case)), seen) == []
    assert record.plan.recompute_count > 0
    assert not [name for name in seen if "gradient" in name and "frozen" in name]


@pytest.mark.parametrize("kernel", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], ids=lambda kernel: kernel.name)
def test_the_attention_kernel_that_was_asked_for_runs(kernel: SDPBackend) -> None:
    case = Case(name="attention", model=lambda: Attention(0.2), batch=lambda _: (torch.randn(2, 6, WIDTH),))
    with sdpa_kernel([kernel, SDPBackend.MATH]):
        seen, (record,) = train_planned(case, evict_all)
        assert differences(train(case, seeded_model(case)), seen) == []
    plain = Case(name="attention", model=Attention, batch=lambda _: (torch.randn(2, 6, WIDTH),))
    with sdpa_kernel([kernel]):
        seen, (record,) = train_planned(plain, evict_all)
        assert differences(train(plain, seeded_model(plain)), seen) == []
    is_fused = any("flash_attention" in op.signature for op in record.graph.ops)
    assert is_fused == (kernel is SDPBackend.FLASH_ATTENTION)


def test_parameters_frozen_after_a_step_are_planned_anew() -> None:
    gradients = []
    for wrap in (lambda model: model, planned):
        torch.manual_seed(0)
        model = wrap(Mlp())
        model(rows()).backward()
        model.zero_grad()
        model.get_submodule("layers.0").requires_grad_(False)
        model(rows()).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for eager, ours in zip(*gradients, strict=True):
        assert (eager is None and ours is None) or torch.equal(eager, ours)
    assert gradients[1][0] is None
    assert len(planned_graphs(model)) == 2


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    torch.manual_seed(seed)
    optimizer.zero_grad()
    model(*BATCH_NORM.batch(seed)).backward()
    optimizer.step()


def _trained_with_a_stop(wrap: Callable[[nn.Module], nn.Module]) -> dict[str, Any]:
    """Two steps, everything through a file into new objects, and two more steps."""
    file = io.BytesIO()
    for seeds in ((0, 1), (2, 3)):
        model = wrap(seeded_model(BATCH_NORM))
        optimizer = torch.optim.AdamW(model.parameters())
        if file.tell():
            file.seek(0)
            saved = torch.load(file)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        for seed in seeds:
            _step(model, optimizer, seed)
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    return model.state_dict()


def test_training_goes_on_from_a_checkpoint_file() -> None:
    expected = _trained_with_a_stop(lambda model: model)
    seen = _trained_with_a_stop(planned)
    assert list(seen) == list(expected)
    assert differences(expected, seen) == []


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_is_the_model_without_the_plan(copied: Callable[[nn.Module], nn.Module]) -> None:
    model = planned(seeded_model(BATCH_NORM))
    batch = BATCH_NORM.batch(0)
    model(*batch).backward()
    twin = copied(model)
    assert planned_graphs(twin) == ()
    assert len(planned_graphs(model)) == 1
    assert torch.equal(twin(*batch), model(*batch))
    with torch.no_grad():
        next(iter(twin.parameters())).zero_()
    assert not torch.equal(twin(*batch), model(*batch))
    remat.compile(twin, budget="100%")
    twin(*batch).backward()
    assert len(planned_graphs(twin)) == 1


def test_regions_of_the_models_own_are_said_to_give_way(caplog: pytest.LogCaptureFixture) -> None:
    model = planned(Checkpointed())
    with caplog.at_level(logging.WARNING, "remat"):
        model(rows()).backward()
    assert [record.message for record in caplog.records if "3 regions of torch.utils.checkpoint" in record.message]
    assert "3 checkpoint regions of the model's own gave way" in str(remat.report(model))
    assert planned_graphs(planned(Mlp())) == ()


def test_module_backward_hooks_are_refused_with_a_way_out() -> None:
    model = planned(Mlp())
    model.get_submodule("layers.1").register_full_backward_hook(lambda _module, _inputs, _outputs: None)
    with pytest.raises(GraphBreak, match="Put hooks on tensors or parameters"):
        model(rows())


def test_long_training_leaves_nothing_behind() -> None:
    model = planned(Mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def things_after(count: int) -> tuple[int, int]:
        for _ in range(count):
            optimizer.zero_grad()
            model(rows()).backward()
            optimizer.step()
        gc.collect()
        things = gc.get_objects()
        return sum(issubclass(type(thing), Tensor) for thing in things), len(things)

    tensors, things = things_after(20)
    more_tensors, more_things = things_after(180)
    assert more_tensors <= tensors
    assert more_things < things + 180  # one for each step would be a leak
