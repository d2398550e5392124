"""Whether a planned step trained the same as the plain compiled one, as far as rounding lets anyone say.

Kernels that are cut otherwise round otherwise, so that equality to the bit can't be asked for. What it must not let
through is a gradient that is wrong in substance: noise drawn anew is off by half its size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from remat.torch.both_ways import Outcome

TOLERANCE = 0.02
"""Of a tensor's norm; rounding differs by 1e-5 of it in float32 on deep networks."""
TOLERANCE_IN_EPSILONS = 8
"""The same for coarser types."""
NEGLIGIBLE = 1e-4
"""A gradient below this share of the largest one's norm may be rounding alone (a bias before a normalisation)."""


def largest_difference(one: Outcome, other: Outcome) -> tuple[float, str]:
    """The norm of the difference over the norm, of the tensor in which that is largest, and the tensor's name."""
    worst, where = 0.0, ""
    for kind in ("outputs", "gradients", "buffers"):
        left, right = getattr(one, kind), getattr(other, kind)
        if left.keys() != right.keys():
            return float("inf"), min(left.keys() ^ right.keys())
        scale = max((_norm(tensor) for tensor in right.values()), default=0.0)
        for name, tensor in right.items():
            difference = _difference(left[name], tensor, NEGLIGIBLE * scale)
            if not difference <= worst:
                worst, where = difference, name
    return worst, where


def tolerance(outcome: Outcome) -> float:
    """What `largest_difference` may be for gradients of these types."""
    kinds = {tensor.dtype for tensor in (*outcome.outputs.values(), *outcome.gradients.values())}
    epsilons = [torch.finfo(kind).eps for kind in kinds if kind.is_floating_point]
    return max(TOLERANCE, TOLERANCE_IN_EPSILONS * max(epsilons, default=0.0))


def _difference(left: Tensor, right: Tensor, negligible: float) -> float:
    if left.dtype != right.dtype or left.shape != right.shape:
        return float("inf")
    unequal = (left != right) & ~(left.isnan() & right.isnan())
    if not unequal.any():
        return 0.0
    apart = _norm(left[unequal].double() - right[unequal].double())
    return apart / max(_norm(right), negligible) if _norm(right) or negligible else float("inf")


def _norm(tensor: Tensor) -> float:
    """Its norm, whatever the type of its entries."""
    return float(torch.linalg.vector_norm(tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)))
