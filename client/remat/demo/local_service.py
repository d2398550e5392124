"""A solver service of our own for the length of the demo: a real process, a real port, a scratch folder."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from remat_solver.errors import ServiceUnavailable

START_TIMEOUT_S = 60.0


@contextlib.contextmanager
def running_service() -> Iterator[str]:
    """Starts `remat serve` on a free loopback port and yields its address; stops it afterwards.

    Raises `ServiceUnavailable` with what the service printed if it does not come up.
    """
    with tempfile.TemporaryDirectory(prefix="remat-demo-") as folder:
        port = _free_port()
        log = Path(folder) / "service.log"
        command = [sys.executable, "-m", "remat", "serve", "--port", str(port), "--data-dir", folder]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            address = f"http://127.0.0.1:{port}"
            _wait_until_ready(process, address, log)
            yield address
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{address}/readyz", timeout=2).status_code == httpx.codes.OK:
                return
        time.sleep(0.1)
    printed = log.read_text(errors="replace").strip().splitlines()
    raise ServiceUnavailable(
        f"the solver service did not start: {printed[-1] if printed else 'it printed nothing'}.",
        hint="Run `remat serve` by itself to see why; the demo needs the extra: pip install 'remat[server]'.",
    )
