"""One attempt at one job, the same under every engine: solve in a worker, referee, store."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from remat_api.jobs.hub import Hub
from remat_api.jobs.solver_process import SolverProcess, WorkerDied
from remat_api.metrics import Metrics
from remat_api.store.answers import ConfirmedPlan, confirm
from remat_api.store.graphs import GraphStore
from remat_api.store.jobs import Claim, JobStore, LostClaim
from remat_solver.errors import EngineFailed, RematError, ServiceError, SolveCancelled
from remat_solver.files import parse_json
from remat_solver.options import Progress
from remat_solver.plan import Plan

log = structlog.stdlib.get_logger(__name__)
BEAT_INTERVAL_S = 1.0


@dataclass(kw_only=True)
class Attempt:
    """A claim being worked on, by one worker process. `stopping` is what the worker was last told."""

    claim: Claim
    worker: SolverProcess
    jobs: JobStore
    graphs: GraphStore
    hub: Hub
    metrics: Metrics
    max_attempts: int
    max_threads: int
    stopping: str = ""

    async def run(self) -> None:
        """Works on the job to its end. Never raises for what a job can do; a lost claim is dropped."""
        began_s, outcome = time.monotonic(), "broken"
        structlog.contextvars.bind_contextvars(job_id=self.claim.job_id, attempt=self.claim.attempt)
        log.info("attempt begins", worker=self.worker.pid)
        try:
            outcome = await self._run()
        except LostClaim:
            outcome = "lost"
            await self.worker.kill()
        except Exception:
            log.exception("attempt broke")
            await self.worker.kill()
            with contextlib.suppress(LostClaim):
                await self.jobs.fail(self.claim, _broken())
        finally:
            seconds = time.monotonic() - began_s
            self.metrics.job_seconds.labels(outcome).observe(seconds)
            log.info("attempt ends", outcome=outcome, seconds=round(seconds, 3))
            self.hub.notify(self.claim.job_id, at_end=True)

    async def obey(self) -> None:
        """Looks at what has been asked of the job and passes it on. Raises `LostClaim`."""
        stop = await self.jobs.beat(self.claim)
        if stop == "discard" and self.stopping != "discard":
            self.stopping = stop
            await self.worker.kill()
        elif stop == "best" and not self.stopping:
            self.stopping = stop
            await self.worker.stop_and_keep(self.claim.job_id)

    async def _run(self) -> str:
        """Returns how the attempt ended, for the metrics."""
        try:
            await self.worker.start()
            self.hub.notify(self.claim.job_id, at_end=False)
            async with self._beating():
                confirmed = await self._solve()
        except WorkerDied as death:
            return await self._end_after_death(death)
        except RematError as error:
            cancelled = isinstance(error, SolveCancelled)
            await self.jobs.fail(self.claim, error, cancelled=cancelled)
            return error.slug
        plan = confirmed.plan
        # A plan that a caller cut short answers that caller, not the question.
        is_answer = not self.stopping or plan.gap <= self.claim.options["gap"]
        await self.jobs.finish(self.claim, confirmed, is_answer=is_answer)
        self.metrics.gap.observe(plan.gap)
        return plan.status

    async def _solve(self) -> ConfirmedPlan:
        stored = await self.graphs.get(self.claim.graph_id)
        document = await self.graphs.document(self.claim.graph_id)
        options = {**self.claim.options, "threads": min(self.claim.options["threads"], self.max_threads)}
        async for header, body in self.worker.solve(self.claim.job_id, options, document):
            if header["kind"] == "progress":
                await self.jobs.report(self.claim, Progress(**header["progress"]))
                self.hub.notify(self.claim.job_id, at_end=False)
            elif header["kind"] == "error":
                raise RematError.from_dict(header["error"])
            elif header["kind"] == "plan":
                return await confirm(stored.graph, await asyncio.to_thread(parse_json, Plan, body))
        raise EngineFailed("the worker process sent no result.")

    async def _end_after_death(self, death: WorkerDied) -> str:
        if self.stopping == "discard":
            await self.jobs.release(self.claim, reason="nobody waits for it")  # which cancels it
            return "cancelled"
        self.metrics.attempts_lost.inc()
        log.warning("the worker died", signal=death.signal_name)
        if self.claim.attempt < self.max_attempts:
            await self.jobs.release(self.claim, reason=death.signal_name or "its worker ended")
            return "worker-died"
        await self.jobs.fail(self.claim, death.as_error())
        return "engine-failed"

    @contextlib.asynccontextmanager
    async def _beating(self) -> Any:
        """Keeps saying that the attempt is alive; a lost claim kills the worker, which ends the attempt."""
        beating = asyncio.create_task(self._beat())
        try:
            yield
        finally:
            beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beating

    async def _beat(self) -> None:
        while True:
            try:
                await self.obey()
            except LostClaim:
                await self.worker.kill()
                return
            await asyncio.sleep(BEAT_INTERVAL_S)


def _broken() -> RematError:
    return ServiceError("the service met an internal error while it solved this.", hint="See the service's log.")


AttemptMaker = Callable[[Claim, SolverProcess], Attempt]
