"""Time and identity of stored rows."""

from __future__ import annotations

import datetime
import secrets
import time


def now_ms() -> int:
    """UTC milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def new_id() -> str:
    """32 hex digits that no one can guess; later ids sort after earlier ones (to the millisecond)."""
    return f"{now_ms():012x}{secrets.token_hex(10)}"


def first_id(moment_ms: int) -> str:
    """An id that sorts before all that are made from that moment on."""
    return f"{moment_ms:012x}"


def iso_time(moment_ms: int | None) -> str | None:
    """RFC 3339 in UTC."""
    if moment_ms is None:
        return None
    moment = datetime.datetime.fromtimestamp(moment_ms / 1000, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
