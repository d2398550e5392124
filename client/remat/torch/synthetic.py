"""Inputs made up from their descriptions, so that an op can run without its model.

Only what an op's time or safety depends on is honoured: layout exactly, and contents where contents are
addresses. Indices stay in range and are spread evenly; masks that pick places for given elements pick half as many as
there are elements; other integers are 0, or 1 where they divide; floats are uniform in (0, 1], so that no logarithm,
square root or denormal spoils the timing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from remat.torch.signature import GeneratorSpec, TensorSpec

Bounds = Callable[[Mapping[str, Any]], int | list[int]]
"""From an op's arguments by name, the number that its indices must stay below (one for each in a list)."""


@dataclass(frozen=True, kw_only=True)
class PreparedCall:
    """An op and real arguments. `pristine` pairs each argument that the op overwrites with a copy."""

    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    pristine: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()

    def run(self) -> Any:
        """Runs the op once."""
        return self.op(*self.args, **self.kwargs)

    def restore(self) -> None:
        """Gives overwritten arguments their first contents back."""
        for argument, copy in self.pristine:
            argument.copy_(copy)


@dataclass(kw_only=True)
class InputPool:
    """Makes arguments. Floats and bools of one call lie in buffers that the next call uses again.

    The buffers hold at most the inputs of the largest call of each dtype; `clear` lets them go.
    """

    seed: int = 0
    _buffers: dict[tuple[torch.device, torch.dtype, int], torch.Tensor] = field(default_factory=dict)
    _generators: dict[torch.device, torch.Generator] = field(default_factory=dict)

    def prepare(self, op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PreparedCall:
        """Real arguments for a decoded signature; the call must be over before the next one is prepared."""
        arguments = op._schema.arguments
        named = {argument.name: value for argument, value in zip(arguments, args, strict=False)} | kwargs
        written = {argument.name for argument in arguments if argument.alias_info and argument.alias_info.is_write}
        bounds = _index_bounds(op, named)
        builder = _Builder(pool=self, divides=op._schema.name.split("::")[1] in _DIVISIONS)
        built = {name: builder.build(value, bounds.get(name), fresh=name in written) for name, value in named.items()}
        if op._schema.name in _ELEMENTS:
            built["mask"] = _mask(named["mask"], built[arguments[0].name], _ELEMENTS[op._schema.name](named) // 2)
        positional = [argument.name for argument in arguments[: len(args)]]
        overwritten = [built[name] for name in written if isinstance(built.get(name), torch.Tensor)]
        return PreparedCall(
            op=op,
            args=tuple(built[name] for name in positional),
            kwargs={name: built[name] for name in kwargs},
            pristine=tuple((tensor, tensor.clone()) for tensor in overwritten),
        )

    def clear(self) -> None:
        """Lets the buffers go."""
        self._buffers.clear()

    def generator(self, device: torch.device) -> torch.Generator:
        """A private generator, so that nobody else's is moved."""
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self.seed)
        return self._generators[device]

    def buffer(self, spec: TensorSpec, slot: int, *, fresh: bool) -> torch.Tensor:
        """A one-dimensional tensor that holds the storage of `spec`."""
        count = math.ceil(spec.storage_bytes / spec.dtype.itemsize)
        key = (spec.device, spec.dtype, slot)
        if fresh:
            return self._fill(count, spec)
        if key not in self._buffers or self._buffers[key].numel() < count:
            self._buffers.pop(key, None)  # before the larger one is allocated
            self._buffers[key] = self._fill(count, spec)
        return self._buffers[key]

    def _fill(self, count: int, spec: TensorSpec) -> torch.Tensor:
        generator = self.generator(spec.device)
        if spec.dtype == torch.bool:
            return torch.randint(2, (count,), dtype=torch.bool, device=spec.device, generator=generator)
        if spec.dtype.is_complex:
            return torch.rand(count, dtype=spec.dtype, device=spec.device, generator=generator)
        natural = spec.dtype if spec.dtype in _UNIFORM_DTYPES else torch.float32
        values = torch.empty(count, dtype=natural, device=spec.device).uniform_(0.01, 1, generator=generator)
        return values.to(spec.dtype)


@dataclass(kw_only=True)
class _Builder:
    """Builds the arguments of one call; no two of its tensors share a buffer."""

    pool: InputPool
    divides: bool
    slot: int = 0

    def build(self, value: Any, bound: int | list[int] | None, *, fresh: bool = False) -> Any:
        if isinstance(value, TensorSpec):
            return self._tensor(value, bound if isinstance(bound, int) else None, fresh=fresh)
        if isinstance(value, GeneratorSpec):
            return self.pool.generator(value.device)
        if isinstance(value, list):
            each = bound if isinstance(bound, list) else [bound] * len(value)
            return [self.build(item, limit, fresh=fresh) for item, limit in zip(value, each, strict=False)]
        return value

    def _tensor(self, spec: TensorSpec, bound: int | None, *, fresh: bool) -> torch.Tensor:
        if spec.dtype.is_floating_point or spec.dtype.is_complex or spec.dtype == torch.bool:
            self.slot += 1
            storage = self.pool.buffer(spec, self.slot, fresh=fresh)
        else:
            storage = self._integers(spec, bound)
        return storage.as_strided(spec.shape, spec.stride, spec.storage_offset)

    def _integers(self, spec: TensorSpec, bound: int | None) -> torch.Tensor:
        count = math.ceil(spec.storage_bytes / spec.dtype.itemsize)
        if bound is None:
            return torch.full((count,), int(self.divides), dtype=spec.dtype, device=spec.device)
        generator = self.pool.generator(spec.device)
        return torch.randint(max(bound, 1), (count,), dtype=spec.dtype, device=spec.device, generator=generator)


def _index_bounds(op: torch._ops.OpOverload, named: Mapping[str, Any]) -> dict[str, int | list[int]]:
    name = op._schema.name.split("::")[1].rstrip("_")
    if name not in _INDICES:
        return {}
    argument, bound = _INDICES[name]
    return {argument: bound(named)}


def _mask(spec: TensorSpec, masked: torch.Tensor, ones: int) -> torch.Tensor:
    """A mask that picks at most that many places of `masked`, to whose shape it may have to be expanded."""
    storage = torch.zeros(spec.storage_bytes, dtype=torch.bool, device=spec.device)
    storage[: ones * len(storage) // max(masked.numel(), 1)] = True
    return storage.as_strided(spec.shape, spec.stride, spec.storage_offset)


def _along_dim(named: Mapping[str, Any]) -> int:
    shape: tuple[int, ...] = named["self"].shape
    return shape[named["dim"]] if shape else 1


def _each_dim(named: Mapping[str, Any]) -> list[int]:
    return list(named["self"].shape)


def _class_count(named: Mapping[str, Any]) -> int:
    shape: tuple[int, ...] = named["self"].shape
    return shape[1] if len(shape) > 1 else shape[0]


def _plane(dimensions: int) -> Bounds:
    return lambda named: math.prod(named["self"].shape[-dimensions:])


def _numel(named: Mapping[str, Any]) -> int:
    numel: int = named["self"].numel
    return numel


_ELEMENTS: dict[str, Callable[[Mapping[str, Any]], int]] = {
    "aten::masked_scatter": lambda named: int(named["source"].numel),
    "aten::masked_scatter_": lambda named: int(named["source"].numel),
    "aten::masked_scatter_backward": lambda named: math.prod(named["sizes"]),
}
"""How many elements an op has for the places that its mask picks. The backward takes most memory at half of them."""

_DIVISIONS = frozenset({"div", "div_", "floor_divide", "floor_divide_", "remainder", "remainder_", "fmod", "fmod_"})
_UNIFORM_DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_POOL_2D = ("max_pool2d_with_indices_backward", "adaptive_max_pool2d_backward", "fractional_max_pool2d_backward")
_POOL_3D = ("max_pool3d_with_indices_backward", "adaptive_max_pool3d_backward", "fractional_max_pool3d_backward")
_BY_DIM = ("gather", "gather_backward", "scatter", "scatter_add", "scatter_reduce", "index_select", "index_add",
           "index_copy", "index_fill", "index_reduce")  # fmt: skip
_BY_LIST = ("index", "index_put", "_index_put_impl", "_unsafe_index", "_unsafe_index_put")
_BY_CLASS = ("nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward", "multi_margin_loss")

_INDICES: dict[str, tuple[str, Bounds]] = {
    "embedding": ("indices", lambda named: int(named["weight"].shape[0])),
    "embedding_dense_backward": ("indices", lambda named: int(named["num_weights"])),
    "take": ("index", _numel),
    "put": ("index", _numel),
    **dict.fromkeys(_BY_DIM, ("index", _along_dim)),
    **dict.fromkeys(_BY_LIST, ("indices", _each_dim)),
    **dict.fromkeys(_BY_CLASS, ("target", _class_count)),
    **{op: ("indices", _plane(2)) for op in _POOL_2D},
    **{op: ("indices", _plane(3)) for op in _POOL_3D},
}
"""The integer argument that holds addresses, by op, and what they must stay below."""
