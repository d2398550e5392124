"""Forgetting: what is old and nobody holds any more, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from remat_api.states import FINAL
from remat_api.store.blobs import BlobStore
from remat_api.store.clock import now_ms
from remat_api.store.database import Database
from remat_api.store.tables import answers, costs, events, graphs, jobs, plans, points, repeats, solves

BATCH = 200
"""Rows deleted in one transaction: a running service waits for the write lock meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Forgotten:
    """How many of each were deleted."""

    solves: int
    jobs: int
    answers: int
    plans: int
    graphs: int


async def forget(database: Database, blobs: BlobStore, *, older_than_ms: int) -> Forgotten:
    """Deletes finished solves and answers from before that many milliseconds ago, then what only they held.

    A question that is asked again is solved again; open solves and all they need stay.
    """
    before = now_ms() - older_than_ms
    old_solves = sa.select(solves.c.id).where(solves.c.state.in_(FINAL), solves.c.created_ms < before)
    held_jobs = sa.select(solves.c.job_id).where(solves.c.job_id.is_not(None))
    old_jobs = sa.select(jobs.c.id).where(
        jobs.c.state.in_(FINAL), jobs.c.created_ms < before, jobs.c.id.not_in(held_jobs)
    )
    old_answers = sa.select(answers.c.key).where(answers.c.created_ms < before)
    held_plans = sa.union_all(
        *(sa.select(table.c.plan_id).where(table.c.plan_id.is_not(None)) for table in (answers, jobs, solves, points))
    )
    old_plans = sa.select(plans.c.id).where(plans.c.created_ms < before, plans.c.id.not_in(held_plans))
    held_graphs = sa.union_all(sa.select(jobs.c.graph_id), sa.select(solves.c.graph_id))
    old_graphs = sa.select(graphs.c.id).where(graphs.c.created_ms < before, graphs.c.id.not_in(held_graphs))
    async with database.writing() as connection:
        for table in (repeats, costs):
            await connection.execute(sa.delete(table).where(table.c.created_ms < before))

    def forget_document(document_id: str) -> None:
        blobs.delete(document_id, older_than_ms=before)

    return Forgotten(
        solves=await _delete(database, solves.c.id, old_solves),
        jobs=await _delete(database, jobs.c.id, old_jobs, parts=(events.c.job_id, points.c.job_id)),
        answers=await _delete(database, answers.c.key, old_answers),
        plans=await _delete(database, plans.c.id, old_plans, forget_document=forget_document),
        graphs=await _delete(database, graphs.c.id, old_graphs, forget_document=forget_document),
    )


async def _delete(
    database: Database,
    column: sa.Column[str],
    old: sa.Select[tuple[str]],
    *,
    parts: tuple[sa.Column[str], ...] = (),
    forget_document: Callable[[str], None] | None = None,
) -> int:
    """Deletes the rows whose `column` is among `old`, the rows of `parts` that belong to them, and their documents.

    Documents go before the transaction ends: nobody can find the row gone and write the document anew meanwhile.
    """
    deleted = 0
    while True:
        async with database.writing() as connection:
            old_rows = old.limit(BATCH).with_for_update(skip_locked=True, of=column.table)
            locked = list((await connection.execute(old_rows)).scalars())
            # Now that nobody can refer to them any more: has anybody, between the look and the lock?
            batch = list((await connection.execute(old.where(column.in_(locked)))).scalars())
            for part in parts:
                await connection.execute(sa.delete(part.table).where(part.in_(batch)))
            await connection.execute(sa.delete(column.table).where(column.in_(batch)))
            if forget_document is not None:
                for document_id in batch:
                    forget_document(document_id)
        deleted += len(batch)
        if len(batch) < BATCH:
            return deleted
