"""Estimates: from shapes alone, ordered as the work is, and marked as estimates."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from remat.torch.roofline import DeviceSpeed, estimate, estimate_cost, round_to_3_digits
from remat.torch.signature import signature_of
from remat_solver.errors import CaptureError
from remat_solver.graph import Graph, Op

aten = torch.ops.aten
SPEED = DeviceSpeed(flops_per_s=1e9, bytes_per_s=1e9, latency_ns=0)


def _time_ns(op: Any, *args: Any) -> int:
    return estimate_cost(signature_of(op, args, {}), SPEED).time_ns


def test_a_product_of_matrices_is_priced_by_its_arithmetic() -> None:
    x = torch.empty(100, 100)
    assert _time_ns(aten.mm.default, x, x) == 2 * 100**3


def test_an_elementwise_op_is_priced_by_its_traffic() -> None:
    x = torch.empty(1000)
    assert _time_ns(aten.add.Tensor, x, x) == 3 * 1000 * 4


def test_a_convolution_and_its_backward_are_priced_by_their_arithmetic() -> None:
    x, weight, out = torch.empty(1, 4, 16, 16), torch.empty(8, 4, 3, 3), torch.empty(1, 8, 16, 16)
    convolution = [None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1]
    forward = _time_ns(aten.convolution.default, x, weight, *convolution)
    assert forward == round_to_3_digits(2 * 16 * 16 * 8 * 4 * 9)
    backward = _time_ns(
        aten.convolution_backward.default, out, x, weight, *convolution, [True, True, False]
    )  # fmt: skip
    assert backward == pytest.approx(2 * forward, rel=0.01)


def test_a_whole_graph_is_estimated_without_touching_any_device() -> None:
    fake = signature_of(aten.relu.default, (torch.empty(10, device="meta"),), {}).replace('"meta"', '"cuda:0"')
    graph = Graph(ops=(Op(name="a", time_ns=0, signature=fake), Op(name="b", time_ns=3)))
    estimated = estimate(graph)
    assert estimated.estimated
    assert estimated.ops[0].time_ns >= 5_000
    assert estimated.ops[1].time_ns == 3


def test_text_that_is_no_signature_is_refused() -> None:
    with pytest.raises(CaptureError, match="no op signature"):
        estimate(Graph(ops=(Op(name="a", time_ns=0, signature="nonsense"),)))


@pytest.mark.parametrize(
    ("amount", "rounded"), [(0, 0), (7.4, 7), (999, 999), (1234, 1230), (1235.1, 1240), (98765432, 98800000)]
)
def test_three_digits(amount: float, rounded: int) -> None:
    assert round_to_3_digits(amount) == rounded
