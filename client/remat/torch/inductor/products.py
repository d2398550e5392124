"""Products that stay where a plan runs them.

Inductor turns a sum with a matrix product into one call, at the place of the sum. Where the two are far apart (the
gradient of a matrix that is both embedding and output: one product at the beginning of the backward, one sum at its
end) what the product reads would be held all the way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

NEAR = 8
"""How many nodes may lie between a product and its sum."""


def keep_products_in_place(graph: fx.Graph) -> None:
    """Makes each sum read a far product through two transpositions, which cost nothing and hide it from the pattern.

    Only where the product is smaller than what it reads.
    """
    position = {node: number for number, node in enumerate(graph.nodes)}
    for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        for product in node.args[:2]:
            is_product = isinstance(product, fx.Node) and product.target is aten.mm.default
            if is_product and position[node] - position[product] > NEAR and _shrinks(product):
                with graph.inserting_before(node):
                    node.replace_input_with(product, _transposed(graph, _transposed(graph, product)))


def _shrinks(product: fx.Node) -> bool:
    read = sum(source.meta["val"].numel() for source in product.all_input_nodes)
    return bool(read > product.meta["val"].numel())


def _transposed(graph: fx.Graph, source: fx.Node) -> fx.Node:
    made = graph.call_function(aten.permute.default, (source, [1, 0]))
    value: Any = source.meta["val"]
    with value.fake_mode:
        made.meta["val"] = value.permute(1, 0)
    return made
