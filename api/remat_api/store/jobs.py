"""The jobs table: opening, claiming, reporting and finishing, each one transaction.

Every claim takes a fresh token, and every later write of that attempt names it: a worker that was
paused, given up for dead and woken again can't write over its successor (`LostClaim`).

Each transaction that changes a job, its history or the solves that wait for it locks the job's row first.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from remat_api.questions import Question
from remat_api.states import OPEN, State, before
from remat_api.store.answers import AnswerStore, ConfirmedPlan, insert_answer, insert_plan
from remat_api.store.clock import new_id, now_ms
from remat_api.store.database import Connection, Database, insert_if_absent
from remat_api.store.tables import events, jobs, points, solves
from remat_solver.errors import EngineFailed, InfeasibleBudget, QueueTimeout, RematError
from remat_solver.options import Progress

Announce = Callable[[Connection, str], Awaitable[None]]
"""Tells the workers of a job that waits, as part of the transaction that put it into the queue."""


async def announce_nothing(connection: Connection, job_id: str) -> None:
    """Where the workers live in the same process, which wakes them itself after the transaction."""


class LostClaim(Exception):
    """Another attempt at the job has begun, or it is over: stop working on it."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The right to work on a job: one attempt, named by its token. `asked_s`: monotonic time when it was asked for."""

    job_id: str
    token: str
    attempt: int
    key: str
    family: str
    graph_id: str
    options: dict[str, Any]
    points: int | None
    asked_s: float


@dataclass(frozen=True, kw_only=True)
class JobEvent:
    """Something that happened to a job; `seq` counts from 1."""

    seq: int
    kind: str
    body: dict[str, Any]
    created_ms: int


@dataclass(frozen=True, kw_only=True)
class Queue:
    """How many jobs are open, and how long the oldest queued one has waited (0 if none is)."""

    queued: int
    running: int
    oldest_queued_s: float


async def join_job(connection: Connection, key: str, priority: int) -> tuple[str, State] | None:
    """The open job for a key, raised to at least this priority, and its state."""
    is_open = (jobs.c.key == key, jobs.c.state.in_(OPEN), jobs.c.stop == "")
    open_job_row = sa.select(jobs.c.id, jobs.c.state, jobs.c.priority).where(*is_open).with_for_update()
    found = (await connection.execute(open_job_row)).one_or_none()
    if found is None:
        return None
    if found.priority < priority:
        await connection.execute(sa.update(jobs).where(jobs.c.id == found.id).values(priority=priority))
    return found.id, found.state


async def open_job(connection: Connection, question: Question, priority: int) -> str | None:
    """A new job for a question; None if there is an open one for its key, which is then to be joined."""
    job_id = new_id()
    row = {
        "id": job_id,
        "key": question.key,
        "family": question.family,
        "graph_id": question.stored.id,
        "options": asdict(question.options),
        "points": question.points,
        "priority": priority,
        "state": "queued",
        "stop": "",
        "attempt": 0,
        "created_ms": now_ms(),
    }
    if not await insert_if_absent(connection, jobs, row):
        return None
    await add_event(connection, job_id, "queued", {})
    return job_id


async def drop_job(connection: Connection, job_id: str) -> None:
    """Unmakes a job that `open_job` has just made in this transaction."""
    await connection.execute(sa.delete(events).where(events.c.job_id == job_id))
    await connection.execute(sa.delete(jobs).where(jobs.c.id == job_id))


async def add_event(
    connection: Connection, job_id: str, kind: str, body: dict[str, Any], *, moment: int | None = None
) -> None:
    """Appends to the job's history, as of now or of `moment` (milliseconds)."""
    last = sa.select(sa.func.coalesce(sa.func.max(events.c.seq), 0) + 1).where(events.c.job_id == job_id)
    row: dict[str, Any] = {"job_id": job_id, "seq": last.scalar_subquery(), "kind": kind, "body": body}
    row["created_ms"] = now_ms() if moment is None else moment
    await connection.execute(sa.insert(events).values(**row))


async def end_job(
    connection: Connection,
    job_id: str,
    state: State,
    *,
    plan_id: str | None = None,
    error: dict[str, Any] | None = None,
) -> None:
    """Closes a job and every solve that still waits for it."""
    moment = now_ms()
    outcome = {"state": state, "plan_id": plan_id, "error": error, "finished_ms": moment}
    job = sa.update(jobs).where(jobs.c.id == job_id, jobs.c.state.in_(before(state)))
    await connection.execute(job.values(**outcome, token=None))
    waiting = sa.update(solves).where(solves.c.job_id == job_id, solves.c.state.in_(OPEN))
    await connection.execute(waiting.values(**outcome))
    await add_event(connection, job_id, state, {"error": error} if error else {}, moment=moment)


class JobStore:
    """Claims and their writes. A job whose worker died `max_deaths` times fails."""

    def __init__(
        self, database: Database, answers: AnswerStore, *, announce: Announce = announce_nothing, max_deaths: int = 3
    ) -> None:
        self._database = database
        self._answers = answers
        self._announce = announce
        self._max_deaths = max_deaths

    async def claim(self) -> Claim | None:
        """Takes the next job: highest priority first, oldest first among equals."""
        next_job = (
            sa.select(jobs)
            .where(jobs.c.state == "queued")
            .order_by(jobs.c.priority.desc(), jobs.c.id)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        asked_s = time.monotonic()
        async with self._database.writing() as connection:
            row = (await connection.execute(next_job)).one_or_none()
            if row is None:
                return None
            claim = Claim(
                job_id=row.id,
                token=new_id(),
                attempt=row.attempt + 1,
                key=row.key,
                family=row.family,
                graph_id=row.graph_id,
                options=row.options,
                points=row.points,
                asked_s=asked_s,
            )
            moment = now_ms()
            taken = {"state": "running", "attempt": claim.attempt, "token": claim.token, "heartbeat_ms": moment}
            started = sa.func.coalesce(jobs.c.started_ms, moment)
            await connection.execute(
                sa.update(jobs).where(jobs.c.id == claim.job_id).values(**taken, started_ms=started)
            )
            await connection.execute(sa.delete(points).where(points.c.job_id == claim.job_id))
            waiting = (solves.c.job_id == claim.job_id, solves.c.state == "queued")
            await connection.execute(sa.update(solves).where(*waiting).values(state="running"))
            await add_event(connection, claim.job_id, "running", {"attempt": claim.attempt})
        return claim

    async def beat(self, claim: Claim) -> str:
        """Says that the attempt is alive; returns what has been asked of the job. Raises `LostClaim`."""
        async with self._database.writing() as connection:
            await _hold(connection, claim, heartbeat_ms=now_ms())
            stop: str = (await connection.execute(sa.select(jobs.c.stop).where(jobs.c.id == claim.job_id))).scalar_one()
        return stop

    async def report(self, claim: Claim, progress: Progress) -> None:
        """Records where the solve stands. Raises `LostClaim`."""
        body = asdict(progress)
        async with self._database.writing() as connection:
            await _hold(connection, claim, progress=body, heartbeat_ms=now_ms())
            await add_event(connection, claim.job_id, "progress", body)

    async def add_point(self, claim: Claim, question: Question, confirmed: ConfirmedPlan, *, is_answer: bool) -> None:
        """Stores a plan of a frontier, and as the answer to `question` if it is one. Raises `LostClaim`."""
        data = await self._answers.pack(confirmed)
        plan = confirmed.plan
        async with self._database.writing() as connection:
            await _hold(connection, claim, heartbeat_ms=now_ms())
            await insert_plan(connection, confirmed, data)
            row = {"job_id": claim.job_id, "budget_bytes": plan.budget_bytes, "plan_id": confirmed.id}
            await insert_if_absent(connection, points, row)
            if is_answer:
                await insert_answer(connection, question.key, question.family, confirmed)
            figures = {"budget_bytes": plan.budget_bytes, "peak_bytes": plan.peak_bytes, "overhead": plan.overhead}
            await add_event(connection, claim.job_id, "point", {**figures, "gap": plan.gap})

    async def finish_frontier(self, claim: Claim) -> None:
        """Ends a frontier, whose points are stored already. Raises `LostClaim`."""
        async with self._database.writing() as connection:
            await _hold(connection, claim)
            await end_job(connection, claim.job_id, "done")

    async def finish(self, claim: Claim, confirmed: ConfirmedPlan, *, is_answer: bool) -> None:
        """Stores a plan as the job's result, and as the answer to its key if it is one. Raises `LostClaim`."""
        data = await self._answers.pack(confirmed)
        async with self._database.writing() as connection:
            await _hold(connection, claim)
            await insert_plan(connection, confirmed, data)
            if is_answer:
                await insert_answer(connection, claim.key, claim.family, confirmed)
            await end_job(connection, claim.job_id, "done", plan_id=confirmed.id)

    async def fail(self, claim: Claim, error: RematError, *, cancelled: bool = False) -> None:
        """Ends the job without a plan; a proof of infeasibility answers the key for good. Raises `LostClaim`."""
        async with self._database.writing() as connection:
            await _hold(connection, claim)
            if isinstance(error, InfeasibleBudget):
                await insert_answer(connection, claim.key, claim.family, error)
            state: State = "cancelled" if cancelled else "failed"
            await end_job(connection, claim.job_id, state, error=error.to_dict())

    async def release(self, claim: Claim, *, reason: str) -> None:
        """Puts the job back in the queue, for no fault of its own. Raises `LostClaim`."""
        async with self._database.writing() as connection:
            await _hold(connection, claim)
            await self._requeue(connection, claim.job_id, reason)

    async def bury(self, claim: Claim, error: RematError, *, reason: str) -> bool:
        """The attempt's worker died: the job is tried again, or fails with `error` if that happened too often.

        Returns whether it is tried again. Raises `LostClaim`.
        """
        async with self._database.writing() as connection:
            await _hold(connection, claim)
            return await self._bury(connection, claim.job_id, error, reason)

    async def requeue_stalled(self, *, silent_for_s: float) -> int:
        """Puts back every running job whose worker has been silent for so long; returns how many there were."""
        silent_since = now_ms() - int(silent_for_s * 1000)
        stalled = sa.select(jobs.c.id).where(jobs.c.state == "running", jobs.c.heartbeat_ms <= silent_since)
        async with self._database.writing() as connection:
            found = list((await connection.execute(stalled.with_for_update(skip_locked=True))).scalars())
            for job_id in found:
                await self._bury(connection, job_id, _silence(), "its worker fell silent")
        return len(found)

    async def expire_queued(self) -> list[str]:
        """Ends every solve that has waited for a worker for as long as it would; returns the ids of their jobs."""
        late = sa.select(solves.c.job_id).where(solves.c.state == "queued", solves.c.queue_deadline_ms <= now_ms())
        async with self._database.reading() as connection:
            found = sorted(set((await connection.execute(late)).scalars()))
        for job_id in found:
            async with self._database.writing() as connection:
                await _expire(connection, job_id)
        return found

    async def _bury(self, connection: Connection, job_id: str, error: RematError, reason: str) -> bool:
        await connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(deaths=jobs.c.deaths + 1))
        deaths: int = await connection.scalar(sa.select(jobs.c.deaths).where(jobs.c.id == job_id))
        if deaths < self._max_deaths:
            await self._requeue(connection, job_id, reason)
            return True
        await end_job(connection, job_id, "failed", error=error.to_dict())
        return False

    async def _requeue(self, connection: Connection, job_id: str, reason: str) -> None:
        stop = (await connection.execute(sa.select(jobs.c.stop).where(jobs.c.id == job_id))).scalar_one()
        if stop:  # nobody waits for more than its best, and that is lost
            await end_job(connection, job_id, "cancelled", error=cancelled_error())
            return
        job = sa.update(jobs).where(jobs.c.id == job_id, jobs.c.state.in_(before("queued")))
        await connection.execute(job.values(state="queued", token=None, progress=None))
        waiting = sa.update(solves).where(solves.c.job_id == job_id, solves.c.state == "running")
        await connection.execute(waiting.values(state="queued", queue_deadline_ms=None))
        await add_event(connection, job_id, "queued", {"reason": reason})
        await self._announce(connection, job_id)

    async def queue(self) -> Queue:
        """How many jobs are open, and how long the oldest has waited."""
        count = (
            sa.select(jobs.c.state, sa.func.count().label("number"), sa.func.min(jobs.c.created_ms).label("oldest_ms"))
            .where(jobs.c.state.in_(OPEN))
            .group_by(jobs.c.state)
        )
        async with self._database.reading() as connection:
            found = {row.state: row for row in await connection.execute(count)}
        queued, running = found.get("queued"), found.get("running")
        return Queue(
            queued=queued.number if queued else 0,
            running=running.number if running else 0,
            oldest_queued_s=max(0, now_ms() - queued.oldest_ms) / 1000 if queued else 0.0,
        )

    async def events_after(self, job_id: str, seq: int) -> list[JobEvent]:
        """The job's history after event `seq`."""
        query = sa.select(events).where(events.c.job_id == job_id, events.c.seq > seq).order_by(events.c.seq)
        async with self._database.reading() as connection:
            rows = (await connection.execute(query)).all()
        return [JobEvent(seq=row.seq, kind=row.kind, body=row.body, created_ms=row.created_ms) for row in rows]


async def _hold(connection: Connection, claim: Claim, **values: Any) -> None:
    """The fence: writes `values` if the claim is still the job's, else raises `LostClaim`."""
    mine = (jobs.c.id == claim.job_id, jobs.c.token == claim.token, jobs.c.state == "running")
    result = await connection.execute(sa.update(jobs).where(*mine).values(**(values or {"token": claim.token})))
    if result.rowcount != 1:
        raise LostClaim(claim.job_id)


async def lock_job(connection: Connection, job_id: str | None) -> str | None:
    """Keeps others from changing the job until the transaction ends; its state, None if there is no such job."""
    state: str | None = await connection.scalar(sa.select(jobs.c.state).where(jobs.c.id == job_id).with_for_update())
    return state


async def settle_stop(connection: Connection, job_id: str) -> None:
    """Asks of a locked job what those who still wait for it want: nothing, its best plan, or (nobody waits) its end."""
    waiting = sa.select(solves.c.stop).where(solves.c.job_id == job_id, solves.c.state.in_(OPEN))
    wishes = list((await connection.execute(waiting)).scalars())
    if not wishes:
        stop = "discard"
    elif all(wish == "best" for wish in wishes):
        stop = "best"
    else:
        return  # others still wait for the proof
    state = await connection.scalar(sa.select(jobs.c.state).where(jobs.c.id == job_id))
    await connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(stop=stop))
    if state == "queued":
        await end_job(connection, job_id, "cancelled", error=cancelled_error())


async def _expire(connection: Connection, job_id: str) -> None:
    if await lock_job(connection, job_id) != "queued":
        return
    moment = now_ms()
    late = (solves.c.job_id == job_id, solves.c.state == "queued", solves.c.queue_deadline_ms <= moment)
    error = QueueTimeout("no worker was free in time.", hint="Ask again later, allow a longer wait, or add workers.")
    ended = {"state": "failed", "error": error.to_dict(), "finished_ms": moment}
    await connection.execute(sa.update(solves).where(*late).values(**ended))
    await settle_stop(connection, job_id)


def _silence() -> RematError:
    return EngineFailed("the worker process fell silent at every attempt.", hint="See the workers' logs.")


def cancelled_error() -> dict[str, Any]:
    """What a cancelled solve holds in place of a plan."""
    return {
        "type": "job-cancelled",
        "detail": "the solve was cancelled before it had a plan.",
        "hint": "Ask again: POST /v1/solves.",
    }
