"""Pieces mode: a model that PyTorch cuts into several graphs trains as traced, within one budget for all of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat
from remat.torch.attachment import pieces_plans
from remat.torch.cost_cache import CACHE_DIR_VARIABLE
from remat.torch.joint_capture import compiled_call
from remat.torch.peak import measure_peak
from remat.torch.pieces.plan import PiecesPlan
from remat.torch.pieces.ways import WAITING, boundary_of, nothing_saved, refereed, ways_of
from remat_solver.errors import ApplyError, InfeasibleBudget, InvalidRequest
from remat_solver.simulate import store_all_schedule
from tests.client.torch_eager.networks import LIBRARY, WIDTH, Block, LibraryLoop, rows
from tests.client.torch_exact.training import Case, batch_of, differences, seeded_model, train

pytestmark = pytest.mark.filterwarnings("ignore")  # Dynamo's, on what it can't trace


@pytest.fixture(autouse=True, scope="module")
def _one_thread_and_costs_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # ops as small as these only wait for each other on several
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_DIR_VARIABLE, str(tmp_path_factory.mktemp("costs")))
        yield
    torch.set_num_threads(threads)


def planned(case: Case, budget: str | int) -> nn.Module:
    return remat.compile(seeded_model(case), mode="pieces", budget=budget, gap=0.5)


def traced(case: Case) -> nn.Module:
    model = seeded_model(case)
    model.compile(backend="aot_eager", dynamic=False)
    return model


def first_plan(case: Case, model: nn.Module) -> PiecesPlan:
    torch.manual_seed(0)
    model(*batch_of(case, 0))
    return pieces_plans(model)[-1]


def peak_of_a_step(case: Case, model: nn.Module, plan: PiecesPlan) -> int:
    batch = batch_of(case, 0)
    model.zero_grad(set_to_none=True)
    return plan.fixed_bytes + measure_peak(lambda: model(*batch).backward(), "cpu").peak_bytes_above_start


class Numbered(nn.Module):
    """A block that knows its place: Dynamo compiles the same code once for each."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return self.linear(x).tanh() * self.place


def test_the_same_code_is_compiled_as_often_as_it_takes() -> None:
    """Beyond its limits Dynamo would compile nothing, without an error."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(module: torch.fx.GraphModule, _inputs: object) -> Callable[..., Any]:
        graphs.append(module)
        return module.forward

    model = nn.Sequential(*(Numbered(place) for place in range(5)))
    with torch._dynamo.config.patch(accumulated_recompile_limit=2):
        compiled_call(model, backend, max_shapes=2, one_graph=False)(rows())
    assert len(graphs) == 5


def test_training_is_that_of_the_trace_and_within_the_budget() -> None:
    expected = train(LIBRARY, traced(LIBRARY))
    overheads = []
    for budget in ("100%", "60%"):
        model = planned(LIBRARY, budget)
        torch.manual_seed(0)
        assert differences(expected, train(LIBRARY, model)) == []
        (plan,) = pieces_plans(model)
        assert sum(piece.calls for piece in plan.pieces) > 1
        assert plan.measured_peak_bytes <= plan.budget_bytes
        assert peak_of_a_step(LIBRARY, model, plan) <= plan.budget_bytes
        assert abs(plan.predicted_peak_bytes - plan.measured_peak_bytes) <= 0.05 * plan.measured_peak_bytes
        overheads.append(plan.recompute_ns)
    assert overheads[0] == 0
    assert overheads[1] > 0


def test_a_budget_that_can_not_be_met_leaves_the_model_as_it_was() -> None:
    model = planned(LIBRARY, "1KB")
    batch = batch_of(LIBRARY, 0)
    state = torch.get_rng_state()
    with pytest.raises(InfeasibleBudget, match="no choice among the ways"):
        model(*batch)
    assert model._compiled_call_impl is None
    assert torch.equal(state, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


class Turning(nn.Module):
    """Takes another way when it is told to, between two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after, self.other = Block(), Block(), nn.Sequential(Block(), Block())
        self.turned = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        if not torch.isfinite(x).all():
            raise ValueError("not finite")
        x = self.other(x) if self.turned else self.after(x)
        return x.square().mean()


def test_a_graph_that_no_trial_showed_runs_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    case = Case(name="", model=Turning, batch=lambda _: (rows(),))
    model, reference = planned(case, "90%"), traced(case)
    first_plan(case, model)
    model.turned = reference.turned = True  # type: ignore[assignment]  # attributes of Turning
    batch = batch_of(case, 0)
    with caplog.at_level(logging.WARNING, logger="remat"):
        torch.manual_seed(1)
        model.zero_grad()
        model(*batch).backward()
    assert "in no trial step" in caplog.text
    torch.manual_seed(1)
    reference(*batch).backward()
    for (name, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), name
        assert ours.grad is None or torch.equal(ours.grad, theirs.grad), name  # type: ignore[arg-type]


class Sampling(nn.Module):
    """Goes on with as many rows as it draws."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        return self.after(x[: int(torch.randint(1, 256, ()))]).square().mean()


def test_where_every_step_brings_other_graphs_it_says_so() -> None:
    case = Case(name="", model=Sampling, batch=lambda _: (rows(),))
    model = planned(case, "90%")
    with pytest.raises(ApplyError, match=r"every step brings other graphs .*follow from the data"):
        first_plan(case, model)
    assert model._compiled_call_impl is None


def test_verification_evaluation_and_the_report() -> None:
    model = remat.compile(LibraryLoop(), mode="pieces", budget="80%", verify=True, gap=0.5)
    batch = batch_of(LIBRARY, 0)
    with torch.no_grad():
        model(*batch)
    assert pieces_plans(model) == ()
    model(*batch)
    assert "pieces mode" in str(remat.report(model))
    remat.remove(model)
    assert model._compiled_call_impl is None


def test_a_budget_is_needed() -> None:
    with pytest.raises(InvalidRequest, match="pieces mode needs a budget"):
        remat.compile(LibraryLoop(), mode="pieces")


def test_ways_lead_from_all_saved_to_nothing_saved() -> None:
    model = nn.Sequential(Block(), Block(), nn.Linear(WIDTH, 1))
    graph = remat.measure(remat.capture(remat.Step(model, (rows(),), loss_fn=lambda out: out.square().mean())))
    ways = ways_of(graph, negligible_bytes=0, time_limit_s=5)
    assert ways[0] == refereed(graph, nothing_saved(graph))
    assert ways[-1] == refereed(graph, store_all_schedule(graph))
    assert ways[-1].recompute_ns == 0 < min(way.recompute_ns for way in ways[:-1])
    assert len(ways) > 3
    assert all(ways[0].bytes_by_role[WAITING] <= way.bytes_by_role[WAITING] for way in ways)
    frugal = nothing_saved(graph)
    waits = frugal.index(boundary_of(graph))
    again = set(frugal[waits + 1 :]) & set(frugal[:waits])
    read = {value for op in frugal[waits + 1 :] for value in graph.ops[op].reads}
    kept = {graph.producer[value] for value in read} - set(frugal[waits + 1 :]) - {boundary_of(graph)}
    assert again
    assert not any(graph.ops[op].recomputable for op in kept)
    once = min(again)
    ops = (*graph.ops[:once], replace(graph.ops[once], recomputable=False), *graph.ops[once + 1 :])
    assert nothing_saved(replace(graph, ops=ops)).count(once) == 1 < frugal.count(once)


class Adding(nn.Module):
    """Its gradient is the one that it is given, repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self) -> Tensor:
        return self.weight.sum()


def test_a_piece_whose_backward_computes_nothing_has_one_way_to_run() -> None:
    graph = remat.capture(remat.Step(Adding()))
    assert boundary_of(graph) == len(graph) - 1
    assert nothing_saved(graph) == store_all_schedule(graph)
    assert len({way.steps for way in ways_of(graph, negligible_bytes=0, time_limit_s=1)}) == 1
