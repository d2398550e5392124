"""The SDK against the real service over real HTTP: the answers are those of a local solve."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx
import pytest

import remat
from remat.client import Client
from remat.plan_cache import PlanCache
from remat_solver.errors import InfeasibleBudget, InvalidPlan, InvalidRequest, NoPlanInTime, PlanMismatch
from remat_solver.files import dump_json
from remat_solver.options import Progress, matching_ops
from remat_solver.plan import Plan
from tests.integration.solver_service import SolverService
from tests.integration.training_graphs import ENDLESS, QUICK_OPS, tangle, uneven_chain
from tests.solver.graphs import wide


def figures(plan: Plan) -> tuple[object, ...]:
    """What two proven plans for the same question share: of equally good schedules either may be found."""
    return plan.graph_hash, plan.budget_bytes, plan.time_ns, plan.status


def test_the_service_gives_the_plan_of_a_local_solve(client: Client) -> None:
    graph = uneven_chain(QUICK_OPS, seed=13)
    seen: list[Progress] = []
    plan = client.solve(graph, budget_fraction=0.6, gap=0.0, on_progress=seen.append)
    assert figures(plan) == figures(remat.solve(graph, budget_fraction=0.6, gap=0.0))
    assert plan.status == "optimal"
    assert seen
    assert seen[-1].incumbent_ns == plan.time_ns


def test_a_second_client_finds_the_plan_by_its_key(service: SolverService) -> None:
    graph = uneven_chain(QUICK_OPS, seed=1)
    with Client(service.url, plan_cache=None) as first:
        plan = first.solve(graph, budget_fraction=0.7)
    before = _newest_solve(service)
    with Client(service.url, plan_cache=None) as second:
        assert second.solve(graph, budget_fraction=0.7) == plan
    assert _newest_solve(service) == before


def test_an_infeasible_budget_is_the_same_error_as_locally_and_is_remembered(
    client: Client, service: SolverService
) -> None:
    graph = uneven_chain(QUICK_OPS, seed=2)
    with pytest.raises(InfeasibleBudget) as local:
        remat.solve(graph, budget_fraction=0.05)
    for _ in range(2):
        with pytest.raises(InfeasibleBudget) as remote:
            client.solve(graph, budget_fraction=0.05)
        assert remote.value.fields == local.value.fields
    smaller = client.submit(graph, budget_fraction=0.04)
    assert (smaller.state, smaller.source) == ("failed", "cache")
    assert isinstance(smaller.error, InfeasibleBudget)


def test_running_out_of_time_without_a_plan_is_its_own_error_and_is_not_remembered(client: Client) -> None:
    graph, question = tangle(3), {**ENDLESS, "time_limit_s": 0.001}
    for _ in range(2):
        with pytest.raises(NoPlanInTime) as failure:
            client.solve(graph, **question)
        assert failure.value.time_limit_s == pytest.approx(0.001)
    assert client.submit(graph, **question).source == "solve"


def test_a_proven_plan_answers_the_budgets_that_it_implies(client: Client) -> None:
    graph = uneven_chain(QUICK_OPS, seed=4)
    plan = client.solve(graph, budget_fraction=0.6)
    assert plan.peak_bytes < plan.budget_bytes
    implied = client.submit(graph, budget_bytes=plan.peak_bytes, gap=0.01, time_limit_s=7.0)
    assert (implied.state, implied.source) == ("done", "cache")
    assert client.plan_of(implied.id, graph).budget_bytes == plan.peak_bytes
    assert client.submit(graph, budget_bytes=plan.peak_bytes - 1).source == "solve"


def test_pins_are_names_of_the_graph_that_was_sent(client: Client) -> None:
    """Two graphs that differ in names alone are one planning problem, but pins mean different ops in them."""
    graph = uneven_chain(QUICK_OPS, seed=5)
    renamed = [remat.Op(**{**_fields(op), "name": f"x{index}"}) for index, op in enumerate(graph.ops)]
    other = remat.Graph(**{**_fields(graph), "ops": tuple(renamed)})
    assert other.hash == graph.hash
    assert client.solve(graph, budget_fraction=0.7) == client.solve(other, budget_fraction=0.7)
    pinned = client.solve(graph, budget_fraction=0.7, keep=("f1?",))
    assert {pinned.run_counts[op] for op in matching_ops(graph, ("f1?",))} == {1}
    with pytest.raises(InvalidRequest, match="no op's name matches"):
        client.solve(other, budget_fraction=0.7, keep=("f1?",))


def test_another_order_is_planned_there_and_confirmed_here(client: Client) -> None:
    plan = client.solve(wide(), budget_bytes=12, reorder=True)
    assert plan.is_reordered
    assert plan.provenance.reordered_peak_bytes == plan.peak_bytes == 11
    assert client.submit(wide(), budget_bytes=11, reorder=True).source == "solve"
    with pytest.raises(InvalidRequest, match="reorder"):
        client.submit(wide(), max_overhead=0.1, reorder=True)


def test_the_disk_cache_answers_without_the_service(service: SolverService, tmp_path: Path) -> None:
    graph, cache = uneven_chain(QUICK_OPS, seed=6), PlanCache(tmp_path / "cache")
    with Client(service.url, plan_cache=cache) as asking:
        plan = asking.solve(graph, budget_fraction=0.6)
        service.stop()
        assert asking.solve(graph, budget_fraction=0.6) == plan


@pytest.mark.parametrize("damage", ["truncated", "foreign"])
def test_a_bad_file_in_the_disk_cache_is_dropped(service: SolverService, tmp_path: Path, damage: str) -> None:
    graph, cache = uneven_chain(QUICK_OPS, seed=7), PlanCache(tmp_path)
    with Client(service.url, plan_cache=cache) as asking:
        plan = asking.solve(graph, budget_fraction=0.6)
        (kept,) = (tmp_path / "plans").iterdir()
        if damage == "truncated":
            kept.write_bytes(kept.read_bytes()[:50])
        else:
            remat.save(remat.solve(uneven_chain(QUICK_OPS, seed=8), budget_fraction=0.6), kept)
        assert asking.solve(graph, budget_fraction=0.6) == plan


def test_a_plan_for_another_graph_is_refused() -> None:
    graph, other = uneven_chain(QUICK_OPS, seed=9), uneven_chain(QUICK_OPS, seed=10)
    with pytest.raises(PlanMismatch):
        _client_of_a_service_that_says(remat.solve(other, budget_fraction=0.6)).solve(graph, budget_fraction=0.6)


def test_a_plan_for_another_budget_is_refused() -> None:
    graph = uneven_chain(QUICK_OPS, seed=9)
    with pytest.raises(InvalidPlan, match="budget"):
        _client_of_a_service_that_says(remat.solve(graph, budget_fraction=0.9)).solve(graph, budget_fraction=0.6)


def test_stop_and_keep_best(client: Client) -> None:
    graph = tangle()
    found = threading.Event()

    def on_progress(progress: Progress) -> None:
        if progress.incumbent_ns is not None:
            found.set()

    plan = client.solve(graph, **ENDLESS, on_progress=on_progress, should_stop=found.is_set)
    assert found.is_set()
    assert plan.provenance.stopped_by == "caller"
    assert plan.peak_bytes <= plan.budget_bytes
    again = client.submit(graph, **ENDLESS)
    assert again.source == "solve"  # a plan cut short answers its caller alone
    assert client.cancel(again.id, keep="discard").state == "cancelled"


def test_a_question_whose_answer_was_lost_is_one_solve(service: SolverService) -> None:
    with Client(service.url, plan_cache=None, transport=_LosesAnAnswer()) as client:
        solve = client.submit(tangle(7), **ENDLESS)
        client.cancel(solve.id, keep="discard")
    shown = httpx.get(f"{service.url}/v1/solves").json()["solves"]
    assert [one["state"] for one in shown if one["key"] == solve.key] == ["cancelled"]


class _LosesAnAnswer(httpx.HTTPTransport):
    """A network that breaks down once the service has taken up a question, before its answer arrives."""

    def __init__(self) -> None:
        super().__init__()
        self._has_lost_one = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        if request.url.path == "/v1/solves" and response.is_success and not self._has_lost_one:
            self._has_lost_one = True
            response.close()
            raise httpx.ReadError("the connection was lost")
        return response


def _client_of_a_service_that_says(plan: Plan) -> Client:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=dump_json(plan)))
    return Client("http://service", plan_cache=None, transport=transport)


def _newest_solve(service: SolverService) -> str:
    """The id of the solve that was asked last."""
    newest: str = httpx.get(f"{service.url}/v1/solves", params={"limit": 1}).json()["solves"][0]["id"]
    return newest


def _fields(value: object) -> dict[str, object]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}  # type: ignore[attr-defined]
