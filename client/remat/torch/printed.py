"""What can be shown on a terminal reads the same as plain text."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table


class Printed:
    """Text of what `__rich_console__` shows, which is for the subclass to say."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        raise NotImplementedError

    def __str__(self) -> str:
        console = Console(width=100)
        with console.capture() as capture:
            console.print(self)
        return capture.get().rstrip()


def facts_table(title: str, facts: list[tuple[str, str]]) -> Table:
    """Labels and what they are about, without lines."""
    table = Table(box=None, show_header=False, pad_edge=False, title=title, title_justify="left")
    for label, text in facts:
        table.add_row(label, text)
    return table
