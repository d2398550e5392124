"""The commands that the service adds to `remat`, found through the entry-point group `remat.commands`.

Every run of `remat` imports this module to show its help, so the service itself is imported by the
command that runs it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remat_api.settings import Settings, read_settings
from remat_api.store.data_dir import data_dir_lock
from remat_solver.errors import InvalidRequest

if TYPE_CHECKING:
    from remat_api.store.retention import Forgotten

DEFAULT_PORT = 8417
DAY_MS = 24 * 3600 * 1000
DataDir = Annotated[
    Path | None, typer.Option(help="Folder for the database and documents.  [default: ~/.local/state/remat]")
]


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = DEFAULT_PORT,
    data_dir: DataDir = None,
    workers: Annotated[int | None, typer.Option(help="Solves at the same time.  [default: cores - 1]")] = None,
    require_keys: Annotated[
        bool, typer.Option("--require-keys", help="Ask for API keys on this machine too (behind a proxy, say).")
    ] = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen beyond this machine without API keys.")] = False,
    proxy_headers: Annotated[
        str | None, typer.Option(help="Proxies to believe, as in 127.0.0.1,10.0.0.0/8: X-Forwarded-For and -Proto.")
    ] = None,
    root_path: Annotated[str | None, typer.Option(help="Path under which a proxy shows the service: /remat.")] = None,
) -> None:
    """Run the solver service: plans over HTTP, kept in a database, solved in worker processes."""
    settings = read_settings(
        os.environ,
        data_dir=data_dir,
        workers=workers,
        require_keys=True if require_keys or not (insecure or is_loopback(host)) else None,
        insecure=insecure or None,
        proxy_headers=proxy_headers,
        root_path=root_path,
    )
    if not settings.is_clustered:
        with data_dir_lock(settings.data_dir):  # a quick look, for a clear word before anything heavy is loaded
            pass
    if settings.require_keys:
        check_keys(settings)
    listener = _listen(host, port)
    bound_port = listener.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    where = "PostgreSQL" if settings.is_clustered else str(settings.data_dir)
    typer.echo(f"Remat serves at http://{shown}:{bound_port} (data in {where}, Ctrl-C stops it)")
    with listener:
        _run(settings, listener)


def migrate(data_dir: DataDir = None) -> None:
    """Bring the service's database up to date (on SQLite, `remat serve` does it by itself)."""
    from remat_api.store.database import AWAY, unreachable
    from remat_api.store.migrating import applied_revision
    from remat_api.store.migrating import migrate as migrate_database

    settings = read_settings(os.environ, data_dir=data_dir)
    if not settings.is_clustered:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    try:
        before = applied_revision(settings.sqlalchemy_url)
        migrate_database(settings.sqlalchemy_url)
    except AWAY as error:
        raise unreachable(error) from None
    typer.echo(f"database revision: {before or 'none'} -> {applied_revision(settings.sqlalchemy_url)}")


def gc(
    older_than_days: Annotated[float, typer.Option(min=0.0, help="Forget what is older than this.")] = 30.0,
    data_dir: DataDir = None,
) -> None:
    """Forget old solves, plans and graphs of the service. It may run meanwhile."""
    settings = read_settings(os.environ, data_dir=data_dir)
    forgotten = asyncio.run(_forget(settings, int(older_than_days * DAY_MS)))
    typer.echo(
        f"forgot {forgotten.solves} solves, {forgotten.jobs} jobs, {forgotten.answers} answers, "
        f"{forgotten.plans} plans and {forgotten.graphs} graphs"
    )


async def _forget(settings: Settings, older_than_ms: int) -> Forgotten:
    from remat_api.store.blobs import blob_store
    from remat_api.store.migrating import opened
    from remat_api.store.retention import forget

    async with opened(settings) as database:
        return await forget(database, blob_store(settings), older_than_ms=older_than_ms)


def check_keys(settings: Settings) -> None:
    """Raises `InvalidRequest` where keys are required and there are none: nobody could come in."""
    if settings.admin_key or asyncio.run(_any_key(settings)):
        return
    raise InvalidRequest(
        "this service can be reached by others, and it has no API keys.",
        hint="Make one (remat keys create NAME), listen on 127.0.0.1, or accept the risk with --insecure.",
        field="host",
    )


async def _any_key(settings: Settings) -> bool:
    from remat_api.store.keys import KeyStore
    from remat_api.store.migrating import opened

    async with opened(settings) as database:
        return await KeyStore(database).any_valid()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise InvalidRequest(
            f"can't listen on {host}:{port}: {error.strerror}.", hint="Choose another with --port.", field="port"
        ) from None


def _run(settings: Settings, listener: socket.socket) -> None:
    import uvicorn

    from remat_api.app import create_app
    from remat_api.observation import configure_logs
    from remat_api.tracing import configure_tracing

    configure_logs(level=settings.log_level, as_json=settings.logs_json)
    configure_tracing(settings)
    config = uvicorn.Config(
        create_app(settings),
        log_config=None,
        access_log=False,
        proxy_headers=bool(settings.proxy_headers),
        forwarded_allow_ips=settings.proxy_headers or None,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=64 * 1024,
    )
    uvicorn.Server(config).run(sockets=[listener])
