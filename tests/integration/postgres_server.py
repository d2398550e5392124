"""A real PostgreSQL for the tests: a server of our own in a temporary folder, reached through a socket there."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

START_TIMEOUT_S = 120.0
MISSING = "these tests need PostgreSQL's server programs: apt-get install postgresql (scripts/setup does it as root)"


class PostgresServer:
    """One server. It listens on no port, so that it can't meet another one, and trusts whoever reaches its folder."""

    def __init__(self) -> None:
        self._programs = programs()
        self._account = _account()
        self.folder = Path(tempfile.mkdtemp(prefix="remat-pg-", dir="/tmp"))  # a socket's path is 107 bytes at most
        if self._account is not None:
            os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        options = ["--auth=trust", "--username=remat", "--encoding=UTF8", "--locale=C", "--no-sync"]
        self._run("initdb", *options, "--pgdata", str(self.folder / "data"))

    def start(self) -> None:
        """Starts it and waits until it answers."""
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "fsync": "off",
            "max_connections": "200",
            "shared_buffers": "64MB",
        }
        command = [str(self._programs / "postgres"), "-D", str(self.folder / "data")]
        command += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._as_account())  # type: ignore[call-overload]
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise AssertionError(f"PostgreSQL did not start:\n{(self.folder / 'log').read_text()}")
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: a fast shutdown, which cuts every connection."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(START_TIMEOUT_S)

    def remove(self) -> None:
        """Stops it and deletes its folder."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_database(self) -> str:
        """The URL of a fresh, empty database."""
        self._databases += 1
        name = f"remat{self._databases}"
        self._run("createdb", *self._reach(), name)
        return self.url(name)

    def url(self, name: str) -> str:
        """A database's URL."""
        return f"postgresql://remat@/{name}?host={self.folder}"

    def _answers(self) -> bool:
        command = [str(self._programs / "pg_isready"), "--quiet", "--host", str(self.folder)]
        return subprocess.run(command, check=False).returncode == 0

    def _reach(self) -> list[str]:
        return ["--host", str(self.folder), "--username", "remat"]

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, **self._as_account())  # type: ignore[call-overload]
        assert done.returncode == 0, done.stderr

    def _as_account(self) -> dict[str, object]:
        if self._account is None:
            return {"cwd": self.folder}
        return {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": [], "cwd": self.folder}


def programs() -> Path:
    """Where PostgreSQL's server programs are: on the path, or where Debian puts them."""
    on_path = shutil.which("initdb")
    if on_path is not None and shutil.which("postgres") is not None:
        return Path(on_path).resolve().parent
    installed = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"), key=lambda path: int(path.split("/")[4]))
    assert installed, MISSING
    return Path(installed[-1]).parent


def _account() -> pwd.struct_passwd | None:
    """Whom the server runs as: it refuses root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return pwd.getpwnam("postgres" if "postgres" in names else "nobody")
