"""The rows of `benchmarks.public` and `benchmarks.captured` as tables: for a terminal and for a committed file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table

from benchmarks.rows import Row

_LEFT = ("graph", "budget", "status", "scope", "cp-sat")


def percent(fraction: float | None) -> str:
    """A share in percent, "" for none."""
    return "" if fraction is None else f"{100 * fraction:.3f}"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2f}"


CELLS: dict[str, Callable[[Row], str]] = {
    "graph": lambda row: row.graph,
    "ops": lambda row: str(row.ops),
    "budget": lambda row: row.budget_name or f"{row.budget_fraction:g}",
    "order's peak": lambda row: "" if row.reordered_peak_fraction is None else f"{row.reordered_peak_fraction:.3f}",
    "status": lambda row: row.status,
    "overhead %": lambda row: percent(row.overhead),
    "bound %": lambda row: percent(row.bound_overhead),
    "gap %": lambda row: percent(row.gap),
    "first plan s": lambda row: _seconds(row.first_plan_s),
    "seconds": lambda row: _seconds(row.solve_s),
    "cpu s": lambda row: _seconds(row.cpu_s),
    "RSS MiB": lambda row: str(row.peak_rss_bytes // 2**20) if row.peak_rss_bytes else "",
    "scope": lambda row: row.proof_scope,
    "slots": lambda row: str(row.slots),
    "cp-sat": lambda row: row.cp_sat_status,
    "cp-sat overhead %": lambda row: percent(row.cp_sat_overhead),
    "cp-sat bound %": lambda row: percent(row.cp_sat_bound_overhead),
    "cp-sat seconds": lambda row: _seconds(row.cp_sat_s),
}


def _filled_cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The headings under which any row has something, and each row's cells."""
    headings = [heading for heading, cell in CELLS.items() if any(cell(row) for row in rows)]
    return headings, [[CELLS[heading](row) for heading in headings] for row in rows]


def as_table(rows: Sequence[Row], title: str) -> Table:
    """The rows for people; overheads and gaps in percent."""
    headings, cells = _filled_cells(rows)
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in _LEFT else "right")
    for row in cells:
        table.add_row(*row)
    return table


def as_markdown(rows: Sequence[Row], title: str, *, command: str, machine: dict[str, str]) -> str:
    """The table that is committed, with the command that made it, where and when."""
    headings, cells = _filled_cells(rows)
    facts = ", ".join(f"{key}: {value}" for key, value in machine.items())
    lines = [f"# {title}", "", f"`{command}` on a shared machine. {facts}.", "", _markdown_row(headings)]
    lines += ["|---" * len(headings) + "|", *map(_markdown_row, cells), ""]
    return "\n".join(lines)


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
