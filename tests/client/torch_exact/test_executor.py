"""The executor: exact order, frees right after the last use, arguments handed over for good."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch import Tensor, fx

from remat.torch.executor import boxed_function, write_source

aten = torch.ops.aten


def module_of(graph: fx.Graph) -> fx.GraphModule:
    root = torch.nn.Module()
    root.register_buffer("constant", torch.ones(2))
    return fx.GraphModule(root, graph)


def test_each_tensor_dies_right_after_its_last_use() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    total = graph.call_function(aten.add.Tensor, (x, y))
    graph.call_function(aten.sin.default, (y,))  # read by nobody
    pair = graph.call_function(aten.var_mean.correction, (total, [0]), {"correction": 1.0})
    mean = graph.call_function(__import__("operator").getitem, (pair, 1))
    graph.output((mean, None, x))
    source, names = write_source(module_of(graph))
    assert source.splitlines() == [
        "def run(args):",
        "    v0, v1, = args",
        "    args.clear()",
        "    v2 = f0(v0, v1)",
        "    v3 = f1(v1)",
        "    del v1, v3",
        "    v4 = f2(v2, [0], correction=1.0)",
        "    del v2",
        "    v5 = v4[1]",
        "    del v4",
        "    return (v5, None, v0, )",
    ]
    assert names == {"f0": aten.add.Tensor, "f1": aten.sin.default, "f2": aten.var_mean.correction}


def test_arguments_are_handed_over_for_good() -> None:
    seen: list[bool] = []
    graph = fx.Graph()
    x = graph.placeholder("x")
    doubled = graph.call_function(aten.mul.Tensor, (x, 2.0))
    graph.output((graph.call_function(lambda tensor: (seen.append(dead() is None), tensor)[1], (doubled,)),))
    run = boxed_function(module_of(graph))
    arguments = [torch.ones(3)]
    dead = weakref.ref(arguments[0])
    (result,) = run(arguments)
    assert arguments == []
    assert seen == [True]
    assert torch.equal(result, torch.full((3,), 2.0))


def test_every_kind_of_argument_survives() -> None:
    given: list[Any] = []

    def take(*args: Any, **kwargs: Any) -> Tensor:
        given.append((args, kwargs))
        return torch.zeros(())

    graph = fx.Graph()
    x = graph.placeholder("x")
    args = (
        x,
        None,
        True,
        -3,
        0.1,
        math.inf,
        "a'b",
        [1, (2, x)],
        {"k": x, "l": [x]},
        torch.float16,
        torch.device("cpu"),
    )
    graph.output((graph.call_function(take, args, {"layout": torch.strided, "constant": graph.get_attr("constant")}),))
    tensor = torch.arange(2)
    module = module_of(graph)
    boxed_function(module)([tensor])
    expected = fx.node.map_aggregate(args, lambda leaf: tensor if leaf is x else leaf)
    assert given == [(expected, {"layout": torch.strided, "constant": module.constant})]


def test_a_graph_without_arguments_runs() -> None:
    graph = fx.Graph()
    graph.output((graph.call_function(aten.zeros.default, ([2],)),))
    assert torch.equal(boxed_function(module_of(graph))([])[0], torch.zeros(2))
