"""The engine beside a PostgreSQL: services hand jobs to workers, which are processes of their own on any machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from pathlib import Path

import procrastinate
from procrastinate.exceptions import ConnectorException

from remat_api.jobs.cancelling import cancel
from remat_api.jobs.crew import Crew
from remat_api.jobs.deliveries import QUEUE, TASK, drop_stalled_deliveries
from remat_api.jobs.hub import Hub
from remat_api.jobs.listener import Listener
from remat_api.settings import Settings
from remat_api.states import FINAL
from remat_api.store.clock import new_id, now_ms
from remat_api.store.database import AWAY
from remat_api.store.jobs import JobStore
from remat_api.store.workers import WorkerRecord, WorkerStore

log = logging.getLogger(__name__)
LOOK_INTERVAL_S = 2.0


class ClusterEngine:
    """The service's side: it solves nothing, knows who does, and wakes its waiters at what workers do."""

    def __init__(
        self, jobs: JobStore, workers: WorkerStore, hub: Hub, *, libpq_url: str, stalled_after_s: float
    ) -> None:
        self._workers = workers
        self._hub = hub
        self._caretaker = Caretaker(jobs, stalled_after_s)
        self._listener = Listener(libpq_url, self._hear, hub.notify_all)
        self._living: list[WorkerRecord] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Listens to the workers from now on."""
        self._living = await self._workers.living()
        self._tasks = [asyncio.create_task(self._listener.listen()), asyncio.create_task(self._look())]

    async def stop(self) -> None:
        """Stops listening; the workers go on."""
        await cancel(self._tasks)

    def job_added(self) -> None:
        """A delivery went with the job's own transaction."""

    async def stop_changed(self, job_id: str) -> None:
        """The database's trigger has told the workers."""

    @property
    def live_workers(self) -> int:
        """Slots of all living workers."""
        return sum(worker.slots for worker in self._living)

    @property
    def engine_version(self) -> str:
        """What the workers found."""
        return next((worker.engine for worker in self._living if worker.engine), "")

    async def _hear(self, job_id: str, kind: str) -> None:
        self._hub.notify(job_id, at_end=kind in FINAL)

    async def _look(self) -> None:
        while True:
            try:
                self._living = await self._workers.living()
                await self._caretaker.look()
            except AWAY:
                self._caretaker.lost_touch()
                log.warning("can't look after the queue: the database is away")
                self._living = []
            await asyncio.sleep(LOOK_INTERVAL_S)


class ClusterWorker:
    """What `remat worker` runs: a crew that takes jobs when deliveries come, and looks for them now and then."""

    def __init__(
        self,
        crew: Crew,
        jobs: JobStore,
        workers: WorkerStore,
        app: procrastinate.App,
        settings: Settings,
    ) -> None:
        self._crew = crew
        self._jobs = jobs
        self._workers = workers
        self._app = app
        self._stalled_after_s = settings.stalled_after_s
        self._caretaker = Caretaker(jobs, settings.stalled_after_s)
        self._alive_file = Path(settings.alive_file) if settings.alive_file else None
        self._listener = Listener(settings.libpq_url, self._hear, lambda: None)
        self._id = new_id()
        self._started_ms = now_ms()
        self._extra: set[asyncio.Task[None]] = set()
        app.task(name=TASK, queue=QUEUE)(self._take)

    async def run(self, stop: asyncio.Event) -> None:
        """Works until `stop` is set, then drains."""
        self._crew.start()
        loops = (self._deliver(), self._look(), self._listener.listen())
        tasks = [asyncio.create_task(loop) for loop in loops]
        waiting = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a loop ends by a bug of ours alone: better to end loudly and be started again
        finally:
            for task in (*tasks, waiting):
                task.cancel()
            await self._crew.stop()
            await cancel([*tasks, waiting])
            with contextlib.suppress(*AWAY):
                await self._workers.leave(self._id)

    async def _take(self, job_id: str) -> None:
        """A delivery has come: `job_id` waits, or did."""
        with contextlib.suppress(*AWAY):
            await self._crew.take()

    async def _deliver(self) -> None:
        while True:
            try:
                await self._app.run_worker_async(
                    queues=[QUEUE],
                    concurrency=self._crew.size,
                    delete_jobs="always",
                    install_signal_handlers=False,
                    shutdown_graceful_timeout=0,
                    update_heartbeat_interval=self._stalled_after_s / 3,
                    stalled_worker_timeout=self._stalled_after_s,
                )
            except ConnectorException as error:
                log.warning("can't take deliveries: %s", error.__cause__ or error)
            await asyncio.sleep(LOOK_INTERVAL_S / 4)

    async def _look(self) -> None:
        host = socket.gethostname()
        while True:
            me = WorkerRecord(
                id=self._id,
                host=host,
                slots=self._crew.live,
                engine=self._crew.engine_version,
                started_ms=self._started_ms,
            )
            try:
                await self._workers.beat(me)
                if self._alive_file is not None:
                    self._alive_file.touch()
                await self._caretaker.look()
                await drop_stalled_deliveries(self._app, silent_for_s=self._stalled_after_s)
                if self._crew.idle and (await self._jobs.queue()).queued:
                    self._take_without_delivery(self._crew.idle)
            except (*AWAY, ConnectorException):
                self._caretaker.lost_touch()
                log.warning("can't look after the queue: the database is away")
            await asyncio.sleep(LOOK_INTERVAL_S if me.engine else LOOK_INTERVAL_S / 10)

    def _take_without_delivery(self, count: int) -> None:
        for _ in range(count):
            task = asyncio.create_task(self._take(job_id=""))
            self._extra.add(task)
            task.add_done_callback(self._extra.discard)

    async def _hear(self, job_id: str, kind: str) -> None:
        if kind == "stop":
            await self._crew.obey(job_id)


class Caretaker:
    """Gives the jobs of silent workers to others, and ends what has waited for too long.

    While the database is away no worker can beat: silence counts only once this process has been in touch
    with it for as long as a worker may be silent.
    """

    def __init__(self, jobs: JobStore, stalled_after_s: float) -> None:
        self._jobs = jobs
        self._stalled_after_s = stalled_after_s
        self._in_touch_since_s = time.monotonic()

    async def look(self) -> None:
        """Looks after the queue once. Raises what an absent database raises: tell `lost_touch` of it."""
        if time.monotonic() - self._in_touch_since_s > self._stalled_after_s:
            requeued = await self._jobs.requeue_stalled(silent_for_s=self._stalled_after_s)
            if requeued:
                log.warning("put %d jobs of silent workers back into the queue", requeued)
        await self._jobs.expire_queued()

    def lost_touch(self) -> None:
        """The database is away."""
        self._in_touch_since_s = time.monotonic()
