"""The service's own verbs, free of HTTP: take a graph, ask, wait, cancel, read an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from remat_api.bodies import Intake
from remat_api.jobs.engine import JobEngine
from remat_api.jobs.hub import Hub
from remat_api.metrics import Metrics
from remat_api.questions import Question, Terms, pose, pose_frontier
from remat_api.security.callers import Caller
from remat_api.settings import Settings
from remat_api.store.answers import Answer, AnswerStore
from remat_api.store.blobs import address
from remat_api.store.costs import CostStore
from remat_api.store.database import Database
from remat_api.store.graphs import GraphStore, survey
from remat_api.store.jobs import JobEvent, JobStore
from remat_api.store.keys import ApiKey, KeyStore
from remat_api.store.repeats import RepeatStore
from remat_api.store.solves import Kind, Solve, SolveStore
from remat_api.stored_graph import StoredGraph
from remat_solver.errors import Conflict, NotFound, RematError, TooManyRequests
from remat_solver.graph import Graph
from remat_solver.options import SolveOptions


@dataclass(frozen=True, kw_only=True)
class Service:
    """Everything a request can reach."""

    settings: Settings
    intake: Intake
    database: Database
    graphs: GraphStore
    answers: AnswerStore
    jobs: JobStore
    solves: SolveStore
    keys: KeyStore
    costs: CostStore
    repeats: RepeatStore
    hub: Hub
    engine: JobEngine
    metrics: Metrics
    _uploading: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    async def take_graph(self, document: bytes, *, owner: str, graph: Graph | None = None) -> tuple[StoredGraph, bool]:
        """Stores a graph (`graph`: its document, where the caller has parsed it); also says whether it is new.

        Of a thousand ranks that upload the same graph at once, one upload is parsed. Raises what
        `Intake.graph` does.
        """
        graph_id = address(document)
        async with self._uploading.setdefault(graph_id, asyncio.Lock()):
            if await self.graphs.has(graph_id):
                return await self.graphs.get(graph_id), False
            graph = graph or await self.intake.graph(document)
            stored = await asyncio.to_thread(survey, document, graph)
            return stored, await self.graphs.put(document, stored, owner)

    async def ask(
        self,
        stored: StoredGraph,
        options: SolveOptions,
        *,
        caller: Caller,
        terms: Terms,
    ) -> Solve:
        """Asks for a plan: answered at once if the answer is known, else by the one job for this question.

        A new job counts against the quotas of the caller's key. Raises `TooManyRequests`.
        """
        return await self._ask(pose(stored, options), caller, terms)

    async def ask_frontier(
        self,
        stored: StoredGraph,
        options: SolveOptions,
        points: int,
        *,
        caller: Caller,
        terms: Terms,
    ) -> Solve:
        """Asks for plans over the whole range of budgets, as one job. Raises `TooManyRequests`."""
        return await self._ask(pose_frontier(stored, options, points), caller, terms)

    async def _ask(self, question: Question, caller: Caller, terms: Terms) -> Solve:
        solve_id = await self._reuse(question, caller, terms)
        if solve_id is None:
            await self._check_queue()
            if caller.key is not None:
                await self._check_quotas(caller.key)
            solve_id, is_new_job = await self.solves.ask(question, terms, owner=caller.owner)
            if is_new_job:
                self.engine.job_added()
        solve = await self.solves.get(solve_id, owner=caller.owner, kind=_kind_of(question))
        self.metrics.questions.labels(solve.source).inc()
        return solve

    async def _reuse(self, question: Question, caller: Caller, terms: Terms) -> str | None:
        """A solve that takes no new work: its answer is known, implied by a known one, or on its way."""
        answer = await self.answers.by_key(question.key)
        if answer is None:
            joined = await self.solves.join(question, terms, owner=caller.owner)
            if joined is not None:
                return joined
            if question.points is not None:
                return await self.solves.reuse_frontier(question, owner=caller.owner, tags=terms.tags)
            answer = await self.answers.implied(question)
        if answer is None:
            return None
        recorded = await self.solves.record_answer(question, answer, owner=caller.owner, tags=terms.tags)
        if recorded is None:
            self.answers.doubt(question.key)
        return recorded

    async def wait(self, solve: Solve, wait_s: float, *, owner: str | None) -> Solve:
        """The solve once it is final, or as it stands after `wait_s` seconds. Holds nothing meanwhile."""
        if solve.is_final or solve.job_id is None:
            return solve
        deadline_s = time.monotonic() + wait_s
        with self.hub.watch(solve.job_id, only_end=True) as watch:
            while True:
                solve = await self.solves.get(solve.id, owner=owner, kind=solve.kind)
                remaining_s = deadline_s - time.monotonic()
                if solve.is_final or remaining_s <= 0:
                    return solve
                await watch.wait(remaining_s)

    async def history(
        self, solve: Solve, after: int, *, owner: str | None, heartbeat_s: float
    ) -> AsyncIterator[JobEvent | None]:
        """The events of a solve after number `after`, as they come, to its end; None when all is quiet."""
        if solve.job_id is None:
            yield _end_of(solve)
            return
        with self.hub.watch(solve.job_id) as watch:
            while True:
                solve = await self.solves.get(solve.id, owner=owner, kind=solve.kind)
                events = await self.jobs.events_after(solve.job_id or "", after)
                for event in events:
                    if solve.finished_ms is not None and event.created_ms > solve.finished_ms:
                        break  # the job went on for others
                    after = event.seq
                    yield event
                if solve.is_final:
                    if not events or events[-1].kind != solve.state:
                        yield _end_of(solve)
                    return
                if not events:
                    yield None
                await watch.wait(heartbeat_s)

    async def cancel(self, solve_id: str, *, owner: str | None, keep: str, kind: Kind = "solve") -> Solve:
        """Cancels a solve; the job goes on for those who still wait for it."""
        await self._tell(await self.solves.cancel(solve_id, owner=owner, keep=keep, kind=kind))
        return await self.solves.get(solve_id, owner=owner, kind=kind)

    async def delete(self, solve_id: str, *, owner: str | None, kind: Kind = "solve") -> None:
        """Cancels and forgets a solve; plans stay."""
        await self._tell(await self.solves.delete(solve_id, owner=owner, kind=kind))

    async def plan_of(self, solve: Solve) -> tuple[str, bytes]:
        """The address and JSON of a solve's plan; raises what the solve ended with, or `Conflict`."""
        if solve.error is not None:
            raise RematError.from_dict(solve.error)
        if solve.plan_id is None:
            raise Conflict(
                f"the solve is {solve.state}.", hint="Wait for it: GET it with Prefer: wait=30.", state=solve.state
            )
        return solve.plan_id, await self.answers.document(solve.plan_id)

    async def frontier_plan(self, frontier: Solve, plan_id: str) -> bytes:
        """The JSON of one of a frontier's plans; raises `NotFound`."""
        if plan_id not in {known for known, _ in await self.solves.points(frontier.job_id or "")}:
            raise NotFound(f"the frontier has no plan {plan_id[:12]}.", hint="Its plans are listed in `points`.")
        return await self.answers.document(plan_id)

    async def plan_by_key(self, key: str) -> tuple[str, bytes]:
        """The address and JSON of the plan that answers a key; raises `NotFound` or `InfeasibleBudget`."""
        answer: Answer | None = await self.answers.by_key(key)
        self.metrics.plans_by_key.labels("hit" if answer else "miss").inc()
        if answer is None:
            raise NotFound(f"no plan is known for key {key[:64]!r}.", hint="Ask for it: POST /v1/solves.")
        if answer.plan_id is None:
            raise RematError.from_dict(answer.error or {})
        return answer.plan_id, await self.answers.document(answer.plan_id)

    async def _check_queue(self) -> None:
        queued = (await self.jobs.queue()).queued
        if queued >= self.settings.max_queued_jobs:
            raise TooManyRequests(f"{queued} jobs are queued already.", hint="Try again later.", retry_after_s=30)

    async def _check_quotas(self, key: ApiKey) -> None:
        if key.max_open_solves and await self.keys.open_solves(key.id) >= key.max_open_solves:
            raise TooManyRequests(
                f"this key has {key.max_open_solves} open solves, as many as it may.",
                hint="Wait for one to end, or cancel it.",
                retry_after_s=10,
            )
        allowed_s = key.solve_seconds_per_day
        if allowed_s and await self.keys.solve_seconds_today(key.id) >= allowed_s:
            raise TooManyRequests(
                f"this key has used its {allowed_s} seconds of solving for today.",
                hint="Plans that are known are served all the same.",
                retry_after_s=3600,
            )

    async def _tell(self, job_id: str | None) -> None:
        if job_id is not None:
            await self.engine.stop_changed(job_id)
            self.hub.notify(job_id, at_end=True)


def _end_of(solve: Solve) -> JobEvent:
    """The last event of a solve that ended apart from its job: it has no number, for it is in no history."""
    return JobEvent(seq=0, kind=solve.state, body={}, created_ms=solve.finished_ms or solve.created_ms)


def _kind_of(question: Question) -> Kind:
    return "solve" if question.points is None else "frontier"
