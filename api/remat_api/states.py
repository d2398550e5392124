"""The states of a job (and of the solves that wait for it), and the one table of allowed moves.

queued ──▶ running ──▶ done | failed | cancelled
   ▲          │
   └──────────┘  its worker died, or the service stopped
queued ──▶ cancelled | failed
"""

from __future__ import annotations

from typing import Literal

State = Literal["queued", "running", "done", "failed", "cancelled"]
STATES: tuple[State, ...] = ("queued", "running", "done", "failed", "cancelled")
OPEN: tuple[State, ...] = ("queued", "running")
FINAL: tuple[State, ...] = ("done", "failed", "cancelled")

MOVES: frozenset[tuple[State, State]] = frozenset(
    {
        ("queued", "running"),
        ("queued", "cancelled"),
        ("queued", "failed"),
        ("running", "queued"),
        ("running", "done"),
        ("running", "failed"),
        ("running", "cancelled"),
    }
)

Stop = Literal["", "best", "discard"]
"""What has been asked of a job or solve: nothing, stop and keep the best plan, or drop it."""


def before(target: State) -> tuple[State, ...]:
    """The states from which `target` may be entered: what every UPDATE of a state must check."""
    return tuple(state for state in STATES if (state, target) in MOVES)
