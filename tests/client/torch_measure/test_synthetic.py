"""Made-up inputs: laid out as asked, in range where they are addresses, and nobody's randomness moved."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from remat.torch.signature import decode, signature_of
from remat.torch.synthetic import InputPool, PreparedCall

aten = torch.ops.aten


def _prepare(op: Any, *args: Any, pool: InputPool | None = None, **kwargs: Any) -> PreparedCall:
    return (pool or InputPool()).prepare(*decode(signature_of(op, args, kwargs)))


LONG = torch.int64
ADDRESSING: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.embedding.default, (torch.ones(3, 4), torch.zeros(50, dtype=LONG))),
    (aten.embedding_dense_backward.default, (torch.ones(50, 4), torch.zeros(50, dtype=LONG), 3, -1, False)),
    (aten.gather.default, (torch.ones(2, 3), 1, torch.zeros(2, 50, dtype=LONG))),
    (aten.scatter.src, (torch.ones(3, 50), 0, torch.zeros(3, 50, dtype=LONG), torch.ones(3, 50))),
    (aten.scatter_add.default, (torch.ones(2, 50), -1, torch.zeros(2, 50, dtype=LONG), torch.ones(2, 50))),
    (aten.index_select.default, (torch.ones(2, 3), 0, torch.zeros(50, dtype=LONG))),
    (aten.index_add.default, (torch.ones(2, 50), 1, torch.zeros(50, dtype=LONG), torch.ones(2, 50))),
    (aten.index.Tensor, (torch.ones(2, 7, 3), [None, torch.zeros(50, dtype=LONG), torch.zeros(50, dtype=LONG)])),
    (aten.index_put.default, (torch.ones(2, 3), [torch.zeros(50, dtype=LONG)], torch.ones(50, 3), True)),
    (aten.nll_loss_forward.default, (torch.ones(50, 3), torch.zeros(50, dtype=LONG), None, 1, -100)),
    (aten.nll_loss2d_forward.default, (torch.ones(2, 3, 9, 9), torch.zeros(2, 9, 9, dtype=LONG), None, 1, -100)),
    (
        aten.max_pool2d_with_indices_backward.default,
        (
            torch.ones(2, 3, 4, 4), torch.ones(2, 3, 8, 8), [2, 2], [2, 2], [0, 0], [1, 1], False,
            torch.zeros(2, 3, 4, 4, dtype=LONG),
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize("call", ADDRESSING, ids=lambda call: str(call[0]))
def test_addresses_stay_in_range_and_are_spread(call: tuple[Any, tuple[Any, ...]]) -> None:
    op, args = call
    prepared = _prepare(op, *args)
    prepared.run()
    flat = [part for value in prepared.args for part in (value if isinstance(value, list) else [value])]
    indices = [value for value in flat if isinstance(value, torch.Tensor) and value.dtype == LONG]
    assert indices
    assert all(index.unique().numel() > 1 for index in indices)


@pytest.mark.parametrize(
    "mask",
    [
        torch.ones(4, 64, 4, dtype=torch.bool),
        torch.ones(4, 64, 1, dtype=torch.bool),
        torch.ones(4, 64, 1, dtype=torch.bool).expand(4, 64, 4),
    ],
    ids=["whole", "to be expanded", "expanded"],
)
def test_masks_pick_no_more_places_than_there_are_elements(mask: torch.Tensor) -> None:
    scattered = _prepare(aten.masked_scatter.default, torch.ones(4, 64, 4), mask, torch.ones(20, 4))
    gathered = _prepare(aten.masked_scatter_backward.default, torch.ones(4, 64, 4), mask, [20, 4])
    for call in (scattered, gathered):
        call.run()
        assert 0 < call.args[1].expand(4, 64, 4).sum() <= 80


@pytest.mark.parametrize("op", [aten.floor_divide.default, aten.remainder.Tensor, aten.fmod.Tensor], ids=str)
def test_integers_divide_without_dividing_by_zero(op: Any) -> None:
    _prepare(op, torch.ones(5, dtype=LONG), torch.ones(5, dtype=LONG)).run()


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.bool, torch.complex64,
     torch.int32, torch.uint8],
    ids=str,
)  # fmt: skip
def test_every_dtype_and_layout_is_honoured(dtype: torch.dtype) -> None:
    like = torch.empty(6, 8, dtype=dtype)[1:5, 2:].t()
    made = _prepare(aten.clone.default, like).args[0]
    assert (made.dtype, made.shape, made.stride(), made.storage_offset()) == (
        dtype,
        like.shape,
        like.stride(),
        like.storage_offset(),
    )
    assert made.untyped_storage().nbytes() == like.untyped_storage().nbytes()


def test_floats_are_positive_and_far_from_denormal() -> None:
    made = _prepare(aten.log.default, torch.empty(10_000)).args[0]
    assert 0.01 <= made.min() < 0.02
    assert 0.9 < made.max() <= 1


def test_two_inputs_of_one_call_do_not_share_memory_but_two_calls_do() -> None:
    pool = InputPool()
    first = _prepare(aten.add.Tensor, torch.ones(100), torch.ones(100), pool=pool).args
    second = _prepare(aten.mul.Tensor, torch.ones(50), torch.ones(100), pool=pool).args
    assert first[0].data_ptr() != first[1].data_ptr()
    assert [x.data_ptr() for x in first] == [x.data_ptr() for x in second]


def test_what_an_op_overwrites_is_its_own_and_can_be_restored() -> None:
    pool = InputPool()
    other = _prepare(aten.relu.default, torch.ones(100), pool=pool).args[0]
    before = other.clone()
    call = _prepare(aten.mul_.Tensor, torch.ones(100), torch.ones(100), pool=pool)
    first = call.args[0].clone()
    call.run()
    assert not torch.equal(call.args[0], first)
    assert torch.equal(other, before)
    call.restore()
    assert torch.equal(call.args[0], first)


def test_the_users_generator_is_not_moved() -> None:
    torch.manual_seed(3)
    expected = torch.get_rng_state()
    _prepare(aten.native_dropout.default, torch.ones(100), 0.5, True)
    _prepare(aten.embedding.default, torch.ones(3, 4), torch.zeros(5, dtype=LONG))
    assert torch.equal(torch.get_rng_state(), expected)
