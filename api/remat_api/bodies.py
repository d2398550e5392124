"""Request bodies: bounded as sent and as decompressed, strict JSON, one reader for all routes.

Strict means: UTF-8, no NaN or infinity, no key twice in an object, no absurd nesting or number, and
the declared types exactly. `Content-Type: application/json` is asked for, which also keeps web pages
of other origins from posting to a service on localhost.
"""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import Request
from pydantic import ValidationError

from remat_api.settings import Settings
from remat_solver.errors import InvalidRequest, LimitExceeded, RematError, ServiceError, UnreadableFile
from remat_solver.files import decompress_zstd, parse_json, strict_reader
from remat_solver.graph import Graph

T = TypeVar("T")
VALUES_PER_OP = 8
"""On average at most: a graph may have this many times as many values as it may have ops."""
OTHER_OBJECTS = 1000
ITEMS_PER_OP = 40
"""On average at most: a body may have this many times as many JSON items as a graph may have ops; real ones have 20."""
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)


class Intake:
    """Takes the bodies of requests, one at a time from decompression to the end of its use.

    Parsing holds the interpreter, so that two at once would gain nothing and take twice the memory.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytes]:
        """The decompressed body, to be used within the context. Raises `LimitExceeded` or `UnreadableFile`."""
        _check_media_type(request)
        wire = await _read_wire(request, self._settings.max_wire_bytes)
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        async with self._turn:
            yield await asyncio.to_thread(_decompress, wire, encoding, self._settings.max_body_bytes)

    async def graph(self, text: bytes) -> Graph:
        """The graph in a body. Raises `UnreadableFile`, `InvalidGraph` or `LimitExceeded`."""
        return await asyncio.to_thread(self._graph, text)

    async def parse(self, kind: type[T], text: bytes) -> T:
        """The body as a request dataclass. Raises `UnreadableFile`, `LimitExceeded`, or the dataclass's own error."""
        return await asyncio.to_thread(self._parse, kind, text)

    async def read(self, kind: type[T], request: Request) -> T:
        """The request's body as a request dataclass."""
        async with self.body(request) as text:
            return await self.parse(kind, text)

    def _graph(self, text: bytes) -> Graph:
        check_strict(text, max_ops=self._settings.max_ops)
        return parse_json(Graph, text, path="the body")

    def _parse(self, kind: type[T], text: bytes) -> T:
        check_strict(text, max_ops=self._settings.max_ops)
        try:
            parsed: T = strict_reader(kind).validate_json(text, strict=True)
        except ValidationError as error:
            raise _explain(error) from None
        return parsed


def _check_media_type(request: Request) -> None:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ServiceError(
            f"the body's type is {media_type or 'not given'}.",
            hint="Send JSON with the header Content-Type: application/json.",
            status_code=415,
        )


async def _read_wire(request: Request, limit: int) -> bytearray:
    wire = bytearray()
    async for chunk in request.stream():
        wire += chunk
        if len(wire) > limit:
            raise LimitExceeded(
                f"the body is larger than {limit} bytes.",
                hint="Compress it: Content-Encoding: zstd or gzip.",
                limit=limit,
            )
    return wire


def _decompress(wire: bytearray, encoding: str, limit: int) -> bytes:
    data = bytes(wire)
    wire.clear()
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


def check_strict(text: bytes, *, max_ops: int) -> None:
    """Reads through the text and builds nothing.

    Raises `UnreadableFile` if it is not strict JSON, and `LimitExceeded` if it holds more ops or values
    than a graph may have, or more items of any kind than they could need.
    """
    _check_items(text, ITEMS_PER_OP * max_ops)
    census = _Census(max_ops)
    try:
        json.loads(text.decode("utf-8"), object_pairs_hook=census.count, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"the body is not UTF-8: {error}.", hint="Send JSON as UTF-8.") from None
    except RecursionError:
        raise UnreadableFile("the body is nested too deeply.", hint="No request of ours is.") from None
    except ValueError as error:
        raise UnreadableFile(f"the body is not JSON: {error}.", hint="Is it complete?") from None


def _check_items(text: bytes, limit: int) -> None:
    """Every item of a list or object costs memory when it is parsed, 64 bytes to 400: they are counted before.

    What stands in strings doesn't count. Taking strings out takes time for each: too many of them are refused first.
    """
    quotes = text.count(b'"') - text.count(b'\\"')
    if quotes > 2 * limit or (_item_count(text) > limit and _item_count(_STRING.sub(b"", text)) > limit):
        raise LimitExceeded(
            f"the body has more than {limit} items.",
            hint="Ask the service's operator for more (REMAT_MAX_OPS), or solve it locally.",
            limit=limit,
        )


def _item_count(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


class _Census:
    """Counts the ops and values of a text while it is read, and refuses keys that come twice."""

    def __init__(self, max_ops: int) -> None:
        objects = (VALUES_PER_OP + 1) * max_ops + OTHER_OBJECTS
        self._limits = {"time_ns": ("ops", max_ops), "size_bytes": ("values", VALUES_PER_OP * max_ops)}
        self._limits["object"] = ("objects", objects)
        self._found = dict.fromkeys(self._limits, 0)

    def count(self, pairs: list[tuple[str, Any]]) -> None:
        names = {name for name, _ in pairs}
        if len(names) != len(pairs):
            self._refuse_twice([name for name, _ in pairs])
        for mark, (what, limit) in self._limits.items():
            if mark == "object" or mark in names:
                self._found[mark] += 1
                if self._found[mark] > limit:
                    raise LimitExceeded(
                        f"the graph has more than {limit} {what}.",
                        hint="Ask the service's operator for more (REMAT_MAX_OPS), or solve it locally.",
                        limit=limit,
                    )

    @staticmethod
    def _refuse_twice(names: list[str]) -> None:
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
