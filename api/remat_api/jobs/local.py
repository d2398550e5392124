"""The embedded engine: asyncio tasks in the service's own process, each with its worker process."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from remat_api.jobs.execute import Attempt, AttemptMaker
from remat_api.jobs.solver_process import SolverProcess, WorkerDied
from remat_api.store.jobs import JobStore, LostClaim
from remat_solver.errors import RematError

log = logging.getLogger(__name__)
LOOK_INTERVAL_S = 5.0
STALLED_AFTER_S = 60.0
"""A running job whose worker is silent for so long is taken from it; beats come every second."""


class LocalEngine:
    """`workers` slots, each a warm worker process that takes one job at a time.

    The data folder's lock makes this the only engine on its database, so at the start every job that
    reads as running belongs to a process that is gone, and goes back into the queue.
    """

    def __init__(
        self, jobs: JobStore, make_attempt: AttemptMaker, *, workers: int, memory_bytes: int, drain_s: float
    ) -> None:
        self._jobs = jobs
        self._make_attempt = make_attempt
        self._drain_s = drain_s
        self._workers = [SolverProcess(memory_bytes=memory_bytes) for _ in range(workers)]
        self._attempts: dict[str, Attempt] = {}
        self._wake = [asyncio.Event() for _ in range(workers)]
        self._draining = False
        self._slots: list[asyncio.Task[None]] = []
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Puts back what an earlier process left running, and starts the slots."""
        requeued = await self._jobs.requeue_stalled(silent_for_s=0)
        if requeued:
            log.info("put %d unfinished jobs back into the queue", requeued)
        self._slots = [asyncio.create_task(self._serve(slot)) for slot in range(len(self._workers))]
        self._sweeper = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """Drains: running jobs get `drain_s`; what is then unfinished goes back into the queue."""
        self._draining = True
        self.job_added()
        if self._sweeper:
            self._sweeper.cancel()
        if self._slots:
            _, late = await asyncio.wait(self._slots, timeout=self._drain_s)
            for slot in late:
                slot.cancel()
            await asyncio.gather(*self._slots, return_exceptions=True)
        for attempt in list(self._attempts.values()):
            with contextlib.suppress(LostClaim):
                await self._jobs.release(attempt.claim, reason="the service stopped")
        for worker in self._workers:
            await worker.kill()

    def job_added(self) -> None:
        """Wakes the slots."""
        for wake in self._wake:
            wake.set()

    async def stop_changed(self, job_id: str) -> None:
        """Passes a stop on at once, rather than at the next beat."""
        attempt = self._attempts.get(job_id)
        if attempt is not None:
            with contextlib.suppress(LostClaim):
                await attempt.obey()

    @property
    def live_workers(self) -> int:
        """Slots that take jobs."""
        return 0 if self._draining else sum(not slot.done() for slot in self._slots)

    @property
    def engine_version(self) -> str:
        """What the first worker that is up found."""
        return next((worker.engine_version for worker in self._workers if worker.engine_version), "")

    async def _serve(self, slot: int) -> None:
        worker, wake = self._workers[slot], self._wake[slot]
        try:
            await worker.start()  # warm before the first job comes
        except (WorkerDied, RematError):
            log.exception("worker %d did not start", slot)
        while not self._draining:
            wake.clear()  # before looking: what is added after the look sets it again
            claim = await self._jobs.claim()
            if claim is None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(wake.wait(), LOOK_INTERVAL_S)
                continue
            attempt = self._make_attempt(claim, worker)
            self._attempts[claim.job_id] = attempt
            await attempt.run()
            del self._attempts[claim.job_id]

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            if await self._jobs.requeue_stalled(silent_for_s=STALLED_AFTER_S):
                self.job_added()
