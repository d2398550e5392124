"""What the zoo says of one architecture."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Cause = Literal["", "dynamo", "model", "us", "budget", "time"]
"""Where a failure lies; "budget" is a proof that no plan fits."""


@dataclass(kw_only=True)
class Planned:
    """Training under one plan. `goal` says how the budget came about; peaks include everything.

    `mode` is "exact" for a model that is one graph, else "pieces" or "eager".
    """

    goal: str
    mode: str = "exact"
    budget_bytes: int
    store_all_peak_bytes: int = 0
    predicted_peak_bytes: int = 0
    measured_peak_bytes: int = 0
    recomputes: int = 0
    overhead: float = 0.0
    identical_to: str = ""
    first_difference: str = ""


@dataclass(kw_only=True)
class Row:
    """One architecture. `identical` and `within_budget` hold for every plan in `plans`, of which there is at least one.

    `identical_to` is "eager", or "aot_eager" where PyTorch's own trace already differs from eager. `reason` names
    the first thing that went wrong or is worth knowing, and `cause` where it lies. `mode` is "exact", or "several" for
    a model that is several graphs.
    """

    name: str
    package: str
    kind: str
    eager_trains: bool = False
    aot_eager_trains: bool = False
    aot_eager_is_eager: bool = False
    aot_eager_graphs: int = 0
    identical: bool = False
    identical_to: str = ""
    within_budget: bool = False
    mode: str = ""
    ops: int = 0
    graphs: int = 0
    store_all_peak_bytes: int = 0
    working_set_bytes: int = 0
    plans: list[Planned] = field(default_factory=list)
    cause: Cause = ""
    reason: str = ""
    seconds: float = 0.0
    versions: str = ""
