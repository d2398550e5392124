"""Costs on disk: what was measured once on a machine is not measured again."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

CACHE_DIR_VARIABLE = "REMAT_CACHE_DIR"
_FILE_NAME = "costs.sqlite"
_LOCK_TIMEOUT_S = 30.0
Result = TypeVar("Result")
_log = logging.getLogger("remat")


@dataclass(frozen=True, kw_only=True)
class OpCost:
    """What one run of an op takes: wall time on its device, and temporary memory beyond its results."""

    time_ns: int
    workspace_bytes: int


def default_cache_dir() -> Path:
    """`REMAT_CACHE_DIR`, or the user's cache directory (`$XDG_CACHE_HOME/remat`, `~/.cache/remat`)."""
    chosen = os.environ.get(CACHE_DIR_VARIABLE)
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "remat"


class CostStore(Protocol):
    """Where costs are kept, by environment (device, then | and PyTorch with its settings) and op signature."""

    def get(self, environment: str, signatures: Iterable[str]) -> dict[str, OpCost]:
        """The known costs among `signatures`."""
        ...

    def put(self, environment: str, costs: Mapping[str, OpCost]) -> None:
        """Keeps `costs`, except where another process was first."""
        ...


class CostCache:
    """Measured costs by environment (device, PyTorch, threads, settings) and op signature, in one SQLite file.

    Any number of processes may use it at once; of two that measure the same op the first to write wins,
    so that both go on with equal costs. Trouble with the file is logged, never raised: a corrupt one is
    set aside under another name, and one that can't be written costs only the time to measure again.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.path = (directory or default_cache_dir()) / _FILE_NAME

    def get(self, environment: str, signatures: Iterable[str]) -> dict[str, OpCost]:
        """The known costs among `signatures`."""
        wanted = list(signatures)

        def read(connection: sqlite3.Connection) -> dict[str, OpCost]:
            found: dict[str, OpCost] = {}
            for text in wanted:
                row = connection.execute(
                    "SELECT time_ns, workspace_bytes FROM cost WHERE environment=? AND signature=?", (environment, text)
                ).fetchone()
                if row:
                    found[text] = OpCost(time_ns=row[0], workspace_bytes=row[1])
            return found

        return self._guarded("read", read) or {}

    def put(self, environment: str, costs: Mapping[str, OpCost]) -> None:
        """Keeps `costs`, except where another process was first."""
        rows = [(environment, text, cost.time_ns, cost.workspace_bytes) for text, cost in costs.items()]
        self._guarded("write", lambda c: c.executemany("INSERT OR IGNORE INTO cost VALUES (?, ?, ?, ?)", rows))

    def _guarded(self, action: str, work: Callable[[sqlite3.Connection], Result]) -> Result | None:
        """What `work` returns within one transaction; None, and a word in the log, if the file is at fault."""
        try:
            with contextlib.closing(self._connect()) as connection, connection:
                return work(connection)
        except (sqlite3.OperationalError, OSError) as error:
            _log.warning("can't %s the cost cache %s (%s): going on without it.", action, self.path, error)
        except sqlite3.DatabaseError as error:
            self._set_aside(error)
        return None

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=_LOCK_TIMEOUT_S)
        try:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS cost (environment TEXT, signature TEXT, time_ns INTEGER NOT NULL, "
                "workspace_bytes INTEGER NOT NULL, PRIMARY KEY (environment, signature)) WITHOUT ROWID"
            )
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_aside(self, error: Exception) -> None:
        aside = self.path.with_name(f"{_FILE_NAME}.corrupt-{time.time_ns()}")
        with contextlib.suppress(FileNotFoundError):  # another process set it aside first
            self.path.rename(aside)
        _log.warning("the cost cache %s is corrupt (%s): set aside as %s, measuring again.", self.path, error, aside)
