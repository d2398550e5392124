"""A real service for the tests: `remat serve` as a process, over real HTTP, killed and restarted at will."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

START_TIMEOUT_S = 300.0


class SolverService:
    """One service process on a data folder. It keeps its port over restarts, as a deployed one does."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.folder = folder
        self.log = folder / "service.log"
        self._arguments = arguments
        self._environment = {**os.environ, **environment}
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The process id of the service itself."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts it and waits until it is ready."""
        command = [sys.executable, "-m", "remat", "serve", "--port", str(self._port)]
        command += ["--data-dir", str(self.folder / "data"), *self._arguments]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment)
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise AssertionError(f"the service did not start:\n{self.printed()}")
            time.sleep(0.05)

    def kill(self) -> None:
        """kill -9: no goodbye."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM: a clean shutdown; returns the exit status (after it, uvicorn ends by the signal itself)."""
        return self._end(signal.SIGTERM)

    def printed(self) -> str:
        """Everything that it wrote to its terminal."""
        return self.log.read_text(errors="replace")

    def _end(self, how: signal.Signals) -> int:
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(how)
        return self._process.wait(START_TIMEOUT_S)

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=2).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def worker_pids(parent: int) -> set[int]:
    """The living processes below `parent`, at any depth."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended while we looked
        if fields[0] != "Z":
            parents[int(entry.parent.name)] = int(fields[1])
    found: set[int] = set()
    while more := {pid for pid, its_parent in parents.items() if its_parent in found | {parent}} - found:
        found |= more
    return found
