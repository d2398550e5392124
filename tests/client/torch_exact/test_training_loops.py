"""Loops other than forward, backward, step: the plan must not care."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from remat.torch.attachment import attach, planned_graphs
from remat.torch.backend import Backend
from tests.client.torch_exact.networks import Mlp, rows
from tests.client.torch_exact.schedules import evict_all, planner_of


def accumulate(model: nn.Module) -> None:
    """Two backwards into the same gradients."""
    model(rows()).backward()
    (model(rows()) / 2).backward()


def two_at_once(model: nn.Module) -> None:
    """Two forwards, whose backwards come in the other order."""
    first, second = model(rows()), model(rows())
    second.backward()
    torch.rand(3)
    first.backward()


def keep_the_graph(model: nn.Module) -> None:
    """Two backwards through one forward."""
    loss = model(rows())
    loss.backward(retain_graph=True)
    loss.backward()


def autocast_outside(model: nn.Module) -> None:
    """The forward runs under autocast, the backward does not."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(rows())
    loss.backward()


def never_backward(model: nn.Module) -> None:
    """A forward whose backward never comes."""
    model(rows())
    model(rows()).backward()


def by_grad(model: nn.Module) -> None:
    """torch.autograd.grad instead of backward."""
    parameters = list(model.parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(model(rows()), parameters), strict=True):
        parameter.grad = gradient


def scaled(model: nn.Module) -> None:
    """Autocast and a gradient scaler, which scales the loss and looks at the gradients."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(rows())
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()


def evaluate_between(model: nn.Module) -> None:
    """An evaluation without gradients, and one in inference mode, before the backward comes."""
    loss = model(rows())
    model.eval()
    with torch.no_grad():
        model(rows(7))
    with torch.inference_mode():
        model(rows(7))
    model.train()
    loss.backward()


def hooked(model: nn.Module) -> None:
    """Hooks on gradients, and hooks on modules that come and go after the first call."""
    handles = [parameter.register_hook(lambda gradient: gradient * 2) for parameter in model.parameters()]
    handles += [parameter.register_post_accumulate_grad_hook(_triple) for parameter in model.parameters()]
    model(rows()).backward()
    handles.append(model.get_submodule("layers.1").register_forward_hook(lambda _module, _inputs, output: output * 1.5))
    model(rows()).backward()
    for handle in handles:
        handle.remove()
    model(rows()).backward()


def _triple(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(3)


def offloaded(model: nn.Module) -> None:
    """What is saved for the backward goes through hooks of the user's."""
    with torch.autograd.graph.save_on_cpu():
        loss = model(rows())
    loss.backward()


def checkpointed_from_outside(model: nn.Module) -> None:
    """The whole planned model is a region of torch.utils.checkpoint."""
    checkpoint(model, rows(), use_reentrant=False).backward()


@pytest.mark.parametrize(
    "loop",
    [
        accumulate,
        two_at_once,
        keep_the_graph,
        autocast_outside,
        never_backward,
        by_grad,
        scaled,
        evaluate_between,
        hooked,
        offloaded,
        checkpointed_from_outside,
    ],
    ids=lambda f: f.__name__,
)
def test_the_loop_gives_the_same_gradients(loop: Callable[[nn.Module], None]) -> None:
    gradients: list[list[Tensor | None]] = []
    for planned in (False, True):
        torch.manual_seed(5)
        model = Mlp()
        if planned:
            attach(model, Backend(model=model, planner=planner_of(evict_all), measure=lambda graph: graph))
        for _ in range(2):
            loop(model)
        gradients.append([parameter.grad for parameter in model.parameters()] + [torch.rand(1)])
        if planned:
            assert planned_graphs(model)[0].plan.recompute_count > 0
    for eager, ours in zip(*gradients, strict=True):
        assert eager is not None
        assert ours is not None
        assert torch.equal(eager, ours)
