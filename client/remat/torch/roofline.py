"""Estimated costs, for ops that can't be run: no such device here, or no way to make up the inputs.

An op takes the longer of its arithmetic at the device's peak rate and its traffic at the device's
bandwidth, plus a fixed latency (Williams et al., "Roofline", 2009). Against times measured on a CPU the
logarithms correlate at 0.85 to 0.97; totals are only as good as the rates. Workspaces are unknown, and
taken as none: a peak predicted from an estimate can be too low, for convolutions by up to a fifth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import flop_counter

from remat.torch.cost_cache import OpCost
from remat.torch.signature import GeneratorSpec, TensorSpec, decode
from remat.torch.untraced import run_untraced
from remat_solver.graph import Graph, Op


@dataclass(frozen=True, kw_only=True)
class DeviceSpeed:
    """A device's rates: arithmetic, memory traffic, and the least time that any op takes."""

    flops_per_s: float
    bytes_per_s: float
    latency_ns: int


SPEEDS: dict[str, DeviceSpeed] = {
    "cpu": DeviceSpeed(flops_per_s=5e10, bytes_per_s=8e9, latency_ns=5_000),
    "cuda": DeviceSpeed(flops_per_s=1e14, bytes_per_s=1.5e12, latency_ns=5_000),
}
"""Rates by device type: one core of a server, and a data-centre GPU, neither of them a particular one."""


def estimate(graph: Graph, *, speed: DeviceSpeed | None = None) -> Graph:
    """The graph with the time of every op that has a signature estimated, marked `estimated=True`.

    `speed` defaults to that of the device type each op's tensors are on. Raises `CaptureError` for a
    signature that this PyTorch can't read.
    """
    return run_untraced(
        lambda _: replace(graph, estimated=True, ops=tuple(_estimate_op(op, speed) for op in graph.ops))
    )


def _estimate_op(op: Op, speed: DeviceSpeed | None) -> Op:
    if not op.signature:
        return op
    cost = estimate_cost(op.signature, speed)
    return replace(op, time_ns=cost.time_ns, workspace_bytes=cost.workspace_bytes)


def estimate_cost(signature: str, speed: DeviceSpeed | None = None) -> OpCost:
    """The estimated cost of one op."""
    op, args, kwargs = decode(signature)
    specs = list(_specs([*args, *kwargs.values()]))
    if speed is None:
        device = specs[0].device.type if specs else "cpu"
        speed = SPEEDS.get(device, SPEEDS["cuda"])
    meta_args = _to_meta(list(args))
    meta_kwargs = {name: _to_meta(value) for name, value in kwargs.items()}
    results = _run_on_meta(op, meta_args, meta_kwargs)
    traffic = sum(spec.numel * spec.dtype.itemsize for spec in specs)
    traffic += sum(result.numel() * result.dtype.itemsize for result in _tensors(results))
    flops = _count_flops(op, meta_args, meta_kwargs, results)
    busy_s = max(flops / speed.flops_per_s, traffic / speed.bytes_per_s)
    return OpCost(time_ns=round_to_3_digits(speed.latency_ns + busy_s * 1e9), workspace_bytes=0)


def _run_on_meta(op: torch._ops.OpOverload, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The shapes that come out, or nothing where the op has no shape function."""
    try:
        return op(*args, **kwargs)
    except (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError):
        return None


def _count_flops(op: torch._ops.OpOverload, args: list[Any], kwargs: dict[str, Any], results: Any) -> float:
    count = flop_counter.flop_registry.get(op._overloadpacket)
    if count is None or results is None:
        return 0.0
    return float(count(*args, **kwargs, out_val=results))


def _to_meta(value: Any) -> Any:
    if isinstance(value, TensorSpec):
        return torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device="meta")
    if isinstance(value, torch.device):
        return torch.device("meta")
    if isinstance(value, list):
        return [_to_meta(item) for item in value]
    return None if isinstance(value, GeneratorSpec) else value


def _specs(values: list[Any]) -> Iterator[TensorSpec]:
    for value in values:
        if isinstance(value, TensorSpec):
            yield value
        elif isinstance(value, list):
            yield from _specs(value)


def _tensors(results: Any) -> Iterator[torch.Tensor]:
    if isinstance(results, torch.Tensor):
        yield results
    elif isinstance(results, (list, tuple)):
        for result in results:
            yield from _tensors(result)


def round_to_3_digits(amount: float) -> int:
    """The nearest integer with three significant digits, so that equal hardware gives equal graphs more often."""
    if amount < 1:
        return round(amount)
    step: int = 10 ** max(math.floor(math.log10(amount)) - 2, 0)
    return round(amount / step) * step
