"""Plans kept on this machine's disk, by key: the next run of the same job asks nobody.

The cache may be emptied at any time. A file that can't be read back is dropped, and a disk that
can't be written is done without: neither may stop a training job.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from remat_solver.errors import RematError
from remat_solver.files import load, save
from remat_solver.plan import Plan

log = logging.getLogger(__name__)
MAX_PLANS = 2000


def default_cache_dir() -> Path:
    """`REMAT_CACHE_DIR`, or `remat` in the user's cache folder (`$XDG_CACHE_HOME`, `~/.cache`)."""
    chosen = os.environ.get("REMAT_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "remat"


class PlanCache:
    """Plans by key under `directory`/plans; at most `MAX_PLANS` of them, the oldest going first."""

    def __init__(self, directory: Path | None = None) -> None:
        self._folder = (directory or default_cache_dir()) / "plans"

    def get(self, key: str) -> Plan | None:
        """The plan for a key, not yet confirmed against any graph."""
        path = self._path(key)
        if not path.exists():
            return None
        try:
            return load(Plan, path)
        except RematError as error:
            log.warning("dropping the cached plan %s: %s", path, error)
            self.drop(key)
            return None

    def put(self, key: str, plan: Plan) -> None:
        """Keeps a plan."""
        try:
            save(plan, self._path(key))
            self._prune()
        except OSError as error:
            log.warning("can't keep the plan in %s: %s", self._folder, error)

    def drop(self, key: str) -> None:
        """Forgets a plan."""
        try:
            self._path(key).unlink(missing_ok=True)
        except OSError as error:
            log.warning("can't drop a plan from %s: %s", self._folder, error)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json.zst"

    def _prune(self) -> None:
        kept = sorted(self._folder.glob("*.json.zst"), key=lambda path: path.stat().st_mtime)
        for path in kept[:-MAX_PLANS]:
            path.unlink(missing_ok=True)
