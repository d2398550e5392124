"""The solves table: what each client asked, and how it stands.

Solves with equal keys share one job. Cancelling a solve leaves the job to the others: it is stopped
when nobody waits for it any more, and asked for its best plan when all who wait have asked for that.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import sqlalchemy as sa

from remat_api.questions import Question, Terms
from remat_api.states import FINAL, OPEN
from remat_api.store.answers import Answer, read_answer
from remat_api.store.clock import first_id, new_id, now_ms
from remat_api.store.database import Connection, Database
from remat_api.store.jobs import (
    Announce,
    announce_nothing,
    cancelled_error,
    drop_job,
    join_job,
    lock_job,
    open_job,
    settle_stop,
)
from remat_api.store.tables import graphs, jobs, plans, points, solves
from remat_solver.errors import NotFound

FIGURES = ("objective", "status", "budget_bytes", "peak_bytes", "time_ns", "bound_ns", "gap", "overhead")
"""The columns of a plan that are shown with what it answers."""
Kind = Literal["solve", "frontier"]


@dataclass(frozen=True, kw_only=True)
class Solve:
    """A solve as stored, with what its job and plan add. `queue_position` counts from 1."""

    id: str
    owner: str
    job_id: str | None
    key: str
    graph_id: str
    options: dict[str, Any]
    tags: tuple[str, ...]
    state: str
    stop: str
    source: str
    plan_id: str | None
    error: dict[str, Any] | None
    created_ms: int
    started_ms: int | None
    finished_ms: int | None
    queue_deadline_ms: int | None
    attempt: int
    priority: int
    progress: dict[str, Any] | None
    plan: dict[str, Any] | None
    graph_hash: str
    graph_name: str
    points: int | None
    queue_position: int | None = None

    @property
    def kind(self) -> Kind:
        """Whether it asks for one plan or for a frontier."""
        return "solve" if self.points is None else "frontier"

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in FINAL


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which solves to list: those of `owner` (None: everybody's), in `state`, of `kind` (None: any); newest first."""

    owner: str | None
    state: str | None = None
    graph_id: str | None = None
    before: str | None = None
    limit: int = 50
    kind: Kind | None = "solve"


@dataclass(frozen=True, kw_only=True)
class Activity:
    """How many questions came since some moment: all, those that took no new work, and those that failed."""

    asked: int
    shared: int
    failed: int


class SolveStore:
    """Asking, looking, listing, cancelling and forgetting."""

    def __init__(self, database: Database, *, announce: Announce = announce_nothing) -> None:
        self._database = database
        self._announce = announce

    async def record_answer(
        self, question: Question, answer: Answer, *, owner: str, tags: tuple[str, ...]
    ) -> str | None:
        """A solve that is over at once, because its answer is known; None if its plan was forgotten meanwhile."""
        row = _new_row(question, owner, tags) | _answered(answer)
        async with self._database.writing() as connection:
            if answer.plan_id is not None and not await _exists(connection, plans.c.id, answer.plan_id):
                return None
            await connection.execute(sa.insert(solves).values(**row))
        return str(row["id"])

    async def reuse_frontier(self, question: Question, *, owner: str, tags: tuple[str, ...]) -> str | None:
        """A solve that is over at once, because an equal frontier was finished before; None if there is none."""
        done = (jobs.c.key == question.key, jobs.c.state == "done", jobs.c.stop == "")
        async with self._database.writing() as connection:
            held = sa.select(jobs.c.id).where(*done).limit(1).with_for_update(read=True, key_share=True)
            job_id = await connection.scalar(held)
            if job_id is None:
                return None
            row = _new_row(question, owner, tags)
            row |= {"job_id": job_id, "state": "done", "source": "cache", "finished_ms": now_ms()}
            await connection.execute(sa.insert(solves).values(**row))
        return str(row["id"])

    async def points(self, job_id: str) -> list[tuple[str, dict[str, Any]]]:
        """The plans of a frontier so far, ascending in budget: their addresses and figures."""
        query = (
            sa.select(plans.c.id, *(plans.c[figure] for figure in FIGURES))
            .join(points, points.c.plan_id == plans.c.id)
            .where(points.c.job_id == job_id)
            .order_by(points.c.budget_bytes)
        )
        async with self._database.reading() as connection:
            rows = (await connection.execute(query)).all()
        return [(row.id, {figure: getattr(row, figure) for figure in FIGURES}) for row in rows]

    async def join(self, question: Question, terms: Terms, *, owner: str) -> str | None:
        """A solve that waits for the open job of the same key; None if there is no such job."""
        row = _waiting_row(question, terms, owner)
        async with self._database.writing() as connection:
            return await _join(connection, question, row, terms.priority)

    async def ask(self, question: Question, terms: Terms, *, owner: str) -> tuple[str, bool]:
        """A solve with a job of its own, unless there is one to join by now; its id, and whether a job was made."""
        row = _waiting_row(question, terms, owner)
        async with self._database.writing() as connection:
            if not await _exists(connection, graphs.c.id, question.stored.id):
                raise NotFound("the graph was forgotten meanwhile.", hint="Upload it again.")
            while (job_id := await open_job(connection, question, terms.priority)) is None:
                joined = await _join(connection, question, row, terms.priority)
                if joined is not None:
                    return joined, False
            # A job that ended between the look at the answers and here has left its answer: look again,
            # now that no other job for the key can be open.
            answer = await read_answer(connection, question.key)
            if answer is None:
                row |= {"job_id": job_id, "state": "queued", "source": "solve"}
                await self._announce(connection, job_id)
            else:
                await drop_job(connection, job_id)
                row |= _answered(answer)
            await connection.execute(sa.insert(solves).values(**row))
        return str(row["id"]), answer is None

    async def get(self, solve_id: str, *, owner: str | None, kind: Kind = "solve") -> Solve:
        """One solve; raises `NotFound`, also for another owner's (None may see all)."""
        query = _with_details().where(solves.c.id == solve_id, _is(kind))
        async with self._database.reading() as connection:
            row = (await connection.execute(query)).one_or_none()
            if row is None or owner not in (None, row.owner):
                raise _no_such_solve(solve_id)
            position = await _queue_position(connection, row) if row.state == "queued" else None
        return _solve(row, position)

    async def listing(self, wanted: Filter) -> list[Solve]:
        """Solves, newest first, from before `wanted.before` on."""
        query = _with_details().order_by(solves.c.id.desc()).limit(wanted.limit)
        if wanted.kind is not None:
            query = query.where(_is(wanted.kind))
        for column, value in (
            (solves.c.owner, wanted.owner),
            (solves.c.state, wanted.state),
            (solves.c.graph_id, wanted.graph_id),
        ):
            if value is not None:
                query = query.where(column == value)
        if wanted.before is not None:
            query = query.where(solves.c.id < wanted.before)
        async with self._database.reading() as connection:
            return [_solve(row, None) for row in await connection.execute(query)]

    async def activity(self, *, since_ms: int, owner: str | None) -> Activity:
        """What came since a moment, from `owner` (None: from anybody)."""
        number = sa.func.count().label("number")
        query = sa.select(solves.c.source, solves.c.state, number).group_by(solves.c.source, solves.c.state)
        query = query.where(solves.c.id >= first_id(since_ms))
        if owner is not None:
            query = query.where(solves.c.owner == owner)
        async with self._database.reading() as connection:
            rows = (await connection.execute(query)).all()
        return Activity(
            asked=sum(row.number for row in rows),
            shared=sum(row.number for row in rows if row.source != "solve"),
            failed=sum(row.number for row in rows if row.state == "failed"),
        )

    async def cancel(self, solve_id: str, *, owner: str | None, keep: str, kind: Kind = "solve") -> str | None:
        """Cancels a solve (no effect on a finished one); returns its job's id. Raises `NotFound`."""
        async with self._database.writing() as connection:
            mine = sa.select(solves.c.owner, solves.c.job_id).where(solves.c.id == solve_id, _is(kind))
            row = (await connection.execute(mine)).one_or_none()
            if row is None or owner not in (None, row.owner):
                raise _no_such_solve(solve_id)
            job_id: str | None = row.job_id
            await lock_job(connection, job_id)
            if await connection.scalar(sa.select(solves.c.state).where(solves.c.id == solve_id)) in OPEN:
                await _withdraw(connection, solve_id, job_id or "", keep)
        return job_id

    async def delete(self, solve_id: str, *, owner: str | None, kind: Kind = "solve") -> str | None:
        """Cancels a solve if it is open and forgets it; returns its job's id. Raises `NotFound`."""
        job_id = await self.cancel(solve_id, owner=owner, keep="discard", kind=kind)
        async with self._database.writing() as connection:
            await connection.execute(sa.delete(solves).where(solves.c.id == solve_id))
        return job_id


async def _exists(connection: Connection, column: sa.Column[str], value: str) -> bool:
    """Whether there is such a row, which then can't be deleted until the transaction ends."""
    held = sa.select(column).where(column == value).with_for_update(read=True, key_share=True)
    return await connection.scalar(held) is not None


async def _join(connection: Connection, question: Question, row: dict[str, Any], priority: int) -> str | None:
    found = await join_job(connection, question.key, priority)
    if found is None:
        return None
    job_id, state = found
    row |= {"job_id": job_id, "state": state, "source": "joined"}
    await connection.execute(sa.insert(solves).values(**row))
    return str(row["id"])


async def _withdraw(connection: Connection, solve_id: str, job_id: str, keep: str) -> None:
    values: dict[str, Any] = {"stop": keep}
    if keep == "discard":
        values |= {"state": "cancelled", "error": cancelled_error(), "finished_ms": now_ms()}
    await connection.execute(sa.update(solves).where(solves.c.id == solve_id).values(**values))
    await settle_stop(connection, job_id)


def _new_row(question: Question, owner: str, tags: tuple[str, ...]) -> dict[str, Any]:
    return {
        "id": new_id(),
        "owner": owner,
        "key": question.key,
        "graph_id": question.stored.id,
        "options": asdict(question.options),
        "points": question.points,
        "tags": list(tags),
        "stop": "",
        "created_ms": now_ms(),
    }


def _waiting_row(question: Question, terms: Terms, owner: str) -> dict[str, Any]:
    row = _new_row(question, owner, terms.tags)
    if terms.queue_timeout_s is not None:
        row["queue_deadline_ms"] = row["created_ms"] + int(terms.queue_timeout_s * 1000)
    return row


def _is(kind: Kind) -> sa.ColumnElement[bool]:
    return solves.c.points.is_(None) if kind == "solve" else solves.c.points.is_not(None)


def _answered(answer: Answer) -> dict[str, Any]:
    return {
        "state": "done" if answer.plan_id else "failed",
        "source": "cache",
        "plan_id": answer.plan_id,
        "error": answer.error,
        "finished_ms": now_ms(),
    }


def _with_details() -> sa.Select[Any]:
    return (
        sa.select(
            solves,
            jobs.c.started_ms,
            jobs.c.attempt,
            jobs.c.priority,
            jobs.c.progress,
            graphs.c.hash.label("graph_hash"),
            graphs.c.name.label("graph_name"),
            *(plans.c[figure].label(f"plan_{figure}") for figure in FIGURES),
        )
        .outerjoin(jobs, jobs.c.id == solves.c.job_id)
        .outerjoin(plans, plans.c.id == solves.c.plan_id)
        .outerjoin(graphs, graphs.c.id == solves.c.graph_id)
    )


def _solve(row: sa.Row[Any], position: int | None) -> Solve:
    columns = dict(row._mapping)
    plan = {name.removeprefix("plan_"): columns.pop(name) for name in list(columns) if name.startswith("plan_")}
    plan_id = plan.pop("id")
    columns |= {
        "tags": tuple(row.tags),
        "plan_id": plan_id,
        "plan": plan if plan_id else None,
        "attempt": row.attempt or 0,
        "priority": row.priority or 0,
        "graph_hash": row.graph_hash or "",
        "graph_name": row.graph_name or "",
        "queue_position": position,
    }
    return Solve(**columns)


async def _queue_position(connection: Connection, row: sa.Row[Any]) -> int | None:
    ahead = sa.or_(jobs.c.priority > row.priority, sa.and_(jobs.c.priority == row.priority, jobs.c.id <= row.job_id))
    count: int | None = await connection.scalar(
        sa.select(sa.func.count()).select_from(jobs).where(jobs.c.state == "queued", ahead)
    )
    return count


def _no_such_solve(solve_id: str) -> NotFound:
    return NotFound(f"there is no solve {solve_id[:40]!r}.", hint="It may have been deleted, or belong to another key.")
