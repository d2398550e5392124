"""`remat keys`: who may use the service."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remat_api.commands import DataDir
from remat_api.settings import read_settings

if TYPE_CHECKING:
    from remat_api.store.keys import KeyStore

app = typer.Typer(help="Make, list and revoke the API keys of a solver service.", no_args_is_help=True)
DAY_MS = 24 * 3600 * 1000


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Who or what the key is for.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="solve (and read), read, or admin. Repeatable.  [default: solve]")
    ] = None,
    expires_days: Annotated[int | None, typer.Option(min=1, help="Days after which the key ends.")] = None,
    max_open_solves: Annotated[int, typer.Option(min=0, help="Solves open at the same time; 0: no limit.")] = 0,
    solve_seconds_per_day: Annotated[int, typer.Option(min=0, help="Seconds of solving a day; 0: no limit.")] = 0,
    data_dir: DataDir = None,
) -> None:
    """Make a key. Its text is printed once and kept nowhere: hand it to REMAT_API_KEY."""
    scopes = tuple(scope or ("solve",))

    async def make(keys: KeyStore) -> str:
        from remat_api.store.clock import now_ms
        from remat_api.store.keys import check_key_request

        check_key_request(name, scopes)
        _, text = await keys.create(
            name,
            scopes,
            expires_ms=now_ms() + expires_days * DAY_MS if expires_days else None,
            max_open_solves=max_open_solves,
            solve_seconds_per_day=solve_seconds_per_day,
        )
        return text

    typer.echo(_with_keys(data_dir, make))


@app.command("list")
def list_keys(data_dir: DataDir = None) -> None:
    """List the keys, without their secrets."""
    from remat_api.store.clock import iso_time, now_ms

    for key in _with_keys(data_dir, lambda keys: keys.listing()):
        state = key.state(now_ms())
        used = iso_time(key.last_used_ms) or "never used"
        typer.echo(f"{key.id}  {state:8} {','.join(key.scopes):12} {used:24}  {key.name}")


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="The key's id, as `remat keys list` shows it.")],
    data_dir: DataDir = None,
) -> None:
    """End a key for good; a running service notices within ten seconds."""
    _with_keys(data_dir, lambda keys: keys.revoke(key_id))
    typer.echo(f"key {key_id} is revoked")


def _with_keys(data_dir: Path | None, act: Callable[[KeyStore], Coroutine[Any, Any, Any]]) -> Any:
    from remat_api.store.keys import KeyStore
    from remat_api.store.migrating import opened

    async def run() -> Any:
        async with opened(read_settings(os.environ, data_dir=data_dir)) as database:
            return await act(KeyStore(database))

    return asyncio.run(run())
