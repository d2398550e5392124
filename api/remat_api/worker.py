"""The worker process: solves one graph at a time, handed over a pipe. Run as `python -m remat_api.worker`.

It ends when its input does, that is, when the service dies in any way; the engine's own supervisor
then ends the engine. Whatever libraries print goes to standard error, so that messages stay whole.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, BinaryIO

from remat_api.jobs.messages import encode, read_message
from remat_api.option_fields import read_options
from remat_solver.engines import engine_named
from remat_solver.errors import EngineError, EngineFailed, RematError, SolveError
from remat_solver.files import dump_json, parse_json
from remat_solver.graph import Graph
from remat_solver.options import Progress, SolveOptions
from remat_solver.plan import Plan
from remat_solver.solve import frontier, solve

NICENESS = 5
"""Below the process that answers requests, which must stay quick while engines use every core."""
PROGRESS_INTERVAL_S = 0.2


class Pipe:
    """The two ends of the pipe to the service, moved away from the standard streams."""

    def __init__(self) -> None:
        self._input: BinaryIO = os.fdopen(os.dup(0), "rb")
        self._output: BinaryIO = os.fdopen(os.dup(1), "wb")
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        self._sending = threading.Lock()

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Sends one message, whole."""
        with self._sending:
            self._output.write(encode(header, body))
            self._output.flush()

    def receive(self) -> tuple[dict[str, Any], bytes] | None:
        """The next message; None when the service is gone."""
        return read_message(self._input)


class Desk:
    """What lies before the worker: at most one task, and whether it was told to stop."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._arrived = threading.Condition()
        self._task: tuple[dict[str, Any], bytes] | None = None
        self._job_id = ""
        self.stop = threading.Event()

    def listen(self) -> None:
        """Takes messages until the service is gone, and then ends the process at once."""
        while (message := self._pipe.receive()) is not None:
            header = message[0]
            with self._arrived:
                if header["kind"] == "solve":
                    self.stop.clear()
                    self._job_id, self._task = header["job_id"], message
                    self._arrived.notify()
                elif header["job_id"] == self._job_id:
                    self.stop.set()
        os._exit(0)

    def next_task(self) -> tuple[dict[str, Any], bytes]:
        """Waits for a task."""
        with self._arrived:
            while self._task is None:
                self._arrived.wait()
            task, self._task = self._task, None
        return task


class Reporter:
    """Sends progress, not oftener than the interval unless the incumbent improved."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._sent_s = 0.0
        self._incumbent_ns: int | None = None

    def __call__(self, progress: Progress) -> None:
        """The solver's `on_progress`."""
        now = time.monotonic()
        is_news = progress.incumbent_ns != self._incumbent_ns
        if is_news or now - self._sent_s >= PROGRESS_INTERVAL_S:
            self._sent_s, self._incumbent_ns = now, progress.incumbent_ns
            self._pipe.send({"kind": "progress", "progress": asdict(progress)})


def answer(pipe: Pipe, desk: Desk, header: dict[str, Any], body: bytes) -> None:
    """Solves one task and sends its plan or its error."""
    try:
        graph = parse_json(Graph, body)
        options, report, stop = read_options(header["options"]), Reporter(pipe), desk.stop.is_set
        if header["points"] is None:
            began_s = time.monotonic()
            plan = solve(graph, options, on_progress=report, should_stop=stop)
            pipe.send({"kind": "plan", "seconds": time.monotonic() - began_s}, dump_json(plan))
        else:
            sweep(pipe, graph, options, header["points"], report, stop)
    except RematError as error:
        pipe.send({"kind": "error", "error": error.to_dict()})
    except MemoryError:
        shortage = EngineFailed("the solve ran out of memory.", hint="Allow jobs more memory, or raise the gap.")
        pipe.send({"kind": "error", "error": shortage.to_dict()})
    except Exception as surprise:  # a bug of ours: trying again would not help, so the worker lives on and says so
        traceback.print_exc()
        bug = SolveError(
            f"the solver met an internal error ({type(surprise).__name__}).", hint="See the service's log; report it."
        )
        pipe.send({"kind": "error", "error": bug.to_dict()})


def sweep(
    pipe: Pipe, graph: Graph, options: SolveOptions, points: int, report: Reporter, stop: Callable[[], bool]
) -> None:
    """Sends the plans of a frontier as they are found."""

    def send_point(plan: Plan) -> None:
        pipe.send({"kind": "point"}, dump_json(plan))

    frontier(graph, points, options=options, on_point=send_point, on_progress=report, should_stop=stop)
    pipe.send({"kind": "end"})


def engine_version() -> str:
    """Name and version of the default MIP engine, which this asks of its program; "" if it is missing."""
    engine = engine_named("cbc")
    try:
        return f"{engine.name} {engine.version()}"
    except EngineError as error:
        sys.stderr.write(f"{error}\n")
        return ""


def main() -> None:
    """Answers tasks until the service is gone."""
    os.nice(NICENESS)
    memory_bytes = int(os.environ.get("REMAT_JOB_MEMORY_BYTES", "0"))
    if memory_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    pipe = Pipe()
    desk = Desk(pipe)
    threading.Thread(target=desk.listen, daemon=True).start()
    pipe.send({"kind": "ready", "engine": engine_version()})
    while True:
        header, body = desk.next_task()
        answer(pipe, desk, header, body)


if __name__ == "__main__":
    main()
