"""Ending tasks for certain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

CANCEL_AGAIN_S = 2.0


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Returns when all have ended, in whatever way.

    They are cancelled again if need be: a loop that was just losing its database may be told of that in place of the
    cancellation, and go on.
    """
    going = set(tasks)
    while going:
        for task in going:
            task.cancel()
        ended, going = await asyncio.wait(going, timeout=CANCEL_AGAIN_S)
        await asyncio.gather(*ended, return_exceptions=True)  # what they ended with is nobody's concern any more
