"""A real service for the tests: `remat serve` and `remat worker` as processes, over real HTTP, killed at will."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

START_TIMEOUT_S = 300.0


class RematProcess:
    """One `remat` command that goes on until it is stopped, with its log; `python`: the environment that has it."""

    def __init__(self, log: Path, *arguments: str, python: str | Path = sys.executable, **environment: str) -> None:
        self.log = log
        self._python = str(python)
        self._arguments = arguments
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def peak_memory_kib(self) -> int:
        """The most memory that the service's own process has had so far."""
        match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert match is not None
        return int(match[1])

    def start(self) -> None:
        """Starts it."""
        command = [self._python, "-m", "remat", *self._arguments]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment)

    def kill(self) -> None:
        """kill -9: no goodbye."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM: a clean shutdown; returns the exit status (after it, uvicorn ends by the signal itself)."""
        return self._end(signal.SIGTERM)

    def wait(self) -> int:
        """Waits for its end; returns the exit status."""
        assert self._process is not None
        return self._process.wait(START_TIMEOUT_S)

    def printed(self) -> str:
        """Everything that it wrote to its terminal."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def logged(self) -> list[dict[str, Any]]:
        """The lines of its log that are events."""
        lines = self.printed().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}\n")]

    def _end(self, how: signal.Signals) -> int:
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(how)
            self._process.send_signal(signal.SIGCONT)  # a test that failed may have left it paused
        return self._process.wait(START_TIMEOUT_S)


class SolverService(RematProcess):
    """One service process on a data folder. It keeps its port over restarts, as a deployed one does."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        command: str = "serve",
        python: str | Path = sys.executable,
        **environment: str,
    ) -> None:
        self.folder = folder
        self._port = free_port()
        own = ("--port", str(self._port), "--data-dir", str(folder / "data"))
        super().__init__(folder / "service.log", command, *own, *arguments, python=python, **environment)

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Starts it and waits until it is ready."""
        self.begin()
        self.wait_until_ready()

    def begin(self) -> None:
        """Starts it and does not wait."""
        super().start()

    def wait_until_ready(self) -> None:
        """Returns once it can plan."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready():
            if not self.is_running or time.monotonic() > deadline_s:
                raise AssertionError(f"the service did not start:\n{self.printed()}")
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=2).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False


def wait_until(condition: Callable[[], bool]) -> None:
    """Returns once the condition holds."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, "it never came to that"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def is_engine(pid: int) -> bool:
    """Whether a MIP engine runs under this process id."""
    if not is_alive(pid):
        return False
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")[0].endswith(b"cbc")
    except OSError:
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
