"""The quickest way to call an op: another function only where it runs the very same op on the same arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from remat.torch import bindings
from remat.torch.bindings import quickest_targets
from remat.torch.executor import boxed_function, write_source

aten = torch.ops.aten
SQUARE = torch.ones(4, 4)


def quickest(target: Any, *args: Any, **kwargs: Any) -> Callable[..., Any]:
    node = fx.Graph().call_function(target)
    return quickest_targets({node: (target, args, kwargs)})[node]


def test_generated_functions_are_preferred() -> None:
    assert quickest(aten.mm.default, SQUARE, SQUARE) is torch.mm
    assert quickest(aten.add.Tensor, SQUARE, 2) is torch.add
    assert quickest(aten.view.default, SQUARE, [16]) is torch.Tensor.view
    assert quickest(aten.gelu.default, SQUARE) is functional.gelu
    assert quickest(aten.sum.dim_IntList, SQUARE, [0], True) is torch.sum


def test_what_would_run_another_op_keeps_its_own_call() -> None:
    assert quickest(aten.div.Scalar, SQUARE, 2.0) == aten.div.Scalar._op  # torch.div makes it div.Tensor
    assert quickest(aten.tanh_backward.default, SQUARE, SQUARE) == aten.tanh_backward.default._op  # there is none
    assert quickest(aten.zeros.default, [2]) == aten.zeros.default._op  # torch.zeros asks for the default device
    plain = len
    assert quickest(plain, [1]) is plain


def example(x: Tensor, weight: Tensor) -> Tensor:
    hidden = functional.layer_norm(functional.linear(x, weight), (4,)).view(2, 2, 4).transpose(0, 1)
    low, high = hidden.reshape(4, 4).split(2, dim=1)
    mixed = torch.cat([low * 2, high / 3.0, torch.where(low > 0, low, high)], dim=1).to(torch.bfloat16)
    return functional.dropout(mixed.float().softmax(-1), 0.5).pow(2).mean(dim=[0], keepdim=True) + torch.full((6,), 0.5)


class Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def recorded(module: fx.GraphModule) -> tuple[list[Any], Tensor]:
    run = boxed_function(module)
    torch.manual_seed(0)
    with torch.no_grad(), Recorder() as recorder:
        (result,) = run([SQUARE.clone(), torch.linspace(-1, 1, 16).view(4, 4)])
    return recorder.seen, result


def test_a_graph_runs_its_own_ops_whatever_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    module = make_fx(lambda x, w: (example(x, w),), tracing_mode="fake")(SQUARE, SQUARE)
    _, names = write_source(module)
    assert sum(not isinstance(name, torch._ops.OpOverload) for name in names.values()) >= 10
    ops, result = recorded(module)
    monkeypatch.setattr(bindings, "_quickest", lambda target, _args, _kwargs: target)
    expected_ops, expected = recorded(module)
    assert ops == expected_ops
    assert torch.equal(result, expected)


def test_a_function_that_picks_another_op_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "_candidates", lambda _target: iter([torch.add, torch.sub]))
    assert quickest(aten.sub.Tensor, SQUARE, 2) is torch.sub
    assert quickest(aten.rsub.Scalar, SQUARE, 2) == aten.rsub.Scalar._op
