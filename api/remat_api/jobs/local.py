"""The embedded engine: asyncio tasks in the service's own process, each with its worker process."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from remat_api.jobs.cancelling import cancel
from remat_api.jobs.crew import Crew
from remat_api.store.database import AWAY
from remat_api.store.jobs import JobStore

log = logging.getLogger(__name__)
LOOK_INTERVAL_S = 5.0


class LocalEngine:
    """Keeps a crew busy with the jobs of a database that is its own.

    The data folder's lock makes this the only engine on its database, so at the start every job that
    reads as running belongs to a process that is gone, and goes back into the queue.
    """

    def __init__(self, jobs: JobStore, crew: Crew, *, stalled_after_s: float) -> None:
        self._jobs = jobs
        self._crew = crew
        self._stalled_after_s = stalled_after_s
        self._wake = [asyncio.Event() for _ in range(crew.size)]
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Puts back what an earlier process left running, and starts the crew."""
        requeued = await self._jobs.requeue_stalled(silent_for_s=0)
        if requeued:
            log.info("put %d unfinished jobs back into the queue", requeued)
        self._crew.start()
        self._tasks = [asyncio.create_task(self._serve(wake)) for wake in self._wake]
        self._tasks.append(asyncio.create_task(self._sweep()))

    async def stop(self) -> None:
        """Takes no more jobs and drains the crew."""
        for task in self._tasks:
            task.cancel()
        await self._crew.stop()
        await cancel(self._tasks)

    def job_added(self) -> None:
        """Wakes the slots."""
        for wake in self._wake:
            wake.set()

    async def stop_changed(self, job_id: str) -> None:
        """Passes a stop on at once, rather than at the next beat."""
        await self._crew.obey(job_id)

    @property
    def live_workers(self) -> int:
        """Slots that take jobs."""
        return self._crew.live

    @property
    def engine_version(self) -> str:
        """What the first worker that is up found."""
        return self._crew.engine_version

    async def _serve(self, wake: asyncio.Event) -> None:
        while True:
            wake.clear()  # before looking: what is added after the look sets it again
            try:
                if await self._crew.take():
                    continue
            except AWAY:
                log.exception("can't look for jobs")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(wake.wait(), LOOK_INTERVAL_S)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            try:
                requeued = await self._jobs.requeue_stalled(silent_for_s=self._stalled_after_s)
                await self._jobs.expire_queued()
            except AWAY:
                log.exception("can't look after the queue")
                continue
            if requeued:
                self.job_added()
