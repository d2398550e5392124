"""Request bodies: bounded as sent and as decompressed, strict JSON, one reader for all routes.

Strict means: UTF-8, no NaN or infinity, no key twice in an object, no absurd nesting or number, and
the declared types exactly. `Content-Type: application/json` is asked for, which also keeps web pages
of other origins from posting to a service on localhost.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from typing import Any, TypeVar

from fastapi import Request
from pydantic import TypeAdapter, ValidationError

from remat_api.settings import Settings
from remat_solver.errors import InvalidRequest, LimitExceeded, RematError, ServiceError, UnreadableFile
from remat_solver.files import decompress_zstd, parse_json
from remat_solver.graph import Graph

T = TypeVar("T")
PARSES_AT_ONCE = 4
"""Bodies decompressed and parsed at the same time: bounds the memory that they take together."""
_parsing = asyncio.Semaphore(PARSES_AT_ONCE)
_adapters: dict[type, TypeAdapter[Any]] = {}


async def read_body(request: Request, settings: Settings) -> bytes:
    """The decompressed body. Raises `LimitExceeded` or `UnreadableFile`."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ServiceError(
            f"the body's type is {media_type or 'not given'}.",
            hint="Send JSON with the header Content-Type: application/json.",
            status_code=415,
        )
    wire = bytearray()
    async for chunk in request.stream():
        wire += chunk
        if len(wire) > settings.max_wire_bytes:
            raise LimitExceeded(
                f"the body is larger than {settings.max_wire_bytes} bytes.",
                hint="Compress it: Content-Encoding: zstd or gzip.",
                limit=settings.max_wire_bytes,
            )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    async with _parsing:
        return await asyncio.to_thread(_decompress, bytes(wire), encoding, settings.max_body_bytes)


def _decompress(data: bytes, encoding: str, limit: int) -> bytes:
    if encoding == "zstd":
        return decompress_zstd(data, limit)
    if encoding == "gzip":
        return decompress_gzip(data, limit)
    if encoding == "identity":
        return data
    raise ServiceError(
        f"the content encoding {encoding[:40]!r} is unknown.", hint="Use zstd, gzip or none.", status_code=415
    )


def decompress_gzip(data: bytes, limit: int) -> bytes:
    """At most `limit` bytes from one whole gzip stream; raises `UnreadableFile`."""
    decompressor = zlib.decompressobj(wbits=31)
    try:
        text = decompressor.decompress(data, limit + 1)
    except zlib.error as error:
        raise UnreadableFile(f"the body is no gzip stream: {error}.", hint="Upload it again.") from None
    if len(text) > limit:
        raise UnreadableFile(f"the body decompresses to more than {limit} bytes.", hint="No graph needs that much.")
    if not decompressor.eof or decompressor.unused_data:
        raise UnreadableFile("the body is not one whole gzip stream.", hint="Upload it again.")
    return text


async def parse_graph(text: bytes, settings: Settings) -> Graph:
    """The graph in a body. Raises `UnreadableFile`, `InvalidGraph` or `LimitExceeded`."""
    async with _parsing:
        graph = await asyncio.to_thread(_parse_graph, text)
    if len(graph) > settings.max_ops:
        raise LimitExceeded(
            f"the graph has {len(graph)} ops; this service takes {settings.max_ops}.",
            hint="Ask its operator for more (REMAT_MAX_OPS), or solve it locally.",
            limit=settings.max_ops,
        )
    return graph


def _parse_graph(text: bytes) -> Graph:
    check_strict(text)
    return parse_json(Graph, text, path="the body")


async def parse_body(kind: type[T], text: bytes) -> T:
    """The body as a request dataclass. Raises `UnreadableFile`, or the dataclass's own error."""
    async with _parsing:
        return await asyncio.to_thread(_parse, kind, text)


def _parse(kind: type[T], text: bytes) -> T:
    check_strict(text)
    adapter = _adapters.setdefault(kind, TypeAdapter(kind))
    try:
        parsed: T = adapter.validate_json(text, strict=True)
    except ValidationError as error:
        raise _explain(error) from None
    return parsed


def check_strict(text: bytes) -> None:
    """Raises `UnreadableFile` for text that is not strict JSON; builds nothing."""
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"the body is not UTF-8: {error}.", hint="Send JSON as UTF-8.") from None
    try:
        json.loads(decoded, object_pairs_hook=_refuse_duplicates, parse_constant=_refuse_constant)
    except RecursionError:
        raise UnreadableFile("the body is nested too deeply.", hint="No request of ours is.") from None
    except ValueError as error:
        raise UnreadableFile(f"the body is not JSON: {error}.", hint="Is it complete?") from None


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UnreadableFile(f"the body has the key {twice[:80]!a} twice in one object.", hint="Write each key once.")


def _refuse_constant(text: str) -> None:
    raise UnreadableFile(f"the body holds {text}, which is not a JSON number.", hint="Numbers must be finite.")


def _explain(error: ValidationError) -> RematError:
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, RematError):
        return cause
    where = ".".join(str(part) for part in first["loc"])
    return InvalidRequest(f"{where or 'the body'}: {first['msg']}.", hint="See /docs.", field=where)
