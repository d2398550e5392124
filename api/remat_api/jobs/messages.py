"""Messages between the service and a worker process, over pipes: a JSON header and a body of bytes.

parent -> worker   {"kind": "solve", "job_id": ..., "options": {...}, "points": ...} + graph JSON;
                   {"kind": "stop", "job_id": ...}
worker -> parent   {"kind": "ready", "engine": ...}; {"kind": "progress", ...};
                   {"kind": "plan", "seconds": ...} + plan JSON;
                       {"kind": "point"} + plan JSON, for each of a frontier, then {"kind": "end"};
                   {"kind": "error", "error": {...}}
"""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any, BinaryIO

_LENGTHS = struct.Struct(">II")
MAX_MESSAGE_BYTES = 512 * 2**20


def encode(header: dict[str, Any], body: bytes = b"") -> bytes:
    """A message as it goes over the pipe."""
    text = json.dumps(header).encode()
    return _LENGTHS.pack(len(text), len(body)) + text + body


def read_message(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """The next message; None at the end of the stream, also in the middle of a message."""
    lengths = stream.read(_LENGTHS.size)
    if len(lengths) < _LENGTHS.size:
        return None
    header_size, body_size = _LENGTHS.unpack(lengths)
    header, body = stream.read(header_size), stream.read(body_size)
    if len(header) < header_size or len(body) < body_size:
        return None
    return json.loads(header), body


async def receive_message(stream: asyncio.StreamReader) -> tuple[dict[str, Any], bytes] | None:
    """As `read_message`, without blocking the event loop. Raises ValueError for an absurd length."""
    try:
        header_size, body_size = _LENGTHS.unpack(await stream.readexactly(_LENGTHS.size))
        if header_size + body_size > MAX_MESSAGE_BYTES:
            raise ValueError("the worker sent a message of an absurd length")
        return json.loads(await stream.readexactly(header_size)), await stream.readexactly(body_size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
