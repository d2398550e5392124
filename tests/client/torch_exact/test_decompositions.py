"""What PyTorch's tracer writes in other words than eager mode runs: we trace the kernels themselves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from remat.torch import decompositions, fake_storages, joint_capture
from tests.client.torch_exact import schedules
from tests.client.torch_exact.training import Case, differences, seeded_model, train, train_planned

Function = Callable[[Tensor], Tensor]


class Applied(nn.Module):
    """A convolution, and a function of what it gives."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 6, 3, padding=1)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        out = self.function(self.convolution(x))
        return (out * torch.linspace(0.3, 2, out.numel(), device=x.device).view(out.shape)).sum()


FUNCTIONS: dict[str, Function] = {
    "bilinear": lambda x: functional.interpolate(x, scale_factor=1.7, mode="bilinear"),
    "bicubic": lambda x: functional.interpolate(x, size=(9, 11), mode="bicubic"),
    "dropout": lambda x: functional.dropout(x, 0.15),
    "dropout across memory": lambda x: functional.dropout(x.transpose(1, 3), 0.15),
    "attention with dropout": lambda x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.15),
}


def differing(function: Function) -> list[str]:
    """Differences between eager and evict-all."""
    case = Case(name="", model=lambda: Applied(function), batch=lambda _: (torch.randn(2, 3, 6, 6),))
    return differences(train(case, seeded_model(case)), train_planned(case, schedules.evict_all)[0])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_eagers_own_kernels_are_traced(name: str) -> None:
    assert differing(FUNCTIONS[name]) == []


@pytest.mark.parametrize("name", ["bilinear", "dropout"])
def test_pytorchs_decompositions_give_other_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_capture, "eager_kernels", nullcontext)
    assert differing(FUNCTIONS[name]) != []


def test_random_masks_are_drawn_in_the_order_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_storages, "_is_empty", lambda _argument: False)
    assert differing(FUNCTIONS["dropout across memory"]) != []


def test_the_registry_is_put_back() -> None:
    bilinear, dropout = torch.ops.aten.upsample_bilinear2d.vec, torch.ops.aten.dropout.default
    before = dict(bilinear.py_kernels), dict(dropout.py_kernels)
    with decompositions.eager_kernels():
        assert (bilinear.py_kernels, dropout.py_kernels) != before
    assert (bilinear.py_kernels, dropout.py_kernels) == before
    with suppress(KeyError), decompositions.eager_kernels():
        raise KeyError
    assert (bilinear.py_kernels, dropout.py_kernels) == before


LAYOUTS: dict[str, Function] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(1, 3),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "with gaps": lambda x: x[..., ::2],
    "expanded": lambda x: x[:, :1].expand(-1, 4, -1, -1),
    "a number": lambda x: x[0, 0, 0, 0],
    "empty": lambda x: x[:0],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dropout_in_steps_is_dropout(layout: str, dtype: torch.dtype) -> None:
    x = LAYOUTS[layout](torch.linspace(0.1, 3, 2 * 3 * 7 * 8, dtype=dtype).view(2, 3, 7, 8))
    for p in (0, 0.1, 0.15, 0.2, 0.35, 0.5, 0.9, 1):
        torch.manual_seed(0)
        eager, state = functional.dropout(x, p), torch.get_rng_state()
        torch.manual_seed(0)
        in_steps = decompositions.dropout_in_steps(x, p, True)
        assert torch.equal(eager, in_steps)
        assert eager.stride() == in_steps.stride()
        assert torch.equal(state, torch.get_rng_state())


def test_a_view_that_the_kernels_layout_forbids_is_copied() -> None:
    tensor = torch.arange(12.0).view(3, 4).t()
    made = fake_storages.view_or_copy(tensor, [12])
    assert torch.equal(made, tensor.reshape(12))
    assert fake_storages.view_or_copy(tensor.t(), [12]).data_ptr() == tensor.data_ptr()
