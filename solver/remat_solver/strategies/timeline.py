"""Memory in use, step by step, with fast "how high in this range" and "raise this range"."""

from __future__ import annotations

from collections.abc import Sequence

_BLOCK = 128


class Timeline:
    """A list of numbers in blocks: `highest` and `raise_by` take time O(length / 128 + 128)."""

    def __init__(self, amounts: Sequence[int]) -> None:
        self._amounts = list(amounts)
        count = (len(self._amounts) + _BLOCK - 1) // _BLOCK
        self._raised = [0] * count
        self._highest = [max(self._amounts[b * _BLOCK : (b + 1) * _BLOCK]) for b in range(count)]

    def highest(self, start: int, end: int) -> int:
        """The largest amount in steps start to end - 1; the range must not be empty."""
        first, last = start // _BLOCK, (end - 1) // _BLOCK
        if first == last:
            return max(self._amounts[start:end]) + self._raised[first]
        edges = (
            max(self._amounts[start : (first + 1) * _BLOCK]) + self._raised[first],
            max(self._amounts[last * _BLOCK : end]) + self._raised[last],
        )
        return max(*edges, *self._highest[first + 1 : last]) if last > first + 1 else max(edges)

    def raise_by(self, start: int, end: int, amount: int) -> None:
        """Adds `amount` in steps start to end - 1."""
        if start >= end:
            return
        first, last = start // _BLOCK, (end - 1) // _BLOCK
        for block in range(first + 1, last):
            self._raised[block] += amount
            self._highest[block] += amount
        if first == last:
            self._raise_in_block(first, start, end, amount)
        else:
            self._raise_in_block(first, start, (first + 1) * _BLOCK, amount)
            self._raise_in_block(last, last * _BLOCK, end, amount)

    def _raise_in_block(self, block: int, start: int, end: int, amount: int) -> None:
        self._amounts[start:end] = [old + amount for old in self._amounts[start:end]]
        whole = self._amounts[block * _BLOCK : (block + 1) * _BLOCK]
        self._highest[block] = max(whole) + self._raised[block]
