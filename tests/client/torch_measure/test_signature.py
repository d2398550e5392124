"""Signatures: what they keep, what they refuse, and that they can be read back."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from remat.torch.signature import GeneratorSpec, TensorSpec, decode, signature_of
from remat_solver.errors import CaptureError

aten = torch.ops.aten

CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.add.Tensor, (torch.ones(2, 3), torch.ones(3)), {"alpha": 2}),
    (aten.convolution.default, (torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3), None, [1, 1], (0, 0)), {}),
    (aten.full.default, ([2], math.inf), {"dtype": torch.bfloat16, "device": torch.device("cpu")}),
    (aten.clone.default, (torch.ones(1, 2, 3, 3),), {"memory_format": torch.channels_last}),
    (aten.empty.memory_format, ([3],), {"layout": torch.strided, "pin_memory": False}),
    (aten.mul.Scalar, (torch.ones(2, dtype=torch.complex64), 1 + 2j), {}),
    (aten.index.Tensor, (torch.ones(4, 4), [None, torch.tensor([0, 1])]), {}),
    (aten.upsample_nearest2d.vec, (torch.ones(1, 1, 2, 2), None, [2.0, 2.0]), {}),
    (aten.scatter.value_reduce, (torch.ones(2), 0, torch.tensor([0]), 1.5), {"reduce": "add"}),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: str(call[0]))
def test_a_signature_reads_back_as_the_call_it_wrote(call: tuple[Any, tuple[Any, ...], dict[str, Any]]) -> None:
    op, args, kwargs = call
    text = signature_of(op, args, kwargs)
    read_op, read_args, read_kwargs = decode(text)
    assert read_op is op
    assert signature_of(read_op, read_args, read_kwargs) == text
    assert set(read_kwargs) == set(kwargs)


def test_equal_calls_have_equal_signatures_and_any_difference_shows() -> None:
    base = torch.ones(4, 6)
    same = signature_of(aten.sum.dim_IntList, (base, [0], True), {"dtype": torch.float32})
    assert same == signature_of(aten.sum.dim_IntList, (torch.zeros(4, 6), (0,), True), {"dtype": torch.float32})
    others = [
        signature_of(aten.sum.dim_IntList, (base, [1], True), {"dtype": torch.float32}),
        signature_of(aten.sum.dim_IntList, (base, [0], True), {"dtype": torch.float64}),
        signature_of(aten.sum.dim_IntList, (base.double(), [0], True), {"dtype": torch.float32}),
        signature_of(aten.sum.dim_IntList, (base.t(), [0], True), {"dtype": torch.float32}),
        signature_of(aten.sum.dim_IntList, (base[1:], [0], True), {"dtype": torch.float32}),
        signature_of(aten.sum.default, (base,), {"dtype": torch.float32}),
    ]
    assert len({same, *others}) == 7


def test_one_and_one_point_zero_and_true_differ() -> None:
    x = torch.ones(2)
    written = [signature_of(aten.add.Scalar, (x, scalar), {}) for scalar in (1, 1.0, True)]
    assert len(set(written)) == 3
    assert [type(decode(text)[1][1]) for text in written] == [int, float, bool]


def test_fake_and_real_tensors_and_fx_nodes_are_written_alike() -> None:
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    with FakeTensorMode():
        fake = torch.ones(3, 4).t()
    node.meta["val"] = fake
    real = signature_of(aten.relu.default, (torch.ones(3, 4).t(),), {})
    assert signature_of(aten.relu.default, (fake,), {}) == real
    assert signature_of(aten.relu.default, (node,), {}) == real


def test_a_view_keeps_its_offset_and_the_bytes_of_its_storage() -> None:
    view = torch.ones(10, 8)[2:4, 1:3]
    spec = decode(signature_of(aten.relu.default, (view,), {}))[1][0]
    assert isinstance(spec, TensorSpec)
    assert (spec.shape, spec.stride, spec.storage_offset) == ((2, 2), (8, 1), 17)
    assert spec.storage_bytes == 10 * 8 * 4
    assert spec.numel == 4


def test_a_generator_is_known_by_its_device_only() -> None:
    text = signature_of(aten.bernoulli.default, (torch.ones(2),), {"generator": torch.Generator()})
    assert decode(text)[2]["generator"] == GeneratorSpec(device=torch.device("cpu"))


def test_no_whitespace_and_no_data_in_the_text() -> None:
    text = signature_of(aten.relu.default, (torch.full((2, 2), 123.456),), {})
    assert text == '["aten.relu.default",[{"tensor":[[2,2],[2,1],0,"float32","cpu"]}],{}]'


@pytest.mark.parametrize(
    "argument",
    [torch.eye(2).to_sparse(), object(), torch.nn.Linear(1, 1)],
    ids=["sparse", "object", "module"],
)
def test_an_argument_that_cannot_be_written_names_the_op(argument: object) -> None:
    with pytest.raises(CaptureError, match=r"aten\.relu\.default"):
        signature_of(aten.relu.default, (argument,), {})


def test_a_symbolic_size_is_refused_with_the_way_out() -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        unbacked = mode.shape_env.create_unbacked_symint()
    with pytest.raises(CaptureError, match="dynamic=False"):
        signature_of(aten.select.int, (torch.ones(3), 0, unbacked), {})


def test_a_callable_that_is_no_operator_is_refused() -> None:
    with pytest.raises(CaptureError, match="no operator overload"):
        signature_of(torch.relu, (torch.ones(1),), {})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "[]",
        '["aten.relu",[],{}]',
        '["aten.no_such_op.default",[],{}]',
        '["aten.relu.default",[{"who":1}],{}]',
        '["aten.relu.default",[{"tensor":[[1],[1],0,"Tensor","cpu"]}],{}]',
    ],
)
def test_text_that_is_no_signature_is_refused(text: str) -> None:
    with pytest.raises(CaptureError, match="no op signature"):
        decode(text)
