"""Jobs in the database: the allowed moves, fenced attempts, the order of claims, and what becomes of the lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa

from remat_api.assembly import open_stores
from remat_api.questions import Question, Terms, pose
from remat_api.settings import Settings
from remat_api.states import FINAL, MOVES, STATES, before
from remat_api.store.answers import AnswerStore, confirm
from remat_api.store.database import Database
from remat_api.store.graphs import GraphStore, survey
from remat_api.store.jobs import Claim, JobStore, LostClaim
from remat_api.store.migrating import applied_revision, migrate, prepare
from remat_api.store.solves import SolveStore
from remat_api.store.tables import jobs, metadata
from remat_solver.errors import (
    EngineFailed,
    InfeasibleBudget,
    InvalidPlan,
    InvalidRequest,
    PlanMismatch,
    SolveCancelled,
)
from remat_solver.files import dump_json
from remat_solver.options import Progress, SolveOptions
from remat_solver.plan import Plan, Provenance, referee_plan
from remat_solver.simulate import store_all_schedule
from tests.integration.postgres_server import PostgresServer
from tests.integration.training_graphs import uneven_chain

pytestmark = pytest.mark.anyio


@dataclass(kw_only=True)
class Desk:
    """The stores, and a way to ask."""

    database: Database
    graphs: GraphStore
    answers: AnswerStore
    jobs: JobStore
    solves: SolveStore

    async def ask(
        self, budget_fraction: float, *, priority: int = 0, queue_timeout_s: float | None = None
    ) -> tuple[str, Question]:
        """Opens a job for the test graph; returns the solve's id and the question."""
        graph = uneven_chain(5)
        document = dump_json(graph)
        stored = survey(document, graph)
        await self.graphs.put(document, stored, "me")
        question = pose(stored, SolveOptions(budget_fraction=budget_fraction))
        terms = Terms(priority=priority, queue_timeout_s=queue_timeout_s)
        solve_id, _ = await self.solves.ask(question, terms, owner="me")
        return solve_id, question

    async def claim(self) -> Claim:
        """The next claim, which there must be."""
        claim = await self.jobs.claim()
        assert claim is not None
        return claim

    async def state(self, solve_id: str) -> str:
        """The state of a solve."""
        return (await self.solves.get(solve_id, owner="me")).state


@pytest.fixture(params=["sqlite", "postgresql"])
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    """Stores on an empty database of each kind."""
    settings = Settings(data_dir=tmp_path)
    if request.param == "postgresql":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        settings = Settings(data_dir=tmp_path, database_url=postgres.new_database())
        migrate(settings.sqlalchemy_url)
    await asyncio.to_thread(prepare, settings)
    async with open_stores(settings) as stores:
        yield Desk(
            database=stores.database,
            graphs=stores.graphs,
            answers=stores.answers,
            jobs=stores.jobs,
            solves=stores.solves,
        )


def store_all_plan(question: Question) -> Plan:
    """A plan for a question whose budget is the store-all peak."""
    graph = question.stored.graph
    return referee_plan(
        graph,
        store_all_schedule(graph),
        budget_bytes=question.budget_bytes or 0,
        bound_ns=graph.total_time_ns,
        proof_scope="order",
        provenance=Provenance(strategy="store_all"),
    )


async def test_a_finished_job_is_the_solves_plan_and_the_keys_answer(desk: Desk) -> None:
    solve_id, question = await desk.ask(1.0)
    claim = await desk.claim()
    assert await desk.state(solve_id) == "running"
    plan = store_all_plan(question)
    await desk.jobs.finish(claim, await confirm(question.stored.graph, plan), is_answer=True)
    answer = await desk.answers.by_key(question.key)
    assert await desk.state(solve_id) == "done"
    assert answer is not None
    assert await desk.answers.document(answer.plan_id or "") == dump_json(plan)
    assert [event.kind for event in await desk.jobs.events_after(claim.job_id, 0)] == ["queued", "running", "done"]


async def test_a_plan_that_the_referee_refuses_never_gets_in(desk: Desk) -> None:
    _, question = await desk.ask(1.0)
    plan = store_all_plan(question)
    wrong_time = Plan(**{**plan.__dict__, "time_ns": plan.time_ns + 1})
    with pytest.raises(InvalidPlan, match="simulator"):
        await confirm(question.stored.graph, wrong_time)
    with pytest.raises(PlanMismatch):
        await confirm(uneven_chain(6), plan)


async def test_an_attempt_that_lost_its_claim_can_write_nothing(desk: Desk) -> None:
    """A worker paused for long, whose job was given to another, wakes up again."""
    solve_id, question = await desk.ask(1.0)
    stale = await desk.claim()
    assert await desk.jobs.requeue_stalled(silent_for_s=0) == 1
    current = await desk.claim()
    assert (stale.job_id, stale.attempt, current.attempt) == (current.job_id, 1, 2)
    confirmed = await confirm(question.stored.graph, store_all_plan(question))
    progress = Progress(elapsed_s=1.0, bound_ns=1)
    infeasible = InfeasibleBudget("no", budget_bytes=1, proven_infeasible_below_bytes=2)
    for write in (
        desk.jobs.beat(stale),
        desk.jobs.report(stale, progress),
        desk.jobs.finish(stale, confirmed, is_answer=True),
        desk.jobs.fail(stale, infeasible),
        desk.jobs.release(stale, reason="x"),
        desk.jobs.add_point(stale, question, confirmed, is_answer=True),
        desk.jobs.finish_frontier(stale),
    ):
        with pytest.raises(LostClaim):
            await write
    assert await desk.answers.by_key(question.key) is None
    assert await desk.state(solve_id) == "running"
    await desk.jobs.finish(current, confirmed, is_answer=True)
    with pytest.raises(LostClaim):
        await desk.jobs.finish(current, confirmed, is_answer=True)


async def test_only_silent_jobs_are_taken_from_their_workers(desk: Desk) -> None:
    await desk.ask(1.0)
    claim = await desk.claim()
    assert await desk.jobs.requeue_stalled(silent_for_s=60) == 0
    assert await desk.jobs.beat(claim) == ""


async def test_claims_go_by_priority_and_then_by_age(desk: Desk) -> None:
    asked = [
        await desk.ask(fraction, priority=priority) for fraction, priority in ((1.0, 0), (0.9, 5), (0.8, 0), (0.7, 5))
    ]
    keys = [question.key for _, question in asked]
    claimed = [(await desk.claim()).key for _ in asked]
    assert claimed == [keys[1], keys[3], keys[0], keys[2]]
    assert await desk.jobs.claim() is None


async def test_an_urgent_asker_lifts_the_job_that_it_joins(desk: Desk) -> None:
    await desk.ask(1.0)
    _, question = await desk.ask(0.9)
    joined = await desk.solves.join(question, Terms(priority=9), owner="you")
    assert joined is not None
    assert (await desk.claim()).key == question.key


async def test_asking_at_once_opens_one_job(desk: Desk) -> None:
    asked = await asyncio.gather(*(desk.ask(0.9) for _ in range(30)))
    solves = [await desk.solves.get(solve_id, owner="me") for solve_id, _ in asked]
    assert len({solve.job_id for solve in solves}) == 1
    assert sorted(solve.source for solve in solves) == ["joined"] * 29 + ["solve"]


async def test_claiming_at_once_gives_each_job_once(desk: Desk) -> None:
    for hundredths in range(80, 90):
        await desk.ask(hundredths / 100)
    claims = await asyncio.gather(*(desk.jobs.claim() for _ in range(10)))
    claimed = [claim.job_id for claim in claims if claim is not None]
    while (claim := await desk.jobs.claim()) is not None:  # one that another was about to take was skipped
        claimed.append(claim.job_id)
    assert len(claimed) == len(set(claimed)) == 10


async def test_cancels_and_endings_at_once_leave_nothing_open(desk: Desk) -> None:
    asked = [(await desk.ask(1.0))[0] for _ in range(10)]
    _, question = await desk.ask(1.0)
    claim = await desk.claim()
    confirmed = await confirm(question.stored.graph, store_all_plan(question))
    finish = desk.jobs.finish(claim, confirmed, is_answer=True)
    cancels = [desk.solves.cancel(solve_id, owner="me", keep="discard") for solve_id in asked]
    results = await asyncio.gather(*cancels[:5], finish, *cancels[5:], return_exceptions=True)
    assert [result for result in results if isinstance(result, Exception)] == []
    assert {await desk.state(solve_id) for solve_id in asked} <= {"done", "cancelled"}
    assert (await desk.jobs.queue()).running == 0


async def test_what_waits_for_too_long_ends_and_leaves_the_others_their_job(desk: Desk) -> None:
    hasty, question = await desk.ask(0.9, queue_timeout_s=0.0)
    patient = await desk.solves.join(question, Terms(), owner="me")
    assert patient is not None
    assert len(await desk.jobs.expire_queued()) == 1
    ended = await desk.solves.get(hasty, owner="me")
    assert (ended.state, (ended.error or {})["type"]) == ("failed", "queue-timeout")
    assert await desk.state(patient) == "queued"
    assert (await desk.claim()).key == question.key
    alone, _ = await desk.ask(0.8, queue_timeout_s=0.0)
    await desk.jobs.expire_queued()
    assert await desk.state(alone) == "failed"
    assert await desk.jobs.claim() is None


async def test_a_job_fails_with_the_last_worker_that_it_may_cost(desk: Desk) -> None:
    solve_id, _ = await desk.ask(0.9)
    for deaths in (1, 2, 3):
        claim = await desk.claim()
        assert await desk.jobs.bury(claim, EngineFailed("it died"), reason="SIGKILL") == (deaths < 3)
    assert await desk.state(solve_id) == "failed"
    other, _ = await desk.ask(0.8)
    for _ in range(5):  # a clean stop is no fault of the job's
        await desk.jobs.release(await desk.claim(), reason="the service stopped")
    assert await desk.state(other) == "queued"


async def test_keep_best_waits_for_all_who_wait(desk: Desk) -> None:
    first, question = await desk.ask(0.9)
    second = await desk.solves.join(question, Terms(), owner="me")
    assert second is not None
    claim = await desk.claim()
    await desk.solves.cancel(first, owner="me", keep="best")
    assert await desk.jobs.beat(claim) == ""
    assert await desk.state(first) == "running"
    await desk.solves.cancel(second, owner="me", keep="best")
    assert await desk.jobs.beat(claim) == "best"
    assert await desk.solves.join(question, Terms(), owner="me") is None  # it is ending: ask anew
    await desk.jobs.fail(claim, SolveCancelled("nothing found"), cancelled=True)
    assert [await desk.state(solve) for solve in (first, second)] == ["cancelled", "cancelled"]


async def test_a_job_that_nobody_waits_for_is_not_taken_up_again(desk: Desk) -> None:
    solve_id, _ = await desk.ask(0.9)
    claim = await desk.claim()
    await desk.solves.cancel(solve_id, owner="me", keep="discard")
    assert await desk.jobs.beat(claim) == "discard"
    assert await desk.jobs.requeue_stalled(silent_for_s=0) == 1
    assert await desk.jobs.claim() is None


async def test_cancelling_a_queued_solve_ends_its_job_at_once(desk: Desk) -> None:
    for keep in ("best", "discard"):
        solve_id, _ = await desk.ask(0.9)
        await desk.solves.cancel(solve_id, owner="me", keep=keep)
        assert await desk.state(solve_id) == "cancelled"
        assert await desk.jobs.claim() is None


async def test_final_states_are_final(desk: Desk) -> None:
    assert {source for source, _ in MOVES}.isdisjoint(FINAL)
    solve_id, question = await desk.ask(0.9)
    claim = await desk.claim()
    await desk.jobs.fail(claim, InfeasibleBudget("no", budget_bytes=question.budget_bytes))
    await desk.solves.cancel(solve_id, owner="me", keep="discard")
    assert await desk.state(solve_id) == "failed"
    async with desk.database.reading() as connection:
        assert await connection.scalar(sa.select(jobs.c.state)) == "failed"


def test_the_table_of_moves_names_known_states_only() -> None:
    assert {state for move in MOVES for state in move} == set(STATES)
    assert before("running") == ("queued",)
    assert set(before("cancelled")) == {"queued", "running"}


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_migrations_make_the_tables_that_the_code_uses(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """From the first revision to the last, with the columns and indexes of `tables`."""
    settings = Settings(data_dir=tmp_path)
    if kind == "postgresql":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        settings = Settings(data_dir=tmp_path, database_url=postgres.new_database())
    url = settings.sqlalchemy_url
    migrate(url, "0001")
    if kind == "postgresql":
        with pytest.raises(InvalidRequest, match=r"revision 0001; this version needs .* `remat migrate`"):
            prepare(settings)
    migrate(url)
    migrate(url)
    prepare(settings)
    assert applied_revision(url) == "0005"
    engine = sa.create_engine(url)
    found = sa.inspect(engine)
    for table in metadata.sorted_tables:
        columns = {
            column["name"]: (str(column["type"]).replace("DOUBLE PRECISION", "FLOAT"), column["nullable"])
            for column in found.get_columns(table.name)
        }
        wanted = {column.name: (str(column.type.compile(engine.dialect)), column.nullable) for column in table.columns}
        assert columns == wanted, table.name
        assert {index["name"] for index in found.get_indexes(table.name)} == {index.name for index in table.indexes}
    engine.dispose()
