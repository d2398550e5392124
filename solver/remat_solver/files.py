"""Graphs and plans as JSON, in files (`.json`, `.json.zst`) and on the wire.

The wire format is the dataclasses themselves, unknown fields forbidden, types strict: an integer
written as "3" or 3.0 is refused rather than guessed at. Decompression is bounded.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, TypeVar

from backports import zstd
from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from remat_solver.errors import RematError, UnreadableFile
from remat_solver.graph import Graph
from remat_solver.plan import Plan

Document = TypeVar("Document", Graph, Plan)

MAX_DOCUMENT_BYTES = 256 * 2**20
"""Longest JSON text that is read, after decompression."""
_ADAPTERS: dict[type, TypeAdapter[Any]] = {}
_READERS: dict[type, SchemaValidator] = {}


def dump_json(document: Graph | Plan) -> bytes:
    """The document as compact JSON (UTF-8)."""
    text: bytes = _adapter(type(document)).dump_json(document)
    return text


def parse_json(kind: type[Document], text: bytes, *, path: str = "") -> Document:
    """A graph or plan from JSON text.

    Raises `UnreadableFile` for text that is no such document (`where` points into it) and the
    document's own error (`InvalidGraph`, `InvalidPlan`) for one that breaks an invariant.
    """
    label = f"{path or 'the text'} is no {kind.__name__.lower()}"
    try:
        document: Document = strict_reader(kind).validate_json(text, strict=True)
    except ValidationError as error:
        raise _explain(error, label, path) from None
    return document


def load(kind: type[Document], path: str | Path) -> Document:
    """Reads a graph or plan from a `.json` or `.json.zst` file; raises as `parse_json` does."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableFile(
            f"can't read {path}: {error.strerror or error}.", hint="Check the path.", path=str(path)
        ) from None
    if _is_compressed(path):
        data = decompress_zstd(data, MAX_DOCUMENT_BYTES, label=str(path))
    return parse_json(kind, data, path=str(path))


def save(document: Graph | Plan, path: str | Path) -> None:
    """Writes the document whole or not at all; the extension chooses the format."""
    path = Path(path)
    data = dump_json(document)
    write_whole(path, zstd.compress(data) if _is_compressed(path) else data)


def write_whole(path: Path, data: bytes) -> None:
    """Writes to a neighbour and renames, so that no reader ever sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, neighbour = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(neighbour).replace(path)
    except BaseException:
        Path(neighbour).unlink(missing_ok=True)
        raise


def decompress_zstd(data: bytes, limit: int, *, label: str = "the body") -> bytes:
    """Decompresses at most `limit` bytes; raises `UnreadableFile` for more, or for a broken stream."""
    decompressor = zstd.ZstdDecompressor()
    try:
        text = decompressor.decompress(data, max_length=limit + 1)
    except zstd.ZstdError as error:
        raise UnreadableFile(f"{label} is no zstd stream: {error}.", hint="Is the file complete?") from None
    if len(text) > limit:
        raise UnreadableFile(f"{label} decompresses to more than {limit} bytes.", hint="No graph needs that much.")
    if not decompressor.eof:
        raise UnreadableFile(f"{label} is a truncated zstd stream.", hint="Copy or upload it again.")
    return text


def _adapter(kind: type) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def strict_reader(kind: type[Any]) -> SchemaValidator:
    """Reads JSON as `kind`, as pydantic does, but gives up on a list at its first wrong item.

    pydantic would describe every one of them, in a kilobyte each: 64 MB of JSON took gigabytes to refuse.
    """
    if kind not in _READERS:
        _READERS[kind] = SchemaValidator(_failing_fast(TypeAdapter(kind).core_schema))
    return _READERS[kind]


def _failing_fast(schema: Any) -> Any:
    if isinstance(schema, dict):
        changed = {name: _failing_fast(part) for name, part in schema.items()}
        return {**changed, "fail_fast": True} if schema.get("type") in ("tuple", "list") else changed
    if isinstance(schema, list):
        return [_failing_fast(part) for part in schema]
    return schema


def _is_compressed(path: Path) -> bool:
    if path.name.endswith(".json.zst"):
        return True
    if path.suffix == ".json":
        return False
    raise UnreadableFile(
        f"{path}: the name ends neither in .json nor in .json.zst.",
        hint="The extension chooses the format: rename the file.",
        path=str(path),
    )


def _explain(error: ValidationError, label: str, path: str) -> RematError:
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, RematError):
        return cause
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    place = f" at {where}" if where else ""
    return UnreadableFile(
        f"{label}{place}: {first['msg']}.",
        hint="See docs/formats.md for what each field holds.",
        path=path,
        where=where,
    )
