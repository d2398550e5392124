"""Signatures: one op call written as text, so that it can be run again anywhere, on made-up inputs.

A signature is compact JSON, `[op, arguments, keyword arguments]`. It holds what the cost of a call depends
on: the op overload, every scalar argument, and for each tensor its shape, stride, storage offset, dtype,
device and, where the tensor is a view of something larger, the bytes of its storage. It holds no data.
Equal calls have equal signatures, so identical layers are measured once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from remat_solver.errors import CaptureError

_NO_PART = "Report the op: it can't be measured alone."


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """Everything about a strided tensor but its contents. Strides and offset count elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int = 0
    dtype: torch.dtype
    device: torch.device
    storage_bytes: int

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class GeneratorSpec:
    """A random generator handed to an op explicitly."""

    device: torch.device


def signature_of(target: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The signature of the call `target(*args, **kwargs)`; tensors (fake ones too) and fx nodes may be arguments.

    Raises `CaptureError` naming the op when `target` is no ATen-style operator or an argument is of a kind
    that can't be written down (a subgraph, a sparse tensor, an unbacked symbolic size).
    """
    if not isinstance(target, torch._ops.OpOverload):
        raise CaptureError(f"{target} is no operator overload, so it has no signature.", hint=_NO_PART)
    op = str(target)
    call = [
        op,
        [_encode(argument, op) for argument in args],
        {name: _encode(kwargs[name], op) for name in sorted(kwargs)},
    ]
    return json.dumps(call, separators=(",", ":"), allow_nan=False)


def is_collective(target: object) -> bool:
    """Whether an op talks to other ranks, and waits for them: it can be neither run again nor measured alone."""
    return isinstance(target, torch._ops.OpOverload) and "c10d" in target.namespace


def decode(text: str) -> tuple[torch._ops.OpOverload, tuple[Any, ...], dict[str, Any]]:
    """The call that `signature_of` wrote, with a `TensorSpec` where each tensor stood.

    Raises `CaptureError` when the text is no signature, or names an op that this PyTorch lacks.
    """
    try:
        name, args, kwargs = json.loads(text)
        op = _find_op(name)
        return op, tuple(_decode(part) for part in args), {key: _decode(part) for key, part in kwargs.items()}
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise CaptureError(
            f"{text[:120]!r} is no op signature of this PyTorch ({torch.__version__}): {error}.",
            hint="Capture the step again with the PyTorch that measures it, and import what registers custom ops.",
        ) from None


def _find_op(name: str) -> torch._ops.OpOverload:
    namespace, packet, overload = name.rsplit(".", 2)
    op = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    if not isinstance(op, torch._ops.OpOverload):
        raise TypeError(f"{name} is no operator overload")
    return op


def _encode(argument: Any, op: str) -> Any:
    if isinstance(argument, torch.fx.Node):
        argument = argument.meta.get("val", argument)
    if argument is None or isinstance(argument, (bool, int, str)):
        return argument
    if isinstance(argument, float):
        return argument if math.isfinite(argument) else {"float": repr(argument)}
    if isinstance(argument, (list, tuple, torch.Size)):
        return [_encode(part, op) for part in argument]
    if isinstance(argument, torch.Tensor):
        return {"tensor": _encode_spec(_spec_of(argument, op))}
    if isinstance(argument, TensorSpec):
        return {"tensor": _encode_spec(argument)}
    for kind, (types, write, _) in _TAGGED.items():
        if isinstance(argument, types):
            return {kind: write(argument)}
    if isinstance(argument, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return _encode_symbol(argument, op)
    raise CaptureError(f"{op} takes an argument of kind {type(argument).__name__}.", hint=_NO_PART)


def _encode_symbol(symbol: torch.SymInt | torch.SymFloat | torch.SymBool, op: str) -> int | float | bool:
    constant = symbol.node.maybe_as_int() if isinstance(symbol, torch.SymInt) else None
    if constant is None:
        raise CaptureError(
            f"{op} takes the symbolic size {symbol}.",
            hint="Capture with static shapes (dynamic=False): each shape has its own plan.",
        )
    return int(constant)


def _spec_of(tensor: torch.Tensor, op: str) -> TensorSpec:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise CaptureError(
            f"{op} takes a tensor of layout {tensor.layout} and dtype {tensor.dtype}.",
            hint="Only strided tensors can be planned: move the sparse or quantized part out of the step.",
        )
    return TensorSpec(
        shape=tuple(_encode(size, op) for size in tensor.shape),
        stride=tuple(_encode(step, op) for step in tensor.stride()),
        storage_offset=_encode(tensor.storage_offset(), op),
        dtype=tensor.dtype,
        device=tensor.device,
        storage_bytes=_encode(tensor.untyped_storage().nbytes(), op),
    )


def _encode_spec(spec: TensorSpec) -> list[Any]:
    written = [
        list(spec.shape),
        list(spec.stride),
        spec.storage_offset,
        _constant_name(spec.dtype),
        str(spec.device),
    ]
    if spec.storage_bytes > _extent_bytes(spec.shape, spec.stride, spec.storage_offset, spec.dtype):
        written.append(spec.storage_bytes)
    return written


def _extent_bytes(shape: Sequence[int], stride: Sequence[int], offset: int, dtype: torch.dtype) -> int:
    """Bytes of the smallest storage that holds the tensor."""
    if 0 in shape:
        return 0
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    return (last + 1) * dtype.itemsize


def _decode_tensor(written: list[Any]) -> TensorSpec:
    shape, stride, offset, dtype_name, device = written[:5]
    dtype = _read_dtype(dtype_name)
    return TensorSpec(
        shape=tuple(shape),
        stride=tuple(stride),
        storage_offset=offset,
        dtype=dtype,
        device=torch.device(device),
        storage_bytes=written[5] if len(written) > 5 else _extent_bytes(shape, stride, offset, dtype),
    )


def _decode(part: Any) -> Any:
    if isinstance(part, list):
        return [_decode(item) for item in part]
    if not isinstance(part, dict):
        return part
    ((kind, written),) = part.items()
    if kind == "tensor":
        return _decode_tensor(written)
    if kind == "float":
        return float(written)
    return _TAGGED[kind][2](written)


def _constant_name(constant: Any) -> str:
    return str(constant).removeprefix("torch.")


def _read_constant(kind: type) -> Callable[[str], Any]:
    def read(name: str) -> Any:
        constant = getattr(torch, name)
        if not isinstance(constant, kind):
            raise TypeError(f"torch.{name} is no {kind.__name__}")
        return constant

    return read


_read_dtype = _read_constant(torch.dtype)

_TAGGED: dict[str, tuple[type | tuple[type, ...], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "dtype": (torch.dtype, _constant_name, _read_dtype),
    "layout": (torch.layout, _constant_name, _read_constant(torch.layout)),
    "memory_format": (torch.memory_format, _constant_name, _read_constant(torch.memory_format)),
    "device": (torch.device, str, torch.device),
    "complex": (complex, lambda z: [repr(z.real), repr(z.imag)], lambda z: complex(float(z[0]), float(z[1]))),
    "generator": (
        (torch.Generator, GeneratorSpec),
        lambda generator: str(generator.device),
        lambda device: GeneratorSpec(device=torch.device(device)),
    ),
}
"""Arguments written as `{kind: text}`: their types, how to write them and how to read them back."""
