"""procrastinate, as the way that news of a job takes to the workers of a PostgreSQL.

A delivery is written in the transaction that puts a job into the queue, and tells one worker that has
a slot free to take the next job. Which job that is, whether it still waits and who may work on it is for
the jobs table alone to say: so priorities, cancels and requeues need no second bookkeeping, and a delivery
that is lost or comes twice does no harm (workers look at the table every few seconds anyway).
"""

from __future__ import annotations

import logging

import procrastinate
import sqlalchemy as sa
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Status
from sqlalchemy.ext.asyncio import AsyncConnection

from remat_api.store.database import Connection

log = logging.getLogger(__name__)
TASK = "remat.take_next_job"
QUEUE = "remat"
POOL_CONNECTIONS = 4


def delivery_app(libpq_url: str) -> procrastinate.App:
    """procrastinate on a PostgreSQL; opens no connection yet."""
    connector = procrastinate.PsycopgConnector(conninfo=libpq_url, min_size=1, max_size=POOL_CONNECTIONS)
    return procrastinate.App(connector=connector)


class Deliverer:
    """Writes deliveries in the transactions of others."""

    def __init__(self, app: procrastinate.App) -> None:
        self._app = app

    async def __call__(self, connection: Connection, job_id: str) -> None:
        """Tells a worker, once `connection`'s transaction is committed, that this job waits."""
        assert isinstance(connection, AsyncConnection)
        raw = (await connection.get_raw_connection()).driver_connection
        task = self._app.configure_task(TASK, queue=QUEUE, connection=raw)
        try:
            await task.defer_async(job_id=job_id)
        except ConnectorException as error:
            raise sa.exc.OperationalError(TASK, None, error) from error


async def drop_stalled_deliveries(app: procrastinate.App, *, silent_for_s: float) -> None:
    """Deletes the deliveries that workers took and died with; their jobs are requeued by themselves."""
    manager = app.job_manager
    for delivery in await manager.get_stalled_jobs(queue=QUEUE, seconds_since_heartbeat=silent_for_s):
        if delivery.id is not None:
            try:
                await manager.finish_job_by_id_async(delivery.id, Status.FAILED, delete_job=True)
            except ConnectorException:
                log.info("delivery %s was dropped by another worker", delivery.id)
