"""One child process under supervision: its lines as they come, limits, and an end that is always ours.

* It runs in a session of its own, so that a Ctrl-C at our terminal does not reach it before we decide.
* On Linux it dies with us, even if we are killed outright: `setpriv --pdeathsig KILL` asks the kernel for
  that (of util-linux; without it, a Python that costs 30 ms). The signal comes when the *thread* that
  spawned it ends, and that thread is the one that waits in `run_supervised`. No `preexec_fn`: it is
  unsafe in programs with threads.
* It writes to a pseudo-terminal, because programs hold back their output from a pipe until 4 KiB have gathered.
* Stop-and-keep is SIGINT, again every so often (a program may not listen yet), then SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import pty
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Stop = Literal["", "request", "watchdog"]
_POLL_S = 0.05
_REPEAT_S = 0.25
_PR_SET_PDEATHSIG = 1
_TIE = f"""
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, signal.SIGKILL)
os.execv(sys.argv[1], sys.argv[1:])
"""


class NotStarted(Exception):
    """The operating system refused to start the program, and said why."""


@dataclass(frozen=True, kw_only=True)
class Supervision:
    """`wall_limit_s`: stop it then; `grace_s`: from the first SIGINT to SIGKILL; `memory_bytes`: of address space."""

    wall_limit_s: float
    grace_s: float = 2.0
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How it ended: its exit code (negative: the signal's number), who stopped it, and whether by SIGKILL."""

    exit_code: int
    stopped_by: Stop
    killed: bool
    wall_s: float


def run_supervised(
    command: Sequence[str],
    supervision: Supervision,
    *,
    on_line: Callable[[str], None],
    should_stop: Callable[[], bool] | None = None,
) -> Ended:
    """Runs `command` to its end, whatever happens here; raises `NotStarted`, and what `on_line` raises."""
    start = time.monotonic()
    child, ours = _start(command)
    watch = _Watch(child, supervision, start, should_stop)
    try:
        if supervision.memory_bytes is not None:
            _limit_memory(child.pid, supervision.memory_bytes)
        for line in _lines(ours, watch):
            on_line(line)
        while child.poll() is None:
            watch.tick()
            time.sleep(0.001)
    finally:
        if child.poll() is None:
            _signal_group(child.pid, signal.SIGKILL)
        child.wait()
        os.close(ours)
    return Ended(
        exit_code=child.returncode,
        stopped_by=watch.stopped_by,
        killed=watch.killed,
        wall_s=time.monotonic() - start,
    )


def _start(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], int]:
    """The child, and our side of its terminal: of a pipe where there are none, at the price of late progress."""
    try:
        ours, theirs = pty.openpty()
    except OSError:
        ours, theirs = os.pipe()
    try:
        child = subprocess.Popen(
            [*_tied_to_parent(), *command],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
    except OSError as error:
        os.close(ours)
        raise NotStarted(str(error)) from error
    finally:
        os.close(theirs)
    return child, ours


class _Watch:
    """Decides at each tick whether the child must stop, and how hard."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        supervision: Supervision,
        start: float,
        should_stop: Callable[[], bool] | None,
    ) -> None:
        self.stopped_by: Stop = ""
        self.killed = False
        self._child = child
        self._supervision = supervision
        self._deadline = start + supervision.wall_limit_s
        self._should_stop = should_stop
        self._kill_at = 0.0
        self._repeat_at = 0.0

    def tick(self) -> None:
        now = time.monotonic()
        if not self.stopped_by:
            if self._should_stop is not None and self._should_stop():
                self.stopped_by = "request"
            elif now >= self._deadline:
                self.stopped_by = "watchdog"
            self._kill_at = now + self._supervision.grace_s
        if not self.stopped_by or self.killed:
            return
        if now >= self._kill_at:
            self.killed = True
            _signal_group(self._child.pid, signal.SIGKILL)
        elif now >= self._repeat_at:
            self._repeat_at = now + _REPEAT_S
            _signal_group(self._child.pid, signal.SIGINT)


def _lines(terminal: int, watch: _Watch) -> Iterator[str]:
    """The child's lines until it closes its terminal; the watch ticks at least every `_POLL_S`."""
    poll = select.poll()
    poll.register(terminal, select.POLLIN)
    rest = b""
    while True:
        watch.tick()
        if not poll.poll(_POLL_S * 1000):
            continue
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # EIO: the other side is closed, which is how a terminal says "end of file"
            chunk = b""
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace").rstrip("\r")
    if rest:
        yield rest.decode(errors="replace")


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it ended in this very moment
        os.killpg(leader, number)


@lru_cache(maxsize=1)
def _tied_to_parent() -> tuple[str, ...]:
    """The prefix that makes the kernel kill the child when we die; empty where the kernel can't."""
    if sys.platform != "linux":
        return ()
    setpriv = shutil.which("setpriv")
    if setpriv is not None:
        prefix = (setpriv, "--pdeathsig", "KILL")
        if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
            return prefix
    return (sys.executable, "-I", "-S", "-c", _TIE)


def _limit_memory(pid: int, memory_bytes: int) -> None:
    """Linux only; elsewhere processes can't limit each other."""
    if hasattr(resource, "prlimit"):
        try:
            resource.prlimit(pid, resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        except ProcessLookupError:
            return
