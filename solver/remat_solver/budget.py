"""Budgets as people write them: "8GiB", "80%", 8589934592."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from remat_solver.errors import InvalidRequest
from remat_solver.graph import MAX_BYTES

_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([a-zA-Z]*|%)\s*")
_HINT = 'Write bytes (8589934592), bytes with a unit ("8GiB", "500MB") or a share of the store-all peak ("80%").'


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The highest allowed peak: either bytes, or a fraction of the store-all peak. Exactly one is set."""

    budget_bytes: int | None = None
    budget_fraction: float | None = None

    def __post_init__(self) -> None:
        if (self.budget_bytes is None) == (self.budget_fraction is None):
            raise InvalidRequest("a budget is either bytes or a fraction, not both.", hint=_HINT, field="budget")
        if self.budget_bytes is not None and not 0 < self.budget_bytes <= MAX_BYTES:
            raise InvalidRequest(f"a budget of {self.budget_bytes} bytes makes no sense.", hint=_HINT, field="budget")
        fraction = self.budget_fraction
        if fraction is not None and not (math.isfinite(fraction) and 0 < fraction <= 100):
            raise InvalidRequest(f"a budget of {fraction} of the peak makes no sense.", hint=_HINT, field="budget")

    def in_bytes(self, store_all_peak_bytes: int) -> int:
        """The budget in bytes, rounded down, for a graph with this store-all peak."""
        if self.budget_bytes is not None:
            return self.budget_bytes
        assert self.budget_fraction is not None
        return int(self.budget_fraction * store_all_peak_bytes)


def parse_budget(text: str | int) -> Budget:
    """Reads "8GiB", "500 MB", "80%" or a number of bytes; raises `InvalidRequest`."""
    if isinstance(text, int):
        return Budget(budget_bytes=text)
    match = _AMOUNT.fullmatch(text)
    unit = match[2].lower() if match else "?"
    if match and unit == "%":
        return Budget(budget_fraction=float(match[1]) / 100)
    if match is None or unit not in _UNITS:
        raise InvalidRequest(f"can't read the budget {text!r}.", hint=_HINT, field="budget")
    return Budget(budget_bytes=int(float(match[1]) * _UNITS[unit]))


def parse_bytes(text: str | int, *, field: str) -> int:
    """Reads "1GiB", "500 MB" or a number of bytes, 0 among them; raises `InvalidRequest`, also for a share."""
    if text in (0, "0"):
        return 0
    try:
        amount = parse_budget(text).budget_bytes
    except InvalidRequest:
        amount = None
    if amount is None:
        raise InvalidRequest(
            f"{field} {text!r} is no number of bytes.", hint='Write bytes or an amount like "1GiB".', field=field
        )
    return amount


def format_bytes(amount: int) -> str:
    """Bytes for people: "1.50 GiB"."""
    size = float(amount)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            return f"{amount} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    raise AssertionError
