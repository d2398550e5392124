"""Reads the public graph files (networkx node-link JSON) that MOCCASIN published; see ../shared/data/moccasin.

Networks of Checkmate: nodes with `id`, `cost_cpu`, `cost_ram`, links with `source` and `target`, ids in a
topological order. Random layered graphs: nodes with `name`, `duration`, `out_cost`, links "0" to "1", and
`graph.order`. One op writes one value; the last op of the order is the graph's output.
"""

from __future__ import annotations

import heapq
import json
from pathlib import Path
from typing import Any

from remat_solver.errors import UnreadableFile
from remat_solver.graph import Graph, Op, Value


def find_graphs(folder: Path) -> list[Path]:
    """The JSON files of `folder`, by name. Raises `UnreadableFile` if there are none."""
    if not folder.is_dir():
        raise UnreadableFile(f"{folder} is no folder.", hint="Give the folder that holds the public graphs.")
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise UnreadableFile(f"{folder} holds no .json file.", hint="Give the folder that holds the public graphs.")
    return paths


def load_public_graph(path: Path) -> Graph:
    """The graph in `path`; raises `UnreadableFile` if it is not of that format."""
    try:
        document = json.loads(path.read_text())
        nodes = {str(node.get("id", node.get("name"))): node for node in document["nodes"]}
        edges = {_edge(link) for link in document.get("links", document.get("edges", ()))}
        order = [str(name) for name in document["graph"].get("order", ())] or _topological_order(nodes, edges)
        return _to_graph(path.stem, nodes, edges, order)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError, OSError) as error:
        raise UnreadableFile(f"{path} is no public graph: {error!r}.", path=str(path)) from error


def _edge(link: dict[str, Any]) -> tuple[str, str]:
    if "source" in link:
        return str(link["source"]), str(link["target"])
    return str(link["0"]), str(link["1"])


def _topological_order(nodes: dict[str, Any], edges: set[tuple[str, str]]) -> list[str]:
    """Smallest position in the file first."""
    position = {name: index for index, name in enumerate(nodes)}
    waiting = dict.fromkeys(nodes, 0)
    targets: dict[str, list[str]] = {name: [] for name in nodes}
    for source, target in edges:
        waiting[target] += 1
        targets[source].append(target)
    ready = [(position[name], name) for name, count in waiting.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, name = heapq.heappop(ready)
        order.append(name)
        for target in targets[name]:
            waiting[target] -= 1
            if not waiting[target]:
                heapq.heappush(ready, (position[target], target))
    return order


def _to_graph(name: str, nodes: dict[str, Any], edges: set[tuple[str, str]], order: list[str]) -> Graph:
    position = {node: index for index, node in enumerate(order)}
    reads: list[set[int]] = [set() for _ in order]
    for source, target in edges:
        reads[position[target]].add(position[source])
    times = [nodes[node].get("cost_cpu", nodes[node].get("duration")) for node in order]
    sizes = [nodes[node].get("cost_ram", nodes[node].get("out_cost")) for node in order]
    finest = 1 if all(float(time).is_integer() for time in times) else 10**6
    ops = tuple(
        Op(
            name=f"{index}_{nodes[node].get('name', node)}",
            time_ns=round(times[index] * finest),
            reads=tuple(sorted(reads[index])),
            writes=(Value(size_bytes=round(sizes[index])),),
            phase="backward" if nodes[node].get("backward") else "forward" if "backward" in nodes[node] else "none",
        )
        for index, node in enumerate(order)
    )
    return Graph(ops=ops, outputs=(len(order) - 1,), name=name)
