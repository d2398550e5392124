"""What every job engine does. The jobs table is the truth; an engine only moves job ids."""

from __future__ import annotations

from typing import Protocol


class JobEngine(Protocol):
    """Gets jobs solved. Both kinds run the same `execute`."""

    async def start(self) -> None:
        """Begins to take jobs."""
        ...

    async def stop(self) -> None:
        """Takes no more jobs, gives running ones their time, and puts back what is unfinished."""
        ...

    def job_added(self) -> None:
        """There is a new job in the queue."""
        ...

    async def stop_changed(self, job_id: str) -> None:
        """Somebody asked to stop this job, or gave up on it."""
        ...

    @property
    def live_workers(self) -> int:
        """How many workers could take a job now or later."""
        ...

    @property
    def engine_version(self) -> str:
        """The MIP engine that the workers found, as in "cbc 2.10.3"; "" while none has."""
        ...
