"""One attempt at one job, the same under every engine: solve in a worker, referee, store."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from remat_api.jobs.cancelling import cancel
from remat_api.jobs.hub import Hub
from remat_api.jobs.solver_process import SolverProcess, WorkerDied
from remat_api.metrics import Metrics
from remat_api.option_fields import read_options
from remat_api.questions import pose
from remat_api.store.answers import ConfirmedPlan, confirm
from remat_api.store.database import AWAY
from remat_api.store.graphs import GraphStore
from remat_api.store.jobs import Claim, JobStore, LostClaim
from remat_api.stored_graph import StoredGraph
from remat_api.tracing import span
from remat_solver.errors import RematError, ServiceError, SolveCancelled
from remat_solver.files import parse_json
from remat_solver.options import Progress
from remat_solver.plan import Plan

log = structlog.stdlib.get_logger(__name__)
_Outcome = TypeVar("_Outcome")
BEAT_INTERVAL_S = 1.0
DATABASE_PATIENCE_S = 300.0
"""How long a result is held while the database is away: restarting one takes seconds, solving again minutes."""


@dataclass(kw_only=True)
class Attempt:
    """A claim being worked on, by one worker process.

    `stopping` is what the worker was last told; `solver_s` what the search itself took, once it has ended.
    """

    claim: Claim
    worker: SolverProcess
    jobs: JobStore
    graphs: GraphStore
    hub: Hub
    metrics: Metrics
    max_threads: int
    stopping: str = ""
    solver_s: float = 0.0

    async def run(self) -> None:
        """Works on the job to its end. Never raises for what a job can do; a lost claim is dropped."""
        job_id, attempt = self.claim.job_id, self.claim.attempt
        structlog.contextvars.bind_contextvars(job_id=job_id, attempt=attempt)
        with span("attempt", remat__job_id=job_id, remat__attempt=attempt) as note:
            note(remat__outcome=await self._run_to_its_end())

    async def _run_to_its_end(self) -> str:
        outcome = "broken"
        try:
            outcome = await self._run()
        except asyncio.CancelledError:
            outcome = "stopped"
            raise
        except LostClaim:
            outcome = "lost"
            await self.worker.kill()
        except AWAY:
            outcome = "database-away"  # the job is given to another attempt once this one's beats are missed
            log.exception("the database was away for too long")
            await self.worker.kill()
        except Exception:
            log.exception("attempt broke")
            await self.worker.kill()
            with contextlib.suppress(LostClaim, *AWAY):
                await self.jobs.fail(self.claim, _broken())
        finally:
            seconds = time.monotonic() - self.claim.asked_s
            self.metrics.job_seconds.labels(outcome).observe(seconds)
            log.info("attempt ends", outcome=outcome, seconds=round(seconds, 4), solver_s=round(self.solver_s, 4))
            self.hub.notify(self.claim.job_id, at_end=True)
        return outcome

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
            log.info("attempt begins", worker=self.worker.pid)
            self.hub.notify(self.claim.job_id, at_end=False)
            async with self._beating():
                confirmed = await self._work()
        except WorkerDied as death:
            return await self._end_after_death(death)
        except RematError as error:
            cancelled, failure = isinstance(error, SolveCancelled), error
            await _persistently(lambda: self.jobs.fail(self.claim, failure, cancelled=cancelled))
            return error.slug
        if confirmed is None:
            await _persistently(lambda: self.jobs.finish_frontier(self.claim))
            return "frontier"
        plan = confirmed.plan
        # A plan that a caller cut short answers that caller, not the question.
        is_answer = not self.stopping or self._is_proven(plan)
        await _persistently(lambda: self.jobs.finish(self.claim, confirmed, is_answer=is_answer))
        self.metrics.gap.observe(plan.gap)
        return plan.status

    async def _work(self) -> ConfirmedPlan | None:
        """The job's plan; None for a frontier, whose plans are stored one by one."""
        claim = self.claim
        stored, document = await self.graphs.with_document(claim.graph_id)
        options = {**claim.options, "threads": min(claim.options["threads"], self.max_threads)}
        async for header, body in self.worker.solve(claim.job_id, options, claim.points, document):
            match header["kind"]:
                case "progress":
                    with contextlib.suppress(*AWAY):
                        await self.jobs.report(claim, Progress(**header["progress"]))
                    self.hub.notify(claim.job_id, at_end=False)
                case "point":
                    await self._add_point(stored, await _confirmed(stored, body))
                case "error":
                    raise RematError.from_dict(header["error"])
                case "plan":
                    self.solver_s = header["seconds"]
                    return await _confirmed(stored, body)
        return None

    async def _add_point(self, stored: StoredGraph, confirmed: ConfirmedPlan) -> None:
        """A proven point answers the question for its budget, as if that had been asked alone."""
        plan = confirmed.plan
        options = read_options({**self.claim.options, "budget_bytes": plan.budget_bytes, "budget_fraction": None})
        is_answer = self._is_proven(plan)
        question = pose(stored, options)
        await _persistently(lambda: self.jobs.add_point(self.claim, question, confirmed, is_answer=is_answer))
        self.metrics.gap.observe(plan.gap)
        self.hub.notify(self.claim.job_id, at_end=False)

    def _is_proven(self, plan: Plan) -> bool:
        return plan.objective == "time" and plan.gap <= float(self.claim.options["gap"])

    async def _end_after_death(self, death: WorkerDied) -> str:
        if self.stopping == "discard":
            await _persistently(lambda: self.jobs.release(self.claim, reason="nobody waits for it"))  # it is cancelled
            return "cancelled"
        self.metrics.attempts_lost.inc()
        log.warning("the worker died", signal=death.signal_name)
        reason = death.signal_name or "its worker ended"
        is_tried_again = await _persistently(lambda: self.jobs.bury(self.claim, death.as_error(), reason=reason))
        return "worker-died" if is_tried_again else "engine-failed"

    @contextlib.asynccontextmanager
    async def _beating(self) -> Any:
        """Keeps saying that the attempt is alive; a lost claim kills the worker, which ends the attempt."""
        beating = asyncio.create_task(self._beat())
        try:
            yield
        finally:
            await cancel([beating])
            if not beating.cancelled():
                beating.result()  # a bug of ours: loudly

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_INTERVAL_S)  # the claim was the first beat
            try:
                await self.obey()
            except LostClaim:
                await self.worker.kill()
                return
            except AWAY:
                log.warning("the database is away; the solve goes on")


async def _persistently(write: Callable[[], Awaitable[_Outcome]]) -> _Outcome:
    """A write that is tried again while the database is away, up to a limit. Raises what it raises."""
    deadline_s, delay_s = time.monotonic() + DATABASE_PATIENCE_S, 0.2
    while True:
        try:
            return await write()
        except AWAY:
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, 5.0)


async def _confirmed(stored: StoredGraph, document: bytes) -> ConfirmedPlan:
    return await confirm(stored.graph, await asyncio.to_thread(parse_json, Plan, document))


def _broken() -> RematError:
    return ServiceError("the service met an internal error while it solved this.", hint="See the service's log.")


AttemptMaker = Callable[[Claim, SolverProcess], Attempt]
