"""Each guard against silently wrong results, taken away: the comparison must notice."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, fx, nn
from torch._subclasses import FakeTensorMode
from torch.distributed._functional_collectives import all_reduce
from torch.nn import functional

from remat.torch import batch_norm, contract, fake_storages, random_state
from remat.torch.attachment import attach, planned_graphs
from remat.torch.backend import Backend
from remat.torch.capture import capture
from remat.torch.measure import measure
from remat.torch.peak import measure_peak
from remat.torch.step import Step
from remat_solver.graph import Graph
from tests.client.torch_exact import schedules
from tests.client.torch_exact.networks import (
    CASES,
    WIDTH,
    Autocast,
    CustomFunction,
    Mlp,
    Normalised,
    Sliced,
    rows,
)
from tests.client.torch_exact.training import Case, differences, seeded_model, train, train_planned

BY_NAME = {case.name: case for case in CASES}


def trained_differences(case: Case) -> list[str]:
    """Differences between eager and evict-all."""
    return differences(train(case, seeded_model(case)), train_planned(case, schedules.evict_all)[0])


def test_without_restoring_the_random_state_gradients_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_state, "write", lambda *_: None)
    wrong = trained_differences(BY_NAME["dropout"])
    assert any("gradient" in name for name in wrong)


def test_without_putting_the_random_state_back_the_stream_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def replay(self: random_state.Replay, state: Tensor, *args: Any, **kwargs: Any) -> Any:
        torch.set_rng_state(state)
        return self.target(*args, **kwargs)

    monkeypatch.setattr(random_state.Replay, "__call__", replay)
    case = BY_NAME["dropout"]
    seen, _ = train_planned(case, schedules.evicting_at_random(0))
    assert "0 random" in differences(train(case, seeded_model(case)), seen)


def test_random_ops_are_replayed_and_attention_without_dropout_is_not() -> None:
    with_dropout = train_planned(BY_NAME["attention with dropout"], schedules.store_all)[1][0].graph
    without = train_planned(BY_NAME["attention"], schedules.store_all)[1][0].graph
    assert any(op.recompute_state_bytes == random_state.state_bytes(torch.device("cpu")) for op in with_dropout.ops)
    assert not any(op.recompute_state_bytes for op in without.ops)


def test_batch_norm_recomputed_with_its_statistics_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_norm, "recompute_call", lambda args: (batch_norm.FUNCTIONAL, args))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        trained_differences(BY_NAME["batch norm"])


def test_batch_norm_is_really_recomputed_and_its_statistics_once() -> None:
    _, (record,) = train_planned(BY_NAME["batch norm"], schedules.evict_all)
    norms = [i for i, op in enumerate(record.graph.ops) if "batch_norm_legit" in op.name and op.writes[1:]]
    norms = [i for i in norms if record.graph.ops[i].signature]
    owners = [i for i, op in enumerate(record.graph.ops) if op.name.endswith(".statistics")]
    assert len(norms) == len(owners) == 3
    assert sum(record.plan.run_counts[i] for i in norms) > 3
    assert all(record.plan.run_counts[i] == 1 for i in owners)


def test_readers_of_mutated_inputs_are_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trained_differences(BY_NAME["mutated buffer"]) == []
    monkeypatch.setattr(contract, "_mutated_keys", lambda *_: frozenset())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        trained_differences(BY_NAME["mutated buffer"])


class _Stash(torch.autograd.Function):
    """Puts its result on ctx by hand: autograd does not watch what happens to it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seen: Tensor) -> Tensor:
        ctx.seen = seen
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.seen, None


class Stashing(nn.Module):
    """Its backward reads a buffer, put on ctx by hand, that the forward has changed since."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("seen", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        out = _Stash.apply(self.linear(x), self.seen)  # type: ignore[no-untyped-call]
        self.seen.add_(0.5)
        return out.square().mean()  # type: ignore[no-any-return]


def test_what_a_function_puts_on_ctx_by_hand_is_not_version_checked() -> None:
    assert trained_differences(Case(name="stash", model=Stashing, batch=lambda _: (rows(),))) == []


@pytest.mark.parametrize(
    ("shape", "stride", "fills"),
    [
        ((3, 4), (4, 1), True),
        ((3, 4), (8, 2), True),
        ((4, 3), (1, 4), True),
        ((3, 1), (1, 0), True),
        ((3, 4), (0, 1), False),
        ((3, 4), (2, 1), False),
    ],
)
def test_only_copies_onto_distinct_places_are_replaced(
    shape: tuple[int, ...], stride: tuple[int, ...], fills: bool
) -> None:
    onto = torch.arange(40.0).as_strided(shape, stride)
    assert fake_storages._fills_its_storage_once(onto) is fills
    if fills:
        source = torch.randn(shape)
        made = fake_storages.functional_copy(onto, source)
        plain = torch.ops.aten.copy(onto, source)
        assert torch.equal(made, plain)
        assert made.stride() == plain.stride()
        assert made.untyped_storage().nbytes() <= plain.untyped_storage().nbytes()


@cache
def measured_once(graph: Graph) -> Graph:
    """The graph with real workspaces; its times don't matter here."""
    return measure(graph, cache=None, repeats=1)


def excess_bytes(case: Case, scheduler: schedules.Scheduler) -> int:
    """Measured peak minus the predicted one, with real workspaces."""
    model = seeded_model(case)
    attach(model, Backend(model=model, planner=schedules.planner_of(scheduler), measure=measured_once))
    torch.manual_seed(0)
    batch = case.batch(0)

    def step() -> None:
        output = model(*batch)  # held to the end, as training loops do
        case.loss(output).backward()

    step()
    model.zero_grad()
    peak = measure_peak(step, "cpu")
    (record,) = planned_graphs(model)
    return record.graph.fixed_bytes + peak.peak_bytes_above_start - record.predicted_peak_bytes


class Losses(nn.Module):
    """Losses whose scalar lies in the buffer of its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.linear(x)
        loss = functional.mse_loss(hidden, x) + functional.smooth_l1_loss(hidden, x)
        loss = loss + functional.binary_cross_entropy(hidden.sigmoid(), x.sigmoid())
        return (loss + functional.soft_margin_loss(hidden, x.sign())).view(1).square().sum()


LARGER = [
    Case(name="dropout", model=lambda: Mlp(8), batch=lambda _: (rows(200),)),
    Case(name="batch norm", model=Normalised, batch=lambda _: (torch.randn(8, 3, 24, 24), torch.randint(4, (8,)))),
    Case(name="views and slices", model=Sliced, batch=lambda _: (rows(200),)),
    Case(name="autograd.Function", model=CustomFunction, batch=lambda _: (rows(200),)),
    Case(name="half-precision norms", model=Autocast, batch=lambda _: (rows(200), torch.randint(4, (200,)))),
    Case(name="losses", model=Losses, batch=lambda _: (rows(200),)),
]


@pytest.mark.parametrize("case", LARGER, ids=lambda case: case.name)
def test_the_peak_is_predicted_to_the_byte(case: Case) -> None:
    for scheduler in (schedules.store_all, schedules.evict_all, schedules.evicting_at_random(3)):
        # `copy` is measured as PyTorch runs it, a few bytes dearer than what runs in its place.
        assert -64 <= excess_bytes(case, scheduler) <= 0, scheduler


def test_without_the_saved_random_states_the_budget_would_be_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(name="small", model=lambda: Mlp(8), batch=lambda _: (rows(2),))  # the states are most of its peak
    assert excess_bytes(case, schedules.evict_all) <= 0
    monkeypatch.setattr(random_state, "state_bytes", lambda _device: 0)
    assert excess_bytes(case, schedules.evict_all) > 0


def test_without_pinning_outputs_the_budget_would_be_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Last(nn.Module):
        """Returns what a LayerNorm wrote, whose backward wants its other results."""

        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x)  # type: ignore[no-any-return]

    case = Case(name="last", model=Last, batch=lambda _: (rows(300),), loss=lambda out: out.sum())
    loss_bytes = 8  # the loss, computed outside, and the gradient it starts from
    assert excess_bytes(case, schedules.evict_all) <= loss_bytes
    monkeypatch.setattr(contract, "_pin_writers", lambda ops: ops.ops)
    assert excess_bytes(case, schedules.evict_all) > loss_bytes


def test_graphs_say_what_may_not_be_recomputed() -> None:
    graph: Graph = train_planned(BY_NAME["mutated buffer"], schedules.store_all)[1][0].graph
    fixed = {op.name for op in graph.ops if not op.recomputable}
    assert {"boundary", "cos"} <= fixed


def test_a_norm_of_what_changes_is_not_run_again() -> None:
    class Fading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(WIDTH)
            self.scale = nn.BatchNorm1d(WIDTH, affine=False)
            self.register_buffer("trace", torch.rand(5, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            scale = self.scale(self.get_buffer("trace"))
            self.get_buffer("trace").mul_(0.5)
            return (self.norm(x.flatten(0, -2)) * scale.sum()).square().mean()

    norms = [
        op for op in capture(Step(Fading(), (rows(),))).ops if "batch_norm" in op.signature and op.phase == "forward"
    ]
    assert [op.recomputable for op in norms] == [False, True]


def test_readers_of_views_of_what_changes_are_not_run_again() -> None:
    class Fading(nn.Linear):
        def __init__(self) -> None:
            super().__init__(WIDTH, WIDTH)
            self.register_buffer("trace", torch.rand(WIDTH, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            trace = self.get_buffer("trace")
            scale = trace.t().cos().sum() + trace.split(4)[1].sin().sum()
            trace.mul_(0.5)
            return (super().forward(x).tanh() * scale).square().mean()

    graph = capture(Step(Fading(), (rows(),)))
    recomputable = {op.name: op.recomputable for op in graph.ops if op.name in ("cos", "sin", "tanh")}
    assert recomputable == {"cos": False, "sin": False, "tanh": True}


def test_what_is_no_plain_op_is_not_run_again() -> None:
    @torch.library.custom_op("remat_tests::halve", mutates_args=("x",))
    def halve(x: Tensor) -> None:
        x.mul_(0.5)

    class Halving(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            scale = x.tanh()
            halve(scale)
            return (super().forward(x) * scale).square().mean()

    (wrapped,) = [op for op in capture(Step(Halving(WIDTH, WIDTH), (rows(),))).ops if "functionalized" in op.name]
    assert wrapped.writes
    assert not wrapped.recomputable


def test_what_may_differ_from_run_to_run_is_not_run_again() -> None:
    def recomputable(name: str, *tags: torch.Tag) -> bool:
        double = torch.library.custom_op(f"remat_tests::{name}", lambda x: x * 2, mutates_args=(), tags=tags,
                                         schema="(Tensor x) -> Tensor")  # fmt: skip
        double.register_fake(torch.empty_like)
        double.register_autograd(lambda _ctx, gradient: gradient * 2)

        class Doubling(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                doubled: Tensor = double(super().forward(x))
                return doubled.square().mean()

        (op,) = [op for op in capture(Step(Doubling(WIDTH, WIDTH), (rows(),))).ops if name in op.signature]
        return op.recomputable

    assert recomputable("steady")
    assert not recomputable("unsteady", torch.Tag.nondeterministic_bitwise)


@pytest.mark.usefixtures("process_group")
def test_what_ranks_do_together_is_not_done_again() -> None:
    """A rank that talked once more than the others would wait for them for ever."""

    class Summing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            summed: Tensor = all_reduce(super().forward(x).tanh(), "sum", distributed.group.WORLD)
            return summed.square().mean()

    graph = capture(Step(Summing(WIDTH, WIDTH), (rows(),)))
    together = [op for op in graph.ops if "all_reduce" in op.name]
    assert together
    assert not any(op.recomputable or op.signature for op in together)  # without a signature it isn't measured
    assert any(op.recomputable for op in graph.ops)


def test_assertions_about_tensors_are_still_made() -> None:
    model = seeded_model(BY_NAME["assertion"])
    attach(model, Backend(model=model, planner=schedules.planner_of(schedules.evict_all), measure=lambda graph: graph))
    model(rows()).backward()
    with torch.no_grad():
        model.get_parameter("linear.bias").fill_(1e6)  # tanh gives 1
    with pytest.raises(RuntimeError, match="assertion failed"):
        model(rows())


class Transposed(nn.Module):
    """BatchNorm of transposed rows, whose result is laid out otherwise than PyTorch's trace believes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.linear(x).transpose(1, 2)).transpose(1, 2)
        return self.linear(hidden).square().mean()


def test_copies_that_the_trace_takes_for_views_are_values(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step(Transposed(), (torch.randn(8, 40, WIDTH),))
    copies = [op for op in capture(step).ops if op.signature.startswith('["aten.reshape')]
    assert [value.size_bytes for op in copies for value in op.writes][:1] == [8 * 40 * WIDTH * 4]
    monkeypatch.setattr(contract, "correct_layouts", lambda _module: None)
    assert not [op for op in capture(step).ops if op.signature.startswith('["aten.reshape')]
    seen, _ = train_planned(Case(name="", model=Transposed, batch=lambda _: step.args), schedules.evict_all)
    assert all(tensor.isfinite().all() for tensor in seen.values())  # PyTorch's own trace crashes here


def test_a_copys_stand_in_is_what_runs_whatever_pytorch_remembers() -> None:
    graph = fx.Graph()
    onto, source = graph.placeholder("onto"), graph.placeholder("source")
    copy = graph.call_function(torch.ops.aten.copy.default, (onto, source))
    with FakeTensorMode():
        copy.meta["val"] = torch.empty(5, 16)[:, 8:]  # in a storage of 5 x 16, as PyTorch sometimes has it
    fake_storages.correct_fakes(fx.GraphModule({}, graph))
    made = copy.meta["val"]
    assert (made.stride(), made.storage_offset()) == ((16, 1), 0)
    assert made.untyped_storage().nbytes() == (4 * 16 + 8) * 4
