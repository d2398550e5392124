"""The solver processes of one machine: each takes one job at a time, under either engine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from remat_api.jobs.cancelling import cancel
from remat_api.jobs.execute import Attempt, AttemptMaker
from remat_api.jobs.solver_process import SolverProcess, WorkerDied
from remat_api.store.database import AWAY
from remat_api.store.jobs import Claim, JobStore, LostClaim
from remat_solver.errors import RematError

log = logging.getLogger(__name__)
CLAIM_PATIENCE_S = 10.0


class Crew:
    """`size` warm solver processes and the attempts that they work on."""

    def __init__(
        self, jobs: JobStore, make_attempt: AttemptMaker, *, size: int, memory_bytes: int, drain_s: float
    ) -> None:
        self.size = size
        self._jobs = jobs
        self._make_attempt = make_attempt
        self._drain_s = drain_s
        self._members = [SolverProcess(memory_bytes=memory_bytes) for _ in range(size)]
        self._idle: asyncio.Queue[SolverProcess] = asyncio.Queue()
        self._attempts: dict[str, Attempt] = {}
        self._tasks: set[asyncio.Task[bool]] = set()
        self._warming: list[asyncio.Task[None]] = []
        self._claiming = 0
        self._draining = False

    def start(self) -> None:
        """Starts the processes; each is idle from when it is up."""
        self._warming = [asyncio.create_task(self._warm(member)) for member in self._members]

    async def take(self) -> bool:
        """Waits for an idle process, claims the next job and works on it to its end; False if there was none.

        The work goes on if the caller is cancelled.
        """
        if self._draining:
            return False
        task = asyncio.create_task(self._take())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def obey(self, job_id: str) -> None:
        """Passes on at once what was asked of a job that is worked on here, rather than at the next beat."""
        attempt = self._attempts.get(job_id)
        if attempt is not None:
            with contextlib.suppress(LostClaim, *AWAY):
                await attempt.obey()

    async def stop(self) -> None:
        """Drains: running jobs get `drain_s`; what is then unfinished goes back into the queue."""
        self._draining = True
        for warming in self._warming:
            warming.cancel()
        await _until(lambda: not self._claiming, CLAIM_PATIENCE_S)  # a claim that is cut off would be nobody's
        await _until(lambda: not self._attempts, self._drain_s)
        await cancel([*self._tasks, *self._warming])
        for attempt in list(self._attempts.values()):
            with contextlib.suppress(LostClaim, *AWAY):
                await self._jobs.release(attempt.claim, reason="the service stopped")
        for member in self._members:
            await member.kill()

    @property
    def live(self) -> int:
        """How many could take a job now or later."""
        return 0 if self._draining else self.size

    @property
    def idle(self) -> int:
        """How many wait for work."""
        return 0 if self._draining else self._idle.qsize()

    @property
    def engine_version(self) -> str:
        """What the first process that is up found; "" while none is."""
        return next((member.engine_version for member in self._members if member.engine_version), "")

    async def _warm(self, member: SolverProcess) -> None:
        try:
            await member.start()
        except (WorkerDied, RematError):
            log.exception("a solver process did not start")
        self._idle.put_nowait(member)  # an attempt starts it again, and reports why it can't

    async def _take(self) -> bool:
        member = await self._idle.get()
        try:
            claim = await self._claim()
            if claim is None:
                return False
            attempt = self._make_attempt(claim, member)
            self._attempts[claim.job_id] = attempt
            await attempt.run()
            del self._attempts[claim.job_id]
            return True
        finally:
            self._idle.put_nowait(member)

    async def _claim(self) -> Claim | None:
        if self._draining:
            return None
        self._claiming += 1
        try:
            return await self._jobs.claim()
        finally:
            self._claiming -= 1


async def _until(condition: Callable[[], bool], patience_s: float) -> None:
    """Returns once the condition holds, or after so many seconds."""
    deadline_s = time.monotonic() + patience_s
    while not condition() and time.monotonic() < deadline_s:
        await asyncio.sleep(0.02)
