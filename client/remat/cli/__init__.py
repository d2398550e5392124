"""The `remat` command. Errors are one line with a next step; a traceback is a bug."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import metadata

import typer

from remat_solver.errors import RematError

COMMANDS_GROUP = "remat.commands"
"""Entry points of this group are commands too: that is how `remat serve` comes from another package."""
OWN_COMMANDS = tuple(
    metadata.EntryPoint(name=name, value=f"remat.cli.{module}:{name}", group=COMMANDS_GROUP)
    for name, module in (
        ("demo", "training"),
        ("capture", "training"),
        ("solve", "planning"),
        ("frontier", "planning"),
        ("report", "planning"),
        ("verify", "training"),
    )
)

USAGE_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130


def build_app(wanted: str | None = None) -> typer.Typer:
    """The command tree: our own commands, then those that installed packages contribute.

    If `wanted` is one of them it holds that one alone: loading them all takes half a second.
    """
    contributed = sorted(metadata.entry_points(group=COMMANDS_GROUP), key=lambda entry: entry.name)
    entries = [*OWN_COMMANDS, *contributed]
    if any(entry.name == wanted for entry in entries):
        entries = [entry for entry in entries if entry.name == wanted]
    app = typer.Typer(
        name="remat",
        help="Train under a memory budget: find, prove and apply the fastest rematerialization plan that fits.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    app.callback()(_options)
    for entry in entries:
        _add_command(app, entry)
    return app


def main() -> None:
    """Entry point of the `remat` script."""
    try:
        build_app(sys.argv[1] if len(sys.argv) > 1 else None)(standalone_mode=True)
    except RematError as error:
        from remat.cli.console import complain

        complain(error)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("\nremat: interrupted\n")
        sys.exit(INTERRUPTED_EXIT_CODE)
    except Exception as error:
        if os.environ.get("REMAT_TRACEBACK"):
            raise
        sys.stderr.write(
            f"remat: unexpected {type(error).__name__}: {_first_line(error)} "
            "This is a bug of ours: set REMAT_TRACEBACK=1 to see where, and please report it.\n"
        )
        sys.exit(1)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["(no message)"])[0]


def _add_command(app: typer.Typer, entry: metadata.EntryPoint) -> None:
    try:
        command = entry.load()
    except ModuleNotFoundError as missing:
        app.command(entry.name, help=f"Not installed: needs {missing.name}.")(_missing(entry.name, missing))
        return
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=entry.name)
    else:
        app.command(entry.name)(command)


def _missing(command: str, missing: ModuleNotFoundError) -> Callable[[], None]:
    def explain() -> None:
        raise RematError(f"`remat {command}` needs {missing.name}.", hint="pip install 'remat[server]'")

    return explain


def _options(
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
) -> None:
    if version:
        sys.stdout.write(f"remat {metadata.version('remat')}\n")
        raise typer.Exit
