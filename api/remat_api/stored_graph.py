"""A graph as the service knows it."""

from __future__ import annotations

from dataclasses import dataclass

from remat_solver.graph import Graph


@dataclass(frozen=True, kw_only=True)
class StoredGraph:
    """A graph with its address and the figures of its store-all plan."""

    id: str
    graph: Graph
    store_all_peak_bytes: int
    size_bytes: int
    created_ms: int
