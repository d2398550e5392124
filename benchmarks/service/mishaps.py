"""Distinct jobs while workers, the service and the database are killed, paused and restarted around them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import sqlalchemy as sa

from remat.client import Client
from remat_api.store.tables import events, jobs, solves
from remat_solver.errors import JobCancelled, NoPlanInTime
from tests.integration.deployments import STALLED_AFTER_S, Deployment
from tests.integration.postgres_server import PostgresServer
from tests.integration.solver_service import is_engine, wait_until
from tests.integration.training_graphs import uneven_chain

ASKERS = 16
LENGTH = 30
"""Twice as many ops."""


@dataclass(frozen=True, kw_only=True)
class Mishaps:
    """What came of it: every question is done or was cancelled, each job ended once, no engine is left.

    Questions are counted, not solves: one whose answer the service could not send any more is asked again.
    """

    jobs: int
    done: int
    cancelled: int
    lost: int
    ended_twice: int
    attempts: int
    engines_left: int
    seconds: float


def survive(deployment: Deployment, postgres: PostgresServer | None, *, count: int, length: int = LENGTH) -> Mishaps:
    """Asks for `count` distinct plans and cancels a tenth of them; meanwhile everything is hit once.

    The deployment must be fresh; `postgres` is the server that it uses, if any.
    """
    cancelled = set(random.Random(0).sample(range(count), count // 10))
    finished: Counter[str] = Counter()
    began_s = time.monotonic()

    def ask(number: int) -> str:
        with Client(deployment.service.url, plan_cache=None, retry_for_s=600.0) as client:
            if number in cancelled:
                solve = client.submit(uneven_chain(length, seed=number), budget_fraction=0.6)
                return client.cancel(solve.id, keep="discard").state
            try:
                client.solve(uneven_chain(length, seed=number), budget_fraction=0.6)
            except (JobCancelled, NoPlanInTime) as error:
                return error.slug
            return "done"

    def asked(number: int) -> None:
        finished[ask(number)] += 1

    with ThreadPoolExecutor(ASKERS) as pool:
        asking = [pool.submit(asked, number) for number in range(count)]
        blows = threading.Thread(target=_strike, args=(deployment, postgres, finished, count))
        blows.start()
        for one in asking:
            one.result()
        blows.join()
    seconds = time.monotonic() - began_s
    wait_until(lambda: not any(is_engine(pid) for pid in deployment.solver_pids()))
    return _audit(deployment, count, seconds)


def _strike(deployment: Deployment, postgres: PostgresServer | None, finished: Counter[str], count: int) -> None:
    """One blow after each sixth of the answers."""

    def kill_service() -> None:
        deployment.service.kill()
        deployment.service.start()

    def pause_worker() -> None:
        paused = deployment.pause_worker()
        time.sleep(STALLED_AFTER_S + 3)
        with contextlib.suppress(ProcessLookupError):
            os.kill(paused, signal.SIGCONT)

    def restart_postgres() -> None:
        if postgres is not None:
            postgres.stop()
            postgres.start()

    for number, blow in enumerate((deployment.kill_worker, kill_service, pause_worker, restart_postgres), 1):
        wait_until(lambda number=number: finished.total() >= count * number // 6)  # type: ignore[misc]
        blow()


def _audit(deployment: Deployment, count: int, seconds: float) -> Mishaps:
    """The figures, from the database itself."""
    engine = sa.create_engine(deployment.sqlalchemy_url)
    ended = sa.select(events.c.job_id).where(events.c.kind.in_(("done", "failed", "cancelled")))
    with engine.connect() as connection:
        asked = connection.execute(sa.select(solves.c.key, solves.c.state).order_by(solves.c.id))
        state_of = {row.key: row.state for row in asked}
        attempts = connection.scalar(sa.select(sa.func.sum(jobs.c.attempt))) or 0
        endings = Counter(connection.execute(ended).scalars())
    engine.dispose()
    states = Counter(state_of.values())
    return Mishaps(
        jobs=count,
        done=states["done"],
        cancelled=states["cancelled"],
        lost=count - states["done"] - states["cancelled"],
        ended_twice=sum(number > 1 for number in endings.values()),
        attempts=int(attempts),
        engines_left=sum(is_engine(pid) for pid in deployment.solver_pids()),
        seconds=seconds,
    )
