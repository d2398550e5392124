"""The service's hold on one worker process, kept warm between jobs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

from remat_api.jobs.messages import encode, receive_message
from remat_solver.errors import EngineFailed, RematError

START_TIMEOUT_S = 60.0


class WorkerDied(Exception):
    """The worker process ended in the middle of a job. `signal_name` is "" if no signal did it."""

    def __init__(self, exit_code: int | None) -> None:
        super().__init__(exit_code)
        self.signal_name = ""
        if exit_code is not None and exit_code < 0:
            with contextlib.suppress(ValueError):
                self.signal_name = signal.Signals(-exit_code).name

    def as_error(self) -> RematError:
        """What the job ends with when no attempt is left."""
        how = f"was ended by {self.signal_name}" if self.signal_name else "ended unexpectedly"
        hint = "It probably ran out of memory: give it more, or ask for a larger gap." if self.signal_name else ""
        return EngineFailed(f"the worker process {how} at every attempt.", hint=hint)


class SolverProcess:
    """One worker. It runs in its own session, so that a Ctrl-C at the terminal reaches the service alone.

    `engine_version` is what the worker said when it started: "cbc 2.10.3", or "" if it found none.
    """

    def __init__(self, *, memory_bytes: int = 0) -> None:
        self._memory_bytes = memory_bytes
        self._process: asyncio.subprocess.Process | None = None
        self.engine_version = ""

    @property
    def pid(self) -> int | None:
        """The worker's process id, while there is one."""
        return self._process.pid if self._process else None

    @property
    def is_alive(self) -> bool:
        """Whether a process is there and has not ended."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Starts the worker and waits until it is ready; does nothing if one is there."""
        if self.is_alive:
            return
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "remat_api.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "REMAT_JOB_MEMORY_BYTES": str(self._memory_bytes)},
        )
        try:
            ready, _ = await asyncio.wait_for(self._receive(), START_TIMEOUT_S)
        except TimeoutError:
            await self.kill()
            raise WorkerDied(None) from None
        self.engine_version = ready["engine"]

    async def solve(
        self, job_id: str, options: dict[str, Any], points: int | None, graph: bytes
    ) -> AsyncIterator[tuple[dict[str, Any], bytes]]:
        """Hands over a job and yields its messages, up to its plan, its error or an end. Raises `WorkerDied`."""
        await self._send({"kind": "solve", "job_id": job_id, "options": options, "points": points}, graph)
        while True:
            header, body = await self._receive()
            yield header, body
            if header["kind"] in ("plan", "end", "error"):
                return

    async def stop_and_keep(self, job_id: str) -> None:
        """Asks for the best plan found so far; without effect if the worker has gone on to another job."""
        with contextlib.suppress(WorkerDied):
            await self._send({"kind": "stop", "job_id": job_id})

    async def kill(self) -> None:
        """Ends the worker at once; the engine's supervisor ends the engine with it."""
        if self._process is None:
            return
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        self._process = None

    async def _send(self, header: dict[str, Any], body: bytes = b"") -> None:
        process = self._process
        if process is None or process.stdin is None:
            raise WorkerDied(None)
        try:
            process.stdin.write(encode(header, body))
            await process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise WorkerDied(await process.wait()) from None

    async def _receive(self) -> tuple[dict[str, Any], bytes]:
        process = self._process
        if process is None or process.stdout is None:
            raise WorkerDied(None)
        message = await receive_message(process.stdout)
        if message is None:
            raise WorkerDied(await process.wait())
        return message
