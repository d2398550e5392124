"""Measuring ops: each distinct one once, wherever it is asked for, with nothing else disturbed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import default_partition
from torch._subclasses.fake_tensor import FakeTensorMode

from remat.torch.cost_cache import CostCache, OpCost
from remat.torch.measure import measure
from remat.torch.roofline import round_to_3_digits
from remat.torch.signature import signature_of
from remat.torch.workspace import beyond_what_stays
from remat_solver.graph import Graph, Op

aten = torch.ops.aten
LARGE = torch.ones(300, 300)
SMALL = torch.ones(3, 3)


def _graph(*calls: tuple[Any, ...], **kwargs: Any) -> Graph:
    ops = (Op(name=f"op {i}", time_ns=1, signature=signature_of(c[0], c[1:], kwargs)) for i, c in enumerate(calls))
    return Graph(ops=tuple(ops))


def test_a_longer_op_takes_longer_and_times_have_three_digits() -> None:
    graph = measure(_graph((aten.mm.default, SMALL, SMALL), (aten.mm.default, LARGE, LARGE)), cache=None)
    small, large = (op.time_ns for op in graph.ops)
    assert 0 < small < large
    assert all(round_to_3_digits(time_ns) == time_ns for time_ns in (small, large))
    assert not graph.estimated
    assert "threads" in graph.device


def test_each_distinct_signature_is_run_for_all_ops_that_share_it() -> None:
    seen: list[tuple[int, int, str]] = []
    calls = [(aten.relu.default, SMALL)] * 5 + [(aten.relu.default, LARGE)]
    graph = measure(_graph(*calls), cache=None, on_progress=lambda *report: seen.append(report))
    assert len({op.time_ns for op in graph.ops[:5]}) == 1
    assert {name for _, _, name in seen} == {"op 4", "op 5"}
    assert seen[-1][0] == seen[-1][1] == len(seen)


def test_workspace_is_what_an_op_holds_beyond_its_results() -> None:
    graph = measure(_graph((aten.relu.default, LARGE), (aten.sort.default, LARGE)), cache=None)
    relu, sort = (op.workspace_bytes for op in graph.ops)
    assert relu == 0
    assert sort > 0


def test_the_running_sum_less_what_stays() -> None:
    assert beyond_what_stays([100, -100, 50]) == 50
    assert beyond_what_stays([50, 100, -100]) == 100
    assert beyond_what_stays([-20]) == 0
    assert beyond_what_stays([]) == 0


def test_the_random_state_is_left_alone() -> None:
    torch.manual_seed(11)
    expected = torch.get_rng_state()
    measure(_graph((aten.native_dropout.default, LARGE, 0.5, True), (aten.bernoulli.p, LARGE, 0.5)), cache=None)
    assert torch.equal(torch.get_rng_state(), expected)


def test_an_op_that_overwrites_its_input_is_measured() -> None:
    graph = measure(_graph((aten.mul_.Tensor, LARGE, LARGE), (aten.copy_.default, LARGE, LARGE)), cache=None)
    assert all(op.time_ns > 0 for op in graph.ops)
    assert not graph.estimated


def test_an_op_that_cannot_run_alone_is_estimated_and_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="remat"):
        graph = measure(
            _graph((aten.linalg_cholesky_ex.default, LARGE, ), (aten.mm.default, LARGE, SMALL)), cache=None
        )  # fmt: skip
    assert graph.estimated
    assert "op 1" in caplog.text
    assert graph.ops[1].time_ns > 0


def test_an_absent_device_is_estimated_and_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeTensorMode()
    with fake:
        x = torch.empty_strided((64, 64), (64, 1), device="meta")
    signature = signature_of(aten.mm.default, (x, x), {}).replace('"meta"', '"cuda:63"')
    with caplog.at_level(logging.WARNING, logger="remat"):
        graph = measure(Graph(ops=(Op(name="mm", time_ns=0, signature=signature),)), cache=None)
    assert graph.estimated
    assert "there is no cuda:63 here" in caplog.text


def test_ops_without_a_signature_keep_their_costs() -> None:
    graph = measure(Graph(ops=(Op(name="boundary", time_ns=7, workspace_bytes=9),)), cache=None)
    assert (graph.ops[0].time_ns, graph.ops[0].workspace_bytes) == (7, 9)


def test_the_cache_is_believed_and_filled(tmp_path: Path) -> None:
    graph = _graph((aten.relu.default, LARGE))
    first = measure(graph, cache=CostCache(tmp_path))
    ran: list[int] = []
    second = measure(graph, cache=CostCache(tmp_path), on_progress=lambda done, _total, _name: ran.append(done))
    assert second == first
    assert ran == []


def test_threads_are_part_of_what_the_cache_knows(tmp_path: Path) -> None:
    graph = _graph((aten.relu.default, LARGE))
    before = torch.get_num_threads()
    ran: list[str] = []
    try:
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            ran.append("start")
            measure(graph, cache=CostCache(tmp_path), on_progress=lambda _done, _total, name: ran.append(name))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert ran.count("start") == 3
    assert ran[-1] == "start"
    assert ran.count("op 0") > 0


def test_the_default_cache_is_in_the_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))
    measure(_graph((aten.relu.default, SMALL)))
    assert (tmp_path / "costs.sqlite").exists()


def _costs_inside_a_compile(graph: Graph) -> Graph:
    """Measures where planning does: inside aot_autograd's partition function, while Dynamo compiles."""
    measured: list[Graph] = []

    def partition(joint: torch.fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
        measured.append(measure(graph, cache=None))
        return default_partition(joint, inputs, **kwargs)

    def keep(module: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        return module.forward

    from functorch.compile import make_boxed_func

    backend = aot_autograd(
        fw_compiler=lambda module, inputs: make_boxed_func(keep(module, inputs)),
        bw_compiler=lambda module, inputs: make_boxed_func(keep(module, inputs)),
        partition_fn=partition,
    )
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
    torch.compile(model, backend=backend, fullgraph=True, dynamic=False)(torch.ones(2, 4)).sum().backward()
    return measured[0]


def test_it_measures_for_real_from_inside_a_compile() -> None:
    graph = _graph((aten.mm.default, LARGE, LARGE), (aten.native_dropout.default, LARGE, 0.5, True))
    torch.manual_seed(5)
    inside = _costs_inside_a_compile(graph)
    assert not inside.estimated
    flops = 2 * 300**3
    assert inside.ops[0].time_ns > flops / 1e12 * 1e9, "no CPU core does a teraflop: the op did not really run"
    assert inside.ops[1].time_ns > 1000


def test_the_first_measurement_of_two_processes_counts(tmp_path: Path) -> None:
    """The other process is played by a cache that fills up between our look and our write."""

    class Overtaken(CostCache):
        def put(self, environment: str, costs: Any) -> None:
            super().put(environment, {text: OpCost(time_ns=77, workspace_bytes=5) for text in costs})
            super().put(environment, costs)

    graph = measure(_graph((aten.relu.default, LARGE)), cache=Overtaken(tmp_path))
    assert (graph.ops[0].time_ns, graph.ops[0].workspace_bytes) == (77, 5)


@pytest.mark.gpu
def test_on_a_gpu_events_and_the_allocator_give_the_costs() -> None:
    x = torch.ones(2048, 2048, device="cuda")
    graph = measure(_graph((aten.mm.default, x, x), (aten.relu.default, x), (aten.sort.default, x)), cache=None)
    mm, relu, sort = graph.ops
    assert mm.time_ns > relu.time_ns > 0
    assert relu.workspace_bytes == 0
    assert sort.workspace_bytes > 0
    assert graph.device == torch.cuda.get_device_name()


@pytest.mark.gpu
def test_the_gpus_generator_is_left_alone() -> None:
    x = torch.ones(64, 64, device="cuda")
    torch.cuda.manual_seed(3)
    expected = torch.cuda.get_rng_state()
    measure(_graph((aten.native_dropout.default, x, 0.5, True)), cache=None)
    assert torch.equal(torch.cuda.get_rng_state(), expected)


def test_ranks_on_different_gpus_of_one_machine_share_costs() -> None:
    from remat.torch import measure as measure_function

    on_any_gpu = measure_function.__globals__["_on_any_gpu"]
    on_cpu = signature_of(aten.relu.default, (SMALL,), {})
    first, second = (on_cpu.replace('"cpu"', f'"cuda:{number}"') for number in (0, 3))
    assert first != second
    assert on_any_gpu(first) == on_any_gpu(second)
    assert on_any_gpu(on_cpu) == on_cpu
