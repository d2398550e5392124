"""`compile`, `apply`, `remove` and `Backend`: the training loop stays, failures leave the model as it was."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import remat
from remat.torch import random_state
from remat.torch.backend import Backend
from remat.torch.cost_cache import CACHE_DIR_VARIABLE
from remat.torch.peak import measure_peak
from remat.torch.report import saved_values
from remat_solver.errors import (
    ApplyError,
    CaptureError,
    GraphBreak,
    InfeasibleBudget,
    InvalidRequest,
    PlanMismatch,
    VerificationFailed,
)
from remat_solver.plan import Plan
from tests.client.torch_exact import schedules
from tests.client.torch_exact.networks import CASES, WIDTH, Mlp, Normalised, Tied, rows
from tests.client.torch_exact.training import Case, differences, seeded_model, train

DROPOUT = Case(name="dropout", model=Mlp, batch=lambda _: (rows(8192),))
BATCH_NORM = CASES[1]


@pytest.fixture(autouse=True)
def _own_cost_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_DIR_VARIABLE, str(tmp_path))


def graph_of(case: Case) -> remat.Graph:
    torch.manual_seed(0)
    return remat.measure(remat.capture(remat.Step(seeded_model(case), case.batch(0))))


def test_a_compiled_model_trains_like_eager_within_its_budget() -> None:
    expected = train(DROPOUT, seeded_model(DROPOUT))
    model = seeded_model(DROPOUT)
    assert remat.compile(model, budget="80%") is model
    assert differences(expected, train(DROPOUT, model)) == []
    (record,) = remat.torch.planned_graphs(model)
    assert record.plan.recompute_count > 0
    assert record.predicted_peak_bytes <= record.plan.budget_bytes < record.plan.store_all_peak_bytes
    model.zero_grad()
    batch = DROPOUT.batch(0)
    measured = measure_peak(lambda: model(*batch).backward(), "cpu").peak_bytes_above_start
    slack = record.predicted_peak_bytes - record.graph.fixed_bytes - measured
    assert 0 <= slack <= random_state.state_bytes(torch.device("cpu"))


def test_least_memory_for_an_overhead() -> None:
    model = remat.compile(seeded_model(DROPOUT), max_overhead="50%", time_limit_s=5)
    model(*DROPOUT.batch(0))
    (record,) = remat.torch.planned_graphs(model)
    assert record.plan.overhead <= 0.5
    assert record.plan.peak_bytes < record.plan.store_all_peak_bytes


def test_state_dict_parameters_and_copies_are_untouched() -> None:
    model, plain = seeded_model(BATCH_NORM), seeded_model(BATCH_NORM)
    remat.compile(model, budget="100%")
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in model.named_modules()] == [name for name, _ in plain.named_modules()]


def test_evaluation_between_steps_needs_no_plan() -> None:
    model, plain = seeded_model(BATCH_NORM), seeded_model(BATCH_NORM)
    remat.compile(model, budget="100%")
    torch.manual_seed(0)
    batch = BATCH_NORM.batch(0)
    for each in (model, plain):
        each(*batch).backward()
        each.eval()
    with torch.no_grad():
        assert torch.equal(model(*batch), plain(*batch))
    for each in (model, plain):
        each.train()
        each(*batch).backward()
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), plain.parameters(), strict=True))
    assert len(remat.torch.planned_graphs(model)) == 1


def test_each_input_shape_has_its_own_plan() -> None:
    model = remat.compile(Mlp(), budget="100%")
    for count in (3, 4, 3, 5):
        model(rows(count)).backward()
    peaks = [record.predicted_peak_bytes for record in remat.torch.planned_graphs(model)]
    assert len(peaks) == 3
    assert peaks == sorted(set(peaks))


def test_a_loss_function_is_planned_with_the_model() -> None:
    def loss_fn(output: Tensor) -> Tensor:
        return output.log_softmax(-1).square().mean()

    model, plain = seeded_model(CASES[2]), seeded_model(CASES[2])
    remat.compile(model, budget="100%", loss_fn=loss_fn)
    batch = CASES[2].batch(0)
    model(*batch).backward()
    loss_fn(plain(*batch)).backward()
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), plain.parameters(), strict=True))
    (record,) = remat.torch.planned_graphs(model)
    assert not record.loss_is_outside
    assert any("log_softmax" in op.name for op in record.graph.ops)


def test_the_record_says_when_the_loss_is_outside() -> None:
    model = remat.compile(Tied(), budget="100%")
    model(torch.randint(20, (2, 3))).sum().backward()
    assert remat.torch.planned_graphs(model)[0].loss_is_outside


def test_reserve_and_optimizer_state_count() -> None:
    model = Mlp()
    optimizer = torch.optim.Adam(model.parameters())
    remat.compile(model, budget="100%", optimizer=optimizer, reserve=1000)
    batch = rows()
    model(batch)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    steps = 4 * len(list(model.parameters()))
    assert remat.torch.planned_graphs(model)[0].graph.fixed_bytes == 3 * weights + steps + batch.nbytes + 1000


def test_a_plan_goes_through_files_and_is_applied(tmp_path: Path) -> None:
    graph = graph_of(DROPOUT)
    remat.save(remat.solve(graph, budget_fraction=0.8), tmp_path / "plan.json")
    plan = remat.load(Plan, tmp_path / "plan.json")
    model = remat.apply(seeded_model(DROPOUT), plan)
    assert differences(train(DROPOUT, seeded_model(DROPOUT)), train(DROPOUT, model)) == []
    (record,) = remat.torch.planned_graphs(model)
    assert record.plan == plan
    assert record.runs_built == record.runs_planned > len(graph) - 1


def test_a_plan_made_from_other_measurements_still_fits() -> None:
    graph = graph_of(DROPOUT)
    slower = replace(graph, ops=tuple(replace(op, time_ns=op.time_ns + 7) for op in graph.ops))
    plan = schedules.planner_of(schedules.sqrt_segments)(slower)
    model = remat.apply(seeded_model(DROPOUT), [plan])
    model(*DROPOUT.batch(0))
    assert remat.torch.planned_graphs(model)[0].plan is plan


def test_a_plan_for_another_graph_is_refused_and_nothing_is_half_applied() -> None:
    plan = remat.solve(graph_of(DROPOUT), budget_fraction=1)
    model, plain = seeded_model(BATCH_NORM), seeded_model(BATCH_NORM)
    remat.apply(model, plan)
    torch.manual_seed(0)
    batch = BATCH_NORM.batch(0)
    with pytest.raises(PlanMismatch, match="no plan given is for this graph") as caught:
        model(*batch)
    assert caught.value.plan_graph_hash == plan.graph_hash
    assert torch.equal(model(*batch), plain(*batch))
    assert remat.torch.planned_graphs(model) == ()
    assert differences(dict(model.named_buffers()), dict(plain.named_buffers())) == []


def test_a_plan_in_another_order_is_refused_and_nothing_is_half_applied() -> None:
    plan = remat.solve(graph_of(DROPOUT), budget_fraction=1)
    swapped = replace(plan, schedule=(*plan.schedule[-2:], *plan.schedule[:-2]))
    model = remat.apply(seeded_model(DROPOUT), swapped)
    with pytest.raises(ApplyError, match="another order than the model"):
        model(*DROPOUT.batch(0))
    assert remat.torch.planned_graphs(model) == ()
    with pytest.raises(InvalidRequest, match="the exact runtime keeps the graph's order"):
        remat.compile(seeded_model(DROPOUT), budget="80%", reorder=True)


def test_modules_hold_at_most_their_budgets() -> None:
    def held_bytes(model: nn.Module) -> int:
        (record,) = remat.torch.planned_graphs(model)
        saved = saved_values(record.graph, record.plan.schedule)
        return sum(value.size_bytes for value in saved if value.name.startswith("dropout."))

    free = remat.compile(seeded_model(DROPOUT), budget="100%")
    free(*DROPOUT.batch(0))
    amount = held_bytes(free) // 2
    model = remat.compile(seeded_model(DROPOUT), budget="100%", module_budgets={"dropout": amount})
    assert differences(train(DROPOUT, seeded_model(DROPOUT)), train(DROPOUT, model)) == []
    assert held_bytes(model) <= amount
    with pytest.raises(InvalidRequest, match="eager mode takes no module_budgets"):
        remat.compile(seeded_model(DROPOUT), mode="eager", budget="80%", module_budgets={"dropout": amount})
    with pytest.raises(InvalidRequest, match="a given plan knows no module budgets"):
        remat.compile(seeded_model(DROPOUT), plan=plan_of(model), module_budgets={"dropout": amount})


def plan_of(model: nn.Module) -> Plan:
    return remat.torch.planned_graphs(model)[0].plan


def test_an_impossible_budget_is_said_so_and_leaves_the_model_alone() -> None:
    model = remat.compile(Mlp(), budget="1KiB")
    with pytest.raises(InfeasibleBudget) as caught:
        model(rows())
    assert caught.value.proven_infeasible_below_bytes > 1024
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    assert model(rows()).requires_grad
    assert remat.torch.planned_graphs(model) == ()


def test_verify_on_the_first_step() -> None:
    model = remat.compile(seeded_model(BATCH_NORM), budget="95%", verify=True)
    assert differences(train(BATCH_NORM, seeded_model(BATCH_NORM)), train(BATCH_NORM, model)) == []


def test_a_step_that_fails_verification_loses_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_state, "write", lambda *_: None)  # replays draw new numbers
    plan = schedules.planner_of(schedules.evict_all)(graph_of(DROPOUT))
    model = remat.compile(seeded_model(DROPOUT), plan=plan, verify=True)
    with pytest.raises(VerificationFailed, match="gradient of"):
        model(*DROPOUT.batch(0))
    assert remat.torch.planned_graphs(model) == ()


def test_remove_and_compile_again() -> None:
    model = remat.compile(Mlp(), budget="100%")
    model(rows()).backward()
    assert remat.remove(model) is model
    assert remat.torch.planned_graphs(model) == ()
    model(rows()).backward()
    remat.compile(model, budget="100%")
    model(rows()).backward()
    assert len(remat.torch.planned_graphs(model)) == 1


def test_a_removed_plan_frees_the_model() -> None:
    model = remat.compile(Mlp(), budget="100%")
    model(rows()).backward()
    dead = weakref.ref(model)
    remat.remove(model)
    del model
    gc.collect()
    assert dead() is None


def test_the_backend_in_pytorchs_own_words() -> None:
    model, plain = seeded_model(BATCH_NORM), seeded_model(BATCH_NORM)
    backend = Backend("95%")
    compiled = torch.compile(model, backend=backend, dynamic=False)
    torch.manual_seed(0)
    batch = BATCH_NORM.batch(0)
    compiled(*batch).backward()
    plain(*batch).backward()
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), plain.parameters(), strict=True))
    (record,) = backend.planned
    resident = [*model.parameters(), *model.buffers(), *batch]
    assert record.graph.fixed_bytes == sum(tensor.nbytes for tensor in resident)


class Branching(nn.Module):
    """Looks at a number in mid-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.linear(x)
        if hidden.sum().item() > 0:  # the line that the error must name
            hidden = hidden * 2
        return hidden.sum()


def test_a_graph_break_names_the_line_and_the_reason() -> None:
    model = remat.compile(Branching(), budget="100%")
    with pytest.raises(GraphBreak) as caught:
        model(rows())
    file, line = caught.value.where.rsplit(":", 1)
    assert Path(file) == Path(__file__)
    assert "must name" in Path(file).read_text().splitlines()[int(line) - 1]
    assert "data-dependent" in caught.value.reason
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    assert model(rows()).requires_grad


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo's own look at it
def test_a_split_model_is_said_to_be_one(caplog: pytest.LogCaptureFixture) -> None:
    model = Branching()
    backend = Backend("100%")
    compiled = torch.compile(model, backend=backend, dynamic=False)
    with caplog.at_level(logging.WARNING, "remat"):
        compiled(rows()).backward()
    assert len(backend.planned) == 2
    assert [record.message for record in caplog.records if "several graphs" in record.message]


def test_the_models_own_exception_is_named() -> None:
    class Refusing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyError("mine")

    model = remat.compile(Refusing(), budget="100%")
    with pytest.raises(GraphBreak, match=r"KeyError\('mine'\), at .*test_compile.py:"):
        model(rows())
    with pytest.raises(KeyError, match="mine"):
        model(rows())


logger = logging.getLogger(__name__)


class Talking(nn.Module):
    """Logs in its forward; with `noise`, multiplies by NumPy's random numbers too."""

    def __init__(self, *, noise: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.noise = noise

    def forward(self, x: Tensor) -> Tensor:
        logger.warning("forward")
        if self.noise:
            x = x * torch.from_numpy(np.random.rand(16)).float()
        return self.linear(x).sum()


def test_log_lines_do_not_break_the_graph() -> None:
    model = remat.compile(Talking(noise=False), budget="100%")
    model(rows()).backward()
    assert len(remat.torch.planned_graphs(model)) == 1


def test_numpys_random_numbers_are_refused_rather_than_replaced() -> None:
    with pytest.raises(GraphBreak, match="numpy"):
        remat.compile(Talking(noise=True), budget="100%")(rows())


@pytest.mark.parametrize(
    "question",
    [
        {},
        {"budget": "80%", "max_overhead": "10%"},
        {"budget": "much"},
        {"max_overhead": "little"},
        {"budget": "80%", "gap": -1},
    ],
)
def test_a_question_without_sense_is_refused_at_once(question: dict[str, str]) -> None:
    model = Mlp()
    with pytest.raises(InvalidRequest):
        remat.compile(model, **question)
    assert model._compiled_call_impl is None


def test_what_is_compiled_already_is_refused() -> None:
    model = Mlp()
    model.compile(backend="eager")
    with pytest.raises(ApplyError, match="compiled already"):
        remat.compile(model, budget="80%")
    with pytest.raises(ApplyError, match="wrap the planned model: DataParallel"):
        remat.compile(nn.DataParallel(Mlp()), budget="80%")
    with pytest.raises(ApplyError, match="wrapper"):
        remat.compile(torch.compile(Normalised(), backend="eager"), budget="80%")


class Normalising(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return functional.normalize(self.layer(x))


class Recurrent(nn.Module):
    """A recurrent layer behind others."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Normalising()
        self.layers = nn.LSTM(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.first(x))[0].mean()  # type: ignore[no-any-return]


class Routing(nn.Module):
    """Sends the rows that are positive through a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        (chosen,) = torch.where(x.sum(1) > 0)
        return x.index_add(0, chosen, self.layer(x[chosen])).mean()  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo's own look at it
@pytest.mark.parametrize(
    ("make", "reason", "way_out"),
    [
        (Recurrent, "RNN, GRU, or LSTM", "before and after it"),
        (Routing, "a shape that depends on values", "with tensor operations"),
    ],
    ids=["recurrent", "routing"],
)
def test_what_is_no_one_graph_is_sent_to_the_modes_for_it(
    make: Callable[[], nn.Module], reason: str, way_out: str
) -> None:
    with pytest.raises(GraphBreak, match=reason) as caught:
        remat.compile(make(), budget="100%")(rows())
    assert way_out in caught.value.hint
    assert 'mode="pieces"' in caught.value.hint
    assert caught.value.where.startswith(__file__)
    remat.compile(make(), mode="pieces", budget="100%")(rows()).backward()


def test_symbolic_shapes_are_refused_with_a_way_out() -> None:
    compiled = torch.compile(Mlp(), backend=Backend("100%"), dynamic=True)
    with pytest.raises(Exception, match="dynamic=False"):
        compiled(rows(7))


def test_sparse_gradients_are_refused_with_a_way_out() -> None:
    model = nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Linear(8, 8))
    with pytest.raises(CaptureError, match="sparse=False"):
        remat.compile(model, budget="100%")(torch.arange(40))


def test_modules_are_pinned_by_their_paths() -> None:
    """The first layer runs once, and nothing of the last is kept for the backward."""
    model = remat.compile(seeded_model(DROPOUT), budget="100%", keep="layers.0", recompute=["layers.3"])
    assert differences(train(DROPOUT, seeded_model(DROPOUT)), train(DROPOUT, model)) == []
    (record,) = remat.torch.planned_graphs(model)
    names = [op.name for op in record.graph.ops]
    runs = record.plan.run_counts
    assert all(runs[index] == 1 for index, name in enumerate(names) if name.startswith("layers.0."))
    saved = {value.name for value in saved_values(record.graph, record.plan.schedule)}
    assert saved
    assert not any(name.startswith("layers.3.") for name in saved)


def test_a_recompute_pin_passes_over_what_may_not_be_recomputed() -> None:
    """A BatchNorm's running statistics are read by the backward and written once; its output can be made again."""
    model = remat.compile(seeded_model(BATCH_NORM), budget="150%", recompute="norm")
    assert differences(train(BATCH_NORM, seeded_model(BATCH_NORM)), train(BATCH_NORM, model)) == []
    (record,) = remat.torch.planned_graphs(model)
    assert record.plan.recompute_count > 0


@pytest.mark.parametrize("progress", [True, None])
def test_the_first_step_says_what_it_is_busy_with_where_asked(
    progress: bool | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """By default only on a terminal, which a test's stderr is not."""
    model = remat.compile(seeded_model(DROPOUT), budget="90%", progress=progress)
    model(*DROPOUT.batch(0))
    shown = capsys.readouterr().err
    if progress:
        assert "remat: measuring" in shown
        assert "remat: solving" in shown
    else:
        assert shown == ""
