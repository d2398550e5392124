"""How often a caller may ask: a bucket of tokens that fills up again with time."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

MAX_CALLERS = 10_000


@dataclass(kw_only=True)
class _Bucket:
    tokens: float
    filled_s: float


class RateLimit:
    """`per_minute` requests a minute for each caller, all of which may come at once; 0 sets no limit.

    It lives in one process; several of them allow that much each.
    """

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, caller: str) -> float:
        """Takes a token; returns 0, or the seconds until there is one."""
        if not self.per_minute:
            return 0.0
        now_s = time.monotonic()
        bucket = self._buckets.setdefault(caller, _Bucket(tokens=self.per_minute, filled_s=now_s))
        self._buckets.move_to_end(caller)
        if len(self._buckets) > MAX_CALLERS:
            self._buckets.popitem(last=False)
        refill = (now_s - bucket.filled_s) * self.per_minute / 60
        bucket.tokens, bucket.filled_s = min(self.per_minute, bucket.tokens + refill), now_s
        if bucket.tokens >= 1:
            bucket.tokens -= 1
            return 0.0
        return (1 - bucket.tokens) * 60 / self.per_minute

    def remaining(self, caller: str) -> int:
        """Requests that the caller may still make now."""
        bucket = self._buckets.get(caller)
        return int(bucket.tokens) if bucket else self.per_minute
