"""The two ways to run the service: one process on SQLite, or a service and two workers on a PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from remat_api.settings import Settings
from remat_api.store.migrating import migrate
from tests.integration.postgres_server import PostgresServer
from tests.integration.solver_service import RematProcess, SolverService, is_alive, wait_until, worker_pids

STALLED_AFTER_S = 8.0
MAX_ATTEMPTS = 2
SETTINGS = {
    "REMAT_STALLED_AFTER_S": str(STALLED_AFTER_S),
    "REMAT_MAX_ATTEMPTS": str(MAX_ATTEMPTS),
    "REMAT_DRAIN_S": "0.2",
    "REMAT_LOG_FORMAT": "json",
}


class Deployment(Protocol):
    """A running service and whoever solves for it. A worker is what dies when a machine does."""

    service: SolverService
    is_clustered: bool
    sqlalchemy_url: str

    def start(self) -> None:
        """Starts whatever does not run."""
        ...

    def kill_worker(self) -> None:
        """kill -9 of the worker that took a job last; others, or a new one, are there to go on."""
        ...

    def pause_worker(self) -> int:
        """SIGSTOP of the worker that took a job last; its process id."""
        ...

    def drain(self) -> None:
        """Stops the workers cleanly and starts them again."""
        ...

    def solver_pids(self) -> set[int]:
        """The processes below the workers: solvers, supervisors, engines."""
        ...

    def solving(self) -> list[RematProcess]:
        """The processes whose logs tell of attempts."""
        ...

    def stop(self) -> None:
        """Stops everything."""
        ...


class Embedded:
    """`remat serve` on SQLite: its workers are the solver processes below it."""

    is_clustered = False

    def __init__(self, folder: Path, **settings: str) -> None:
        self.service = SolverService(folder, "--workers", "1", **{**SETTINGS, **settings})
        self.sqlalchemy_url = Settings(data_dir=folder / "data").sqlalchemy_url

    def start(self) -> None:
        if not self.service.is_running:
            self.service.start()

    def kill_worker(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended since
            os.kill(_last_attempt(self.service)[1], signal.SIGKILL)

    def pause_worker(self) -> int:
        pid = _last_attempt(self.service)[1]
        os.kill(pid, signal.SIGSTOP)
        return pid

    def drain(self) -> None:
        self.service.stop()
        self.service.start()

    def solver_pids(self) -> set[int]:
        return worker_pids(self.service.pid)

    def solving(self) -> list[RematProcess]:
        return [self.service]

    def stop(self) -> None:
        self.service.stop()


class Clustered:
    """`remat serve` and two `remat worker` on a PostgreSQL, migrated by `remat migrate`."""

    is_clustered = True

    def __init__(
        self, folder: Path, postgres: PostgresServer, *, workers: int = 2, per_worker: int = 1, **settings: str
    ) -> None:
        database_url = postgres.new_database()
        self.sqlalchemy_url = Settings(data_dir=folder, database_url=database_url).sqlalchemy_url
        environment = {**SETTINGS, **settings, "REMAT_DATABASE_URL": database_url}
        self.service = SolverService(folder, **environment)
        names = [f"worker{number}" for number in range(workers)]
        self.workers = [
            RematProcess(folder / f"{name}.log", "worker", "--workers", str(per_worker), **environment)
            for name in names
        ]
        migrate(self.sqlalchemy_url)

    def start(self) -> None:
        for worker in self.workers:
            if not worker.is_running:
                worker.start()
        if not self.service.is_running:
            self.service.start()

    def kill_worker(self) -> None:
        worker = self._busy_worker()
        below = worker_pids(worker.pid)
        worker.kill()
        wait_until(lambda: not any(is_alive(pid) for pid in below))
        worker.start()

    def pause_worker(self) -> int:
        pid = self._busy_worker().pid
        os.kill(pid, signal.SIGSTOP)
        return pid

    def drain(self) -> None:
        for worker in self.workers:
            assert worker.stop() in (0, -signal.SIGTERM), worker.printed()  # the signal, where it was only starting
            worker.start()

    def solver_pids(self) -> set[int]:
        return {pid for worker in self.workers if worker.is_running for pid in worker_pids(worker.pid)}

    def solving(self) -> list[RematProcess]:
        return self.workers

    def stop(self) -> None:
        for process in (self.service, *self.workers):
            process.stop()

    def _busy_worker(self) -> RematProcess:
        return max(self.workers, key=_last_attempt)


@contextlib.contextmanager
def running(deployment: Deployment) -> Iterator[None]:
    """Starts a deployment and stops it at the end."""
    deployment.start()
    try:
        yield
    finally:
        deployment.stop()


def _last_attempt(process: RematProcess) -> tuple[str, int]:
    """When a process began to work on a job last, and its solver process; ("", 0) if it never did."""
    begun = [line for line in process.logged() if line["event"] == "attempt begins"]
    return (begun[-1]["timestamp"], begun[-1]["worker"]) if begun else ("", 0)
