"""What is known for good: refereed plans by key, and proofs that no plan fits.

Two rules let a proven answer serve other questions of its family (same graph, strategy and pins):
a plan with peak P, proven within some gap at budget B, is within that gap at every budget in [P, B];
and a budget proven infeasible rules out every smaller one. A plan enters only through the referee.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from remat_api.questions import Question
from remat_api.store.blobs import BlobStore, address
from remat_api.store.clock import now_ms
from remat_api.store.database import Connection, Database, insert_if_absent
from remat_api.store.tables import answers, plans
from remat_solver.errors import InfeasibleBudget, NotFound, RematError
from remat_solver.files import dump_json, parse_json
from remat_solver.graph import Graph
from remat_solver.plan import Plan, confirm_plan

RECENT_BYTES = 32 * 2**20
"""How much plan JSON is kept in memory for the ranks that all ask at once."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A plan's address, or the proof that there is no plan. Exactly one is set."""

    plan_id: str | None = None
    error: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class ConfirmedPlan:
    """A plan that the referee has replayed on its graph, with its JSON and address."""

    plan: Plan
    document: bytes

    @property
    def id(self) -> str:
        """The plan's address."""
        return address(self.document)


async def confirm(graph: Graph, plan: Plan) -> ConfirmedPlan:
    """The only way to a `ConfirmedPlan`; raises `InvalidPlan` or `PlanMismatch`."""
    await asyncio.to_thread(confirm_plan, graph, plan)
    return ConfirmedPlan(plan=plan, document=dump_json(plan))


class AnswerStore:
    """Plans and proofs."""

    def __init__(self, database: Database, blobs: BlobStore) -> None:
        self._database = database
        self._blobs = blobs
        self._recent: OrderedDict[str, bytes] = OrderedDict()
        self._recent_keys: OrderedDict[str, Answer] = OrderedDict()

    async def by_key(self, key: str) -> Answer | None:
        """The answer to exactly this question."""
        if key in self._recent_keys:
            return self._recent_keys[key]
        async with self._database.reading() as connection:
            answer = await read_answer(connection, key)
        return answer and self._remember(key, answer)

    async def implied(self, question: Question) -> Answer | None:
        """The answer that another one of the question's family implies."""
        if question.budget_bytes is None:
            return None
        return await self._implied_proof(question) or await self._implied_plan(question)

    async def _implied_proof(self, question: Question) -> Answer | None:
        query = (
            sa.select(answers.c.error)
            .where(answers.c.family == question.family, answers.c.infeasible_below_bytes > question.budget_bytes)
            .order_by(answers.c.infeasible_below_bytes.desc())
            .limit(1)
        )
        async with self._database.reading() as connection:
            error = await connection.scalar(query)
        if error is None:
            return None
        return Answer(error={**error, "budget_bytes": question.budget_bytes, "detail": _cannot_fit(question, error)})

    async def _implied_plan(self, question: Question) -> Answer | None:
        budget_bytes = question.budget_bytes
        query = (
            sa.select(answers.c.plan_id)
            .where(
                answers.c.family == question.family,
                answers.c.budget_bytes >= budget_bytes,
                answers.c.peak_bytes <= budget_bytes,
                answers.c.gap <= question.options.gap,
            )
            .order_by(answers.c.gap)
            .limit(1)
        )
        async with self._database.reading() as connection:
            plan_id = await connection.scalar(query)
        if plan_id is None or budget_bytes is None:
            return None
        proven = parse_json(Plan, await self.document(plan_id))
        confirmed = await confirm(question.stored.graph, dataclasses.replace(proven, budget_bytes=budget_bytes))
        await self.keep(confirmed)
        return await self.learn(question, confirmed)

    async def keep(self, confirmed: ConfirmedPlan) -> str:
        """Stores a plan that answers no key (a stopped solve's best, say); returns its address."""
        data = await self._blobs.pack(confirmed.id, confirmed.document)
        async with self._database.writing() as connection:
            await insert_plan(connection, confirmed, data)
        self._cache(confirmed.id, confirmed.document)
        return confirmed.id

    async def learn(self, question: Question, confirmed: ConfirmedPlan) -> Answer:
        """Makes a kept plan the answer to a question, for good."""
        async with self._database.writing() as connection:
            await insert_answer(connection, question.key, question.family, confirmed)
        return self._remember(question.key, Answer(plan_id=confirmed.id))

    def doubt(self, key: str) -> None:
        """Makes the next look at this key one at the database: somebody else has forgotten its answer."""
        self._recent_keys.pop(key, None)

    async def document(self, plan_id: str) -> bytes:
        """A plan's JSON; raises `NotFound`."""
        if plan_id in self._recent:
            self._recent.move_to_end(plan_id)
            return self._recent[plan_id]
        async with self._database.reading() as connection:
            row = (await connection.execute(sa.select(plans.c.data).where(plans.c.id == plan_id))).one_or_none()
        if row is None:
            raise NotFound(f"there is no plan {plan_id[:12]}.", hint="Ask for it with POST /v1/solves.")
        document = await self._blobs.unpack(plan_id, row.data)
        self._cache(plan_id, document)
        return document

    async def pack(self, confirmed: ConfirmedPlan) -> bytes | None:
        """What the plan's row must hold; see `BlobStore.pack`."""
        return await self._blobs.pack(confirmed.id, confirmed.document)

    def _cache(self, plan_id: str, document: bytes) -> None:
        self._recent[plan_id] = document
        while sum(map(len, self._recent.values())) > RECENT_BYTES:
            self._recent.popitem(last=False)

    def _remember(self, key: str, answer: Answer) -> Answer:
        self._recent_keys[key] = answer
        if len(self._recent_keys) > 10_000:
            self._recent_keys.popitem(last=False)
        return answer


async def read_answer(connection: Connection, key: str) -> Answer | None:
    """The answer to exactly the question with this key."""
    query = sa.select(answers.c.plan_id, answers.c.error).where(answers.c.key == key)
    row = (await connection.execute(query)).one_or_none()
    return row and Answer(plan_id=row.plan_id, error=row.error)


async def insert_plan(connection: Connection, confirmed: ConfirmedPlan, data: bytes | None) -> None:
    """Stores the plan's row unless it is there."""
    plan = confirmed.plan
    row = {
        "id": confirmed.id,
        "graph_hash": plan.graph_hash,
        "objective": plan.objective,
        "status": plan.status,
        "budget_bytes": plan.budget_bytes,
        "peak_bytes": plan.peak_bytes,
        "time_ns": plan.time_ns,
        "bound_ns": plan.bound_ns,
        "gap": plan.gap,
        "overhead": plan.overhead,
        "data": data,
        "created_ms": now_ms(),
    }
    await insert_if_absent(connection, plans, row)


async def insert_answer(
    connection: Connection, key: str, family: str, outcome: ConfirmedPlan | InfeasibleBudget
) -> None:
    """Records what is known about `key`, unless something is: answers never change."""
    row: dict[str, Any] = {"key": key, "family": family, "created_ms": now_ms()}
    if isinstance(outcome, RematError):
        row["error"] = outcome.to_dict()
        row["infeasible_below_bytes"] = max(
            outcome.fields["proven_infeasible_below_bytes"] or 0, (outcome.fields["budget_bytes"] or 0) + 1
        )
    else:
        plan = outcome.plan
        row.update(plan_id=outcome.id, gap=plan.gap, peak_bytes=plan.peak_bytes)
        if plan.objective == "time":
            row["budget_bytes"] = plan.budget_bytes
    await insert_if_absent(connection, answers, row)


def _cannot_fit(question: Question, error: dict[str, Any]) -> str:
    below_bytes, scope = error.get("proven_infeasible_below_bytes"), error.get("proof_scope")
    return InfeasibleBudget.describe(int(question.budget_bytes or 0), int(below_bytes or 0), str(scope))
