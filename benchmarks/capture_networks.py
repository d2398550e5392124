"""python -m benchmarks.capture_networks [NAME ...]: captures and measures the networks, and writes benchmarks/graphs.

The graphs are committed, so that benchmarks of the solver don't move with measurement noise. Run this only to
replace them.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace

import torch
from rich.console import Console

from benchmarks.captured import GRAPHS
from benchmarks.networks import NETWORKS
from remat.torch import capture
from remat.torch.measure import measure
from remat_solver.files import save
from remat_solver.graph import Graph


def graph_of(name: str) -> Graph:
    """The measured graph of one network, without signatures: they are bulky, and a solver reads none."""
    torch.manual_seed(0)
    graph = measure(capture(NETWORKS[name]()))
    return replace(graph, name=name, ops=tuple(replace(op, signature="") for op in graph.ops))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capture_networks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NETWORKS)}; all by default")
    names = parser.parse_args().names or list(NETWORKS)
    unknown = sorted(set(names) - set(NETWORKS))
    if unknown:
        parser.error(f"no network {unknown[0]!r}; there are {', '.join(NETWORKS)}")
    torch.set_num_threads(1)
    console = Console()
    for name in names:
        start = time.perf_counter()
        graph = graph_of(name)
        path = GRAPHS / f"{name}.json.zst"
        save(graph, path)
        console.print(f"{path}: {len(graph)} ops, {time.perf_counter() - start:.0f} s")
        torch._dynamo.reset()
    return 0


if __name__ == "__main__":
    sys.exit(main())
