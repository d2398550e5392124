"""What is in memory whatever the plan: weights, buffers, the batch, gradients and optimizer state."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from remat.torch.allocation import distinct_bytes, tensors_in
from remat.torch.untraced import run_untraced

_PLAIN_LOOP = {"foreach": False, "fused": None, "capturable": False}
"""Settings that change how an optimizer runs, not what it keeps; these run on the meta device."""


def model_tensors(model: nn.Module) -> list[torch.Tensor]:
    """Parameters, buffers, and the gradients that exist now."""
    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return [*parameters, *model.buffers(), *gradients]


def resident_bytes(
    tensors: Iterable[torch.Tensor], optimizer: torch.optim.Optimizer | None, device: torch.device
) -> int:
    """What `tensors` and the optimizer's state hold on `device`, each storage counted once."""
    if optimizer is None:
        return distinct_bytes(tensors, device)
    state = tensors_in(dict(optimizer.state))
    if state:
        return distinct_bytes([*tensors, *state], device)
    estimate = run_untraced(lambda _stop: estimated_state_bytes(optimizer, device))
    return distinct_bytes(tensors, device) + estimate


def fixed_bytes(
    known: Iterable[torch.Tensor],
    taken_in: Iterable[torch.Tensor],
    optimizer: torch.optim.Optimizer | None,
    device: torch.device,
) -> int:
    """What stays in memory whatever the plan: the model and its batch, but at least what the graph takes in.

    Labels that only a loss function knows are among the latter; the two can't be matched tensor by tensor,
    because tracing replaces what it takes in by stand-ins.
    """
    inputs = list(taken_in)
    gradients = [tensor.grad for tensor in inputs if tensor.grad is not None]
    return max(resident_bytes(tensors, optimizer, device) for tensors in (known, [*inputs, *gradients]))


def estimated_state_bytes(optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """What the optimizer's state will hold after its first step.

    Found by letting a twin take that step on tensors without data. An optimizer that refuses is taken for
    one that keeps two tensors per parameter, like Adam.
    """
    shapes = [(group, [p for p in group["params"] if p.requires_grad]) for group in optimizer.param_groups]
    try:
        twin = _twin(optimizer, shapes)
        twin.step()
    except Exception:
        return 2 * distinct_bytes([parameter for _, parameters in shapes for parameter in parameters], device)
    total = 0
    for state in twin.state.values():
        for tensor in tensors_in(dict(state)):
            on_device = tensor.device.type in ("meta", device.type)
            total += distinct_bytes([tensor], tensor.device) if on_device else 0
    return total


def _twin(
    optimizer: torch.optim.Optimizer, shapes: list[tuple[dict[str, Any], list[torch.Tensor]]]
) -> torch.optim.Optimizer:
    accepted = inspect.signature(type(optimizer).__init__).parameters
    groups = []
    for group, parameters in shapes:
        settings = {name: value for name, value in group.items() if name != "params"}
        groups.append({**settings, **_PLAIN_LOOP, "params": [_without_data(parameter) for parameter in parameters]})
    defaults = {name: value for name, value in optimizer.defaults.items() if name in accepted}
    return type(optimizer)(groups, **{**defaults, **{k: v for k, v in _PLAIN_LOOP.items() if k in accepted}})


def _without_data(parameter: torch.Tensor) -> nn.Parameter:
    twin = nn.Parameter(torch.empty_like(parameter, device="meta"))
    twin.grad = torch.empty_like(twin)
    return twin
