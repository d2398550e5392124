"""Sets of wanted values that are known already, and whether one of them lies within another set.

Walks over sets of wanted values ask that of every state, so that it takes much of their time. A set that lies within
another has its lowest value there too. So each is filed under its lowest value, and is looked at only if the other has
that: among thousands of sets some hundreds.
"""

from __future__ import annotations


class WantedSets:
    """Sets of values, each a number whose bits are the values."""

    def __init__(self) -> None:
        self._by_lowest: dict[int, list[int]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, wanted: int) -> None:
        self._by_lowest.setdefault(wanted & -wanted, []).append(wanted)
        self._count += 1

    def any_within(self, wanted: int) -> bool:
        """Whether one of the sets lies within `wanted`."""
        # The list is twice as fast as a generator.
        for lowest, filed in self._by_lowest.items():
            if wanted & lowest == lowest and any([wanted & other == other for other in filed]):  # noqa: C419
                return True
        return False
