"""One row of the demo: a model under a budget, with what was promised and what was seen."""

from __future__ import annotations

from dataclasses import dataclass

from remat_solver.budget import format_bytes

MAX_PEAK_ERROR = 0.005
"""Largest accepted |predicted - measured| peak, as a share of the measured one."""
MAX_GAP = 0.01

TABLE_HEAD = (
    "model",
    "ops",
    "store-all peak",
    "budget",
    "predicted peak",
    "measured peak",
    "predicted overhead",
    "measured overhead",
    "bound",
    "gap",
    "status",
    "solve",
    "identical",
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Peaks are bytes with everything included; overheads, bound and gap are shares of the store-all time."""

    model: str
    ops: int
    store_all_peak_bytes: int
    budget_bytes: int
    predicted_peak_bytes: int
    measured_peak_bytes: int
    predicted_overhead: float
    measured_overhead: float
    bound_overhead: float
    gap: float
    status: str
    solve_s: float
    identical: bool

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of `TABLE_HEAD`."""
        return (
            self.model,
            str(self.ops),
            format_bytes(self.store_all_peak_bytes),
            f"{format_bytes(self.budget_bytes)} ({self.budget_bytes / self.store_all_peak_bytes:.0%})",
            format_bytes(self.predicted_peak_bytes),
            format_bytes(self.measured_peak_bytes),
            f"{self.predicted_overhead:.1%}",
            f"{self.measured_overhead:.1%}",
            f"{self.bound_overhead:.1%}",
            f"{self.gap:.2%}",
            self.status,
            f"{self.solve_s:.2f} s",
            "yes" if self.identical else "NO",
        )

    def broken_claims(self) -> list[str]:
        """What this row promised and did not hold, in words."""
        peak_error = abs(self.predicted_peak_bytes - self.measured_peak_bytes) / self.measured_peak_bytes
        claims = {
            "training differs from the unmodified model": not self.identical,
            f"measured peak {self.measured_peak_bytes} exceeds the budget {self.budget_bytes}": (
                self.measured_peak_bytes > self.budget_bytes
            ),
            f"predicted and measured peak differ by {peak_error:.2%}": peak_error > MAX_PEAK_ERROR,
            f"gap {self.gap:.2%} is above {MAX_GAP:.0%}": self.gap > MAX_GAP,
        }
        return [
            f"{self.model} at {format_bytes(self.budget_bytes)}: {claim}" for claim, broken in claims.items() if broken
        ]
