"""With one slot the linear relaxation is nearly integral, and its optimum shows where the integral points are.

Take a program with one slot (t, t), and leave out its memory row. Write T[o] = S[o] + R[p(o)]: "value o can be read
behind the slot". Then every row compares two columns, or one with a constant: `R[i] <= T[o]` where op i reads o,
`1 <= T[o]` where a first run does, `0 <= T[o] - R[p(o)] <= 1` for S, `R[i] <= H[i]`. Such a matrix is totally
unimodular, so that all vertices of what these rows leave are integral (Hoffman and Kruskal, 1956).

The memory row cuts that polytope once. Hence a vertex of the whole relaxation is integral, or lies on an edge between
two integral points: where these differ it is alpha or 1 - alpha. Memory is linear along the edge, so that one of the
two is within the budget; and the more ops a graph has, the less of its time a single edge is.
"""

from __future__ import annotations

from collections.abc import Sequence

_TOLERANCE = 1e-6


def edge_ends(vertex: Sequence[float]) -> list[tuple[float, ...]]:
    """The integral points on whose edge a vertex of the relaxation lies: two, or itself alone.

    If it is halfway between them (alpha = 1/2), or no vertex, they may be others: whoever takes one checks it.
    """
    shares = [share for share in vertex if _TOLERANCE < share < 1 - _TOLERANCE]
    levels = [shares[0], 1 - shares[0]] if shares else [1.0]
    return [
        tuple(float(share > 1 - _TOLERANCE or abs(share - level) <= _TOLERANCE) for share in vertex) for level in levels
    ]
