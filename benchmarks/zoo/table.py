"""The zoo's rows as a page: the counts, then a line for each architecture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from benchmarks.zoo.row import Planned, Row

_HEADINGS = (
    "architecture",
    "kind",
    "ops",
    "graphs",
    "aot_eager trains",
    "mode",
    "identical to",
    "60%",
    "1.1 x bound",
    "several graphs: what pieces mode reaches",
    "and eager mode",
    "whose",
    "reason",
)


def as_page(rows: list[Row], *, date: str) -> str:
    """Markdown."""
    versions = ", ".join(sorted({row.versions for row in rows if row.versions}))
    lines = [
        "# The zoo",
        "",
        f"{date}; {versions}. Made by `python -m benchmarks.zoo --json benchmarks/results/zoo.json`.",
        "Plans: share of the store-all peak, measured peak as a share of the budget, time overhead as planned.",
        "",
        *_counts(rows),
        "",
        "| " + " | ".join(_HEADINGS) + " |",
        "|" + "---|" * len(_HEADINGS),
        *(_line(row) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _counts(rows: list[Row]) -> list[str]:
    made = ["| | " + " | ".join(sorted({row.package for row in rows})) + " |"]
    packages = sorted({row.package for row in rows})
    made.append("|---" * (len(packages) + 1) + "|")
    facts = {
        "architectures": lambda row: True,
        "eager trains": lambda row: row.eager_trains,
        "aot_eager trains": lambda row: row.aot_eager_trains,
        "aot_eager equals eager": lambda row: row.aot_eager_is_eager,
        "planned": lambda row: bool(row.plans),
        "one graph: identical to eager under every plan": lambda row: (
            row.mode == "exact" and row.identical_to == "eager"
        ),
        "identical to aot_eager only": lambda row: row.mode == "exact" and row.identical_to == "aot_eager",
        "within every budget": lambda row: row.mode == "exact" and row.within_budget,
        "several graphs": lambda row: row.mode == "several",
        **{
            f"{mode} mode: {label}": partial(_holds, mode, test)
            for mode in ("pieces", "eager")
            for label, test in {
                "identical to eager": lambda planned: planned.identical_to == "eager",
                "identical to aot_eager only": lambda planned: planned.identical_to == "aot_eager",
                "within the budget": lambda planned: planned.measured_peak_bytes <= planned.budget_bytes,
            }.items()
        },
    }
    for label, holds in facts.items():
        counts = Counter(row.package for row in rows if holds(row))
        made.append(f"| {label} | " + " | ".join(str(counts[package]) for package in packages) + " |")
    return made


def _holds(mode: str, test: Callable[[Planned], bool], row: Row) -> bool:
    return any(planned.mode == mode and test(planned) for planned in row.plans)


def _line(row: Row) -> str:
    plans = {planned.goal: _plan(planned, row) for planned in row.plans}
    cells = (
        row.name,
        row.kind,
        str(row.ops or ""),
        str(row.graphs or row.aot_eager_graphs or ""),
        "yes" if row.aot_eager_trains else "no",
        row.mode,
        row.identical_to,
        plans.get("60%", ""),
        plans.get("1.1 x bound", ""),
        *(next((text for goal, text in plans.items() if goal.startswith(mode)), "") for mode in ("pieces", "eager")),
        row.cause,
        row.reason.replace("|", "\\|"),
    )
    return "| " + " | ".join(cells) + " |"


def _plan(planned: Planned, row: Row) -> str:
    whole = planned.store_all_peak_bytes or row.store_all_peak_bytes
    share = planned.budget_bytes / whole if whole else 0
    reached = planned.measured_peak_bytes / planned.budget_bytes
    if not planned.measured_peak_bytes:
        return "failed"
    overhead = f", +{planned.overhead:.1%}" if planned.mode == "exact" else ""
    return f"{share:.0%}, {reached:.1%}{overhead}"
