"""Uploaded graphs.

A graph's address is the sha256 of its JSON text as sent, names included, so that anyone can compute
it (`sha256sum graph.json`) and gets back the very bytes they sent. It is not `Graph.hash`, which
leaves names out: pins are patterns on names, so two graphs that differ in names alone are kept
apart here, while the keys of their plans (pins resolved to op numbers) still coincide.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

import sqlalchemy as sa

from remat_api.store.blobs import BlobStore, address
from remat_api.store.clock import now_ms
from remat_api.store.database import Database, insert_if_absent
from remat_api.store.tables import graphs
from remat_api.stored_graph import StoredGraph
from remat_solver.errors import InvalidGraph, NotFound
from remat_solver.files import parse_json
from remat_solver.graph import Graph
from remat_solver.simulate import simulate, store_all_schedule

MAX_TOTAL = 2**62
"""Peaks and times must fit the database's 64-bit integers."""
SHELF_OPS = 200_000
"""How many ops the parsed graphs kept in memory may have together."""


def survey(document: bytes, graph: Graph) -> StoredGraph:
    """The record of a graph that is not stored yet; raises `InvalidGraph` if its totals are absurd."""
    graph.hash  # noqa: B018 (computed here, in a thread, and kept)
    peak = simulate(graph, store_all_schedule(graph)).peak_bytes
    if max(peak, graph.total_time_ns) > MAX_TOTAL:
        raise InvalidGraph(
            f"the graph's total memory or time exceeds {MAX_TOTAL}.", hint="Check the units: bytes and nanoseconds."
        )
    return StoredGraph(
        id=address(document),
        graph=graph,
        store_all_peak_bytes=peak,
        size_bytes=len(document),
        created_ms=now_ms(),
    )


class GraphStore:
    """Graphs by address. Parsed ones stay on a shelf in memory: a thousand ranks ask for the same one."""

    def __init__(self, database: Database, blobs: BlobStore) -> None:
        self._database = database
        self._blobs = blobs
        self._shelf: OrderedDict[str, StoredGraph] = OrderedDict()
        self._loading: dict[str, asyncio.Task[StoredGraph]] = {}

    async def put(self, document: bytes, stored: StoredGraph, owner: str) -> bool:
        """Keeps a graph; False if it was there already."""
        data = await self._blobs.pack(stored.id, document)
        row = _row(stored, owner, data)
        async with self._database.writing() as connection:
            is_new = await insert_if_absent(connection, graphs, row)
        self._keep(stored)
        return is_new

    async def has(self, graph_id: str) -> bool:
        """Whether a graph is stored."""
        async with self._database.reading() as connection:
            return await connection.scalar(sa.select(graphs.c.id).where(graphs.c.id == graph_id)) is not None

    async def get(self, graph_id: str) -> StoredGraph:
        """A stored graph, parsed; raises `NotFound`. Concurrent callers share one parse."""
        if graph_id in self._shelf:
            self._shelf.move_to_end(graph_id)
            return self._shelf[graph_id]
        if graph_id not in self._loading:
            task = asyncio.create_task(self._load(graph_id))
            task.add_done_callback(lambda _: self._loading.pop(graph_id, None))
            self._loading[graph_id] = task
        return await asyncio.shield(self._loading[graph_id])

    async def document(self, graph_id: str) -> bytes:
        """The JSON text as it was sent; raises `NotFound`."""
        row = await self._fetch(graph_id)
        return await self._blobs.unpack(graph_id, row.data)

    async def with_document(self, graph_id: str) -> tuple[StoredGraph, bytes]:
        """A stored graph and its JSON text at once; raises `NotFound`."""
        row = await self._fetch(graph_id)
        document = await self._blobs.unpack(graph_id, row.data)
        return self._shelf.get(graph_id) or await self._parse(row, document), document

    async def _load(self, graph_id: str) -> StoredGraph:
        row = await self._fetch(graph_id)
        return await self._parse(row, await self._blobs.unpack(graph_id, row.data))

    async def _parse(self, row: sa.Row[Any], document: bytes) -> StoredGraph:
        stored = StoredGraph(
            id=row.id,
            graph=await asyncio.to_thread(parse_json, Graph, document),
            store_all_peak_bytes=row.store_all_peak_bytes,
            size_bytes=row.size_bytes,
            created_ms=row.created_ms,
        )
        self._keep(stored)
        return stored

    async def _fetch(self, graph_id: str) -> sa.Row[Any]:
        async with self._database.reading() as connection:
            row = (await connection.execute(sa.select(graphs).where(graphs.c.id == graph_id))).one_or_none()
        if row is None:
            raise NotFound(
                f"there is no graph {graph_id[:64]!r}.", hint="Upload it first: PUT /v1/graphs/{sha256 of its JSON}."
            )
        return row

    def _keep(self, stored: StoredGraph) -> None:
        self._shelf[stored.id] = stored
        self._shelf.move_to_end(stored.id)
        while len(self._shelf) > 1 and sum(len(kept.graph) for kept in self._shelf.values()) > SHELF_OPS:
            self._shelf.popitem(last=False)


def _row(stored: StoredGraph, owner: str, data: bytes | None) -> dict[str, Any]:
    graph = stored.graph
    return {
        "id": stored.id,
        "hash": graph.hash,
        "owner": owner,
        "name": printable(graph.name, 200),
        "op_count": len(graph),
        "value_count": len(graph.values),
        "fixed_bytes": graph.fixed_bytes,
        "store_all_peak_bytes": stored.store_all_peak_bytes,
        "store_all_time_ns": graph.total_time_ns,
        "size_bytes": stored.size_bytes,
        "data": data,
        "created_ms": stored.created_ms,
    }


def printable(text: str, length: int) -> str:
    """At most `length` characters, none of which a terminal or PostgreSQL could choke on."""
    return "".join(character for character in text[:length] if character.isprintable())
