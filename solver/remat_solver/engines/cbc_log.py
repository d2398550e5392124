"""What CBC prints, read line by line as it comes: incumbent, bound, and what it proved.

Every printed bound is lowered by one unit in its last printed place, because printing may have
rounded it up. Bounds are believed that CBC prints while its search goes on. What it prints when its time is
over may come from a linear program that was cut short, whose "objective" bounds nothing: it printed 1.0569217e+12
as best possible of a program whose optimum is 222. What cuts did at the root counts where the search was completed
(`completed_bound`). Log lines are those of CBC 2.10 (checked: 2.10.3, 2.10.8).
"""

from __future__ import annotations

import math
import re

_NUMBER = r"([-+]?[0-9.]+(?:e[-+]?[0-9]+)?)"
_INCUMBENTS = re.compile(rf"^Cbc(?:0004I|0012I|0016I) Integer solution of {_NUMBER}")
_TREE = re.compile(rf"^Cbc0010I After .* tree, {_NUMBER} best solution, best possible {_NUMBER}")
_PARTIAL = re.compile(rf"^Cbc0005I Partial search - best objective {_NUMBER} ")
_RELAXATION = re.compile(rf"^Continuous objective value is {_NUMBER}")
_ROOT = re.compile(rf"^Cbc0013I At root node, \d+ cuts changed objective from {_NUMBER} to {_NUMBER}")
_INFEASIBLE = (
    "Problem is infeasible",
    "Pre-processing says infeasible",
    "Cgl0000I Cut generators found to be infeasible",
    "Result - Problem proven infeasible",
    "Result - Linear relaxation infeasible",
    "Primal infeasible",
)
_NONE = 1e40
"""CBC prints 1e+50 where it has no incumbent."""


class CbcLog:
    """The running state of one CBC run, fed with its lines."""

    def __init__(self) -> None:
        self.incumbent = math.inf
        self.bound = -math.inf
        self.completed_bound = -math.inf
        """A bound if CBC ended by itself, and not because its time was over."""
        self.proved_optimal = False
        self.proved_infeasible = False
        self.finished = False
        self.tail: list[str] = []

    def read(self, line: str) -> bool:
        """Takes one line in; True if the incumbent or the bound became better."""
        before = self.incumbent, self.bound
        self.tail = [*self.tail[-4:], line] if line else self.tail
        if line.startswith("Cbc"):
            self._read_message(line)
        elif match := _RELAXATION.match(line):
            self._raise_bound(match[1])
        elif line.startswith(("Result - Optimal solution found", "Optimal objective")):  # the latter: no integers
            self.proved_optimal = True
        elif line.startswith("Total time"):
            self.finished = True
        if line.startswith(_INFEASIBLE):
            self.proved_infeasible = True
        return (self.incumbent, self.bound) != before

    def _read_message(self, line: str) -> None:
        if match := _INCUMBENTS.match(line):
            self._lower_incumbent(match[1])
        elif match := _TREE.match(line):
            self._lower_incumbent(match[1])
            self._raise_bound(match[2])
        elif match := _PARTIAL.match(line):
            self._lower_incumbent(match[1])
        elif match := _ROOT.match(line):
            self._raise_bound(match[1])
            self.completed_bound = max(self.completed_bound, float(match[2]) - last_place(match[2]))

    def _lower_incumbent(self, text: str) -> None:
        if abs(float(text)) < _NONE:
            self.incumbent = min(self.incumbent, float(text))

    def _raise_bound(self, text: str) -> None:
        if abs(float(text)) < _NONE:
            self.bound = max(self.bound, float(text) - last_place(text))


def last_place(text: str) -> float:
    """One unit in the last printed place of a number: 0.01 for "3.14", 1e4 for "1.5e+05".

    A whole number may have been rounded to six digits as well, or have lost its trailing zeros.
    """
    mantissa, _, exponent = text.lower().partition("e")
    digits = mantissa.lstrip("+-").replace(".", "").lstrip("0")
    decimals = len(mantissa.partition(".")[2])
    place = 10.0 ** (int(exponent or 0) - decimals)
    six_digits: float = abs(float(text)) * 1e-5
    return min(place, six_digits) if len(digits) < 6 else place
