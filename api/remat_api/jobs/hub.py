"""Wakes those in this process who wait for a job: long polls for its end, event streams for each change.

They hold nothing while they wait. A waiter watches first and reads the database then, so no change
falls between.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterator


class Watch:
    """One waiter's view of one job."""

    def __init__(self, *, only_end: bool) -> None:
        self.only_end = only_end
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Ends the current or next wait."""
        self._changed.set()

    async def wait(self, timeout_s: float) -> None:
        """Returns at the next change, or after so long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        self._changed.clear()


class Hub:
    """Who waits for which job."""

    def __init__(self) -> None:
        self._watches: defaultdict[str, set[Watch]] = defaultdict(set)

    @contextlib.contextmanager
    def watch(self, job_id: str, *, only_end: bool = False) -> Iterator[Watch]:
        """Watches a job from now on: for every change, or only for its end."""
        watch = Watch(only_end=only_end)
        self._watches[job_id].add(watch)
        try:
            yield watch
        finally:
            self._watches[job_id].discard(watch)
            if not self._watches[job_id]:
                del self._watches[job_id]

    def notify_all(self) -> None:
        """Something may have changed that nobody told us of."""
        for watches in self._watches.values():
            for watch in watches:
                watch.wake()

    def notify(self, job_id: str, *, at_end: bool) -> None:
        """The job has changed. `at_end`: it, or a solve that waits for it, may be over."""
        for watch in self._watches.get(job_id, ()):
            if at_end or not watch.only_end:
                watch.wake()
