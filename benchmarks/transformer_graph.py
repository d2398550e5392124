"""A synthetic training step of a GPT, op by op as PyTorch's joint graph has it, of any depth.

Sizes follow from shapes (float32 activations, flash attention), times from a simple roofline: the
larger of arithmetic and memory traffic. Gradients of parameters are outputs. Views own nothing, and
ops that drop out need a generator's state to be replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from remat_solver.graph import Graph, Op, Phase, Value

FLOAT_BYTES = 4
FLOPS_PER_NS = 60_000.0
BYTES_PER_NS = 1_500.0
LAUNCH_NS = 2_000.0
GENERATOR_STATE_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What fixes a transformer's costs; `tokens` is batch times sequence length."""

    layers: int
    width: int = 1024
    heads: int = 16
    tokens: int = 8192
    sequence: int = 1024
    vocabulary: int = 50304
    dropout: bool = True


@dataclass(kw_only=True)
class _Recorder:
    ops: list[Op] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    phase: Phase = "forward"

    def add(
        self, name: str, reads: list[int], sizes: list[int], *, flops: float = 0.0, workspace: int = 0, state: int = 0
    ) -> list[int]:
        """Adds an op that writes values of `sizes` bytes; returns their numbers."""
        traffic = sum(self.sizes[value] for value in reads) + sum(sizes)
        time_ns = LAUNCH_NS + max(flops / FLOPS_PER_NS, traffic / BYTES_PER_NS)
        self.ops.append(
            Op(
                name=name,
                time_ns=int(float(f"{time_ns:.3g}")),
                reads=tuple(dict.fromkeys(reads)),
                writes=tuple(Value(size_bytes=size) for size in sizes),
                workspace_bytes=workspace,
                recompute_state_bytes=state,
                phase=self.phase,
            )
        )
        first = len(self.sizes)
        self.sizes.extend(sizes)
        return list(range(first, first + len(sizes)))

    def keep(self, values: list[int]) -> None:
        self.outputs.extend(values)


@dataclass(frozen=True, kw_only=True)
class _Saved:
    """What a layer's backward reads of its forward."""

    x: int
    norm1: list[int]
    qkv: int
    attention: list[int]
    mask1: int | None
    middle: int
    norm2: list[int]
    up: int
    act: int
    mask2: int | None


def transformer_graph(shape: Shape) -> Graph:
    """The training step of a GPT of that shape: about 37 ops a layer."""
    r = _Recorder()
    hidden = shape.tokens * shape.width * FLOAT_BYTES
    (x,) = r.add("embedding", [], [hidden])
    saved = []
    for layer in range(shape.layers):
        x, of_layer = _forward(r, shape, layer, x)
        saved.append(of_layer)
    gradient = _head(r, shape, x)
    for layer in range(shape.layers - 1, -1, -1):
        gradient = _backward(r, shape, layer, saved[layer], gradient)
    r.keep(r.add("embedding_backward", [gradient], [shape.vocabulary * shape.width * FLOAT_BYTES]))
    parameters = 12 * shape.layers * shape.width**2 + shape.vocabulary * shape.width
    return Graph(
        ops=tuple(r.ops),
        outputs=tuple(r.outputs),
        fixed_bytes=3 * FLOAT_BYTES * parameters,
        name=f"gpt-{shape.layers}",
        estimated=True,
    )


def _forward(r: _Recorder, shape: Shape, layer: int, x: int) -> tuple[int, _Saved]:
    hidden, statistics = shape.tokens * shape.width * FLOAT_BYTES, shape.tokens * FLOAT_BYTES
    name, square = f"layers.{layer}", 2.0 * shape.tokens * shape.width**2
    norm1 = r.add(f"{name}.norm1", [x], [hidden, statistics, statistics])
    (qkv,) = r.add(f"{name}.qkv", [norm1[0]], [3 * hidden], flops=3 * square)
    flops = 4.0 * shape.tokens * shape.sequence * shape.width
    state = GENERATOR_STATE_BYTES if shape.dropout else 0
    attention = r.add(f"{name}.attention", [qkv], [hidden, statistics * shape.heads], flops=flops, state=state)
    (projected,) = r.add(f"{name}.projection", [attention[0]], [hidden], flops=square)
    projected, mask1 = _dropout(r, shape, f"{name}.dropout1", projected)
    (middle,) = r.add(f"{name}.add1", [x, projected], [hidden])
    norm2 = r.add(f"{name}.norm2", [middle], [hidden, statistics, statistics])
    (up,) = r.add(f"{name}.up", [norm2[0]], [4 * hidden], flops=4 * square)
    (act,) = r.add(f"{name}.gelu", [up], [4 * hidden])
    (down,) = r.add(f"{name}.down", [act], [hidden], flops=4 * square)
    down, mask2 = _dropout(r, shape, f"{name}.dropout2", down)
    (out,) = r.add(f"{name}.add2", [middle, down], [hidden])
    saved = _Saved(
        x=x,
        norm1=norm1,
        qkv=qkv,
        attention=attention,
        mask1=mask1,
        middle=middle,
        norm2=norm2,
        up=up,
        act=act,
        mask2=mask2,
    )
    return out, saved


def _dropout(r: _Recorder, shape: Shape, name: str, x: int) -> tuple[int, int | None]:
    if not shape.dropout:
        return x, None
    hidden = shape.tokens * shape.width
    dropped, mask = r.add(name, [x], [hidden * FLOAT_BYTES, hidden], state=GENERATOR_STATE_BYTES)
    return dropped, mask


def _head(r: _Recorder, shape: Shape, x: int) -> int:
    """Final norm, logits, loss, and back through them."""
    hidden, statistics = shape.tokens * shape.width * FLOAT_BYTES, shape.tokens * FLOAT_BYTES
    logits_bytes = shape.tokens * shape.vocabulary * FLOAT_BYTES
    flops = 2.0 * shape.tokens * shape.width * shape.vocabulary
    norm = r.add("norm", [x], [hidden, statistics, statistics])
    (logits,) = r.add("head", [norm[0]], [logits_bytes], flops=flops)
    (log_probabilities,) = r.add("log_softmax", [logits], [logits_bytes])
    r.keep(r.add("nll_loss", [log_probabilities], [FLOAT_BYTES]))
    r.phase = "backward"
    (gradient,) = r.add("nll_loss_backward", [log_probabilities], [logits_bytes])
    (gradient,) = r.add("log_softmax_backward", [gradient, log_probabilities], [logits_bytes])
    r.keep(
        r.add("head.weight_gradient", [gradient, norm[0]], [shape.vocabulary * shape.width * FLOAT_BYTES], flops=flops)
    )
    (gradient,) = r.add("head.input_gradient", [gradient], [hidden], flops=flops)
    return _norm_backward(r, shape, "norm", gradient, x, norm)


def _backward(r: _Recorder, shape: Shape, layer: int, saved: _Saved, gradient: int) -> int:
    hidden, statistics = shape.tokens * shape.width * FLOAT_BYTES, shape.tokens * FLOAT_BYTES
    name = f"layers.{layer}"
    (branch,) = _mask(r, f"{name}.dropout2", gradient, saved.mask2, hidden)
    branch = _linear_backward(r, shape, f"{name}.down", branch, saved.act, 4, 1)
    (branch,) = r.add(f"{name}.gelu_backward", [branch, saved.up], [4 * hidden])
    branch = _linear_backward(r, shape, f"{name}.up", branch, saved.norm2[0], 1, 4)
    branch = _norm_backward(r, shape, f"{name}.norm2", branch, saved.middle, saved.norm2)
    (gradient,) = r.add(f"{name}.add2_backward", [gradient, branch], [hidden])
    (branch,) = _mask(r, f"{name}.dropout1", gradient, saved.mask1, hidden)
    branch = _linear_backward(r, shape, f"{name}.projection", branch, saved.attention[0], 1, 1)
    state = GENERATOR_STATE_BYTES if shape.dropout else 0
    flops = 10.0 * shape.tokens * shape.sequence * shape.width
    reads = [branch, saved.qkv, *saved.attention]
    q, k, v = r.add(
        f"{name}.attention_backward", reads, [hidden] * 3, flops=flops, workspace=statistics * shape.heads, state=state
    )
    (branch,) = r.add(f"{name}.cat_backward", [q, k, v], [3 * hidden])
    branch = _linear_backward(r, shape, f"{name}.qkv", branch, saved.norm1[0], 1, 3)
    branch = _norm_backward(r, shape, f"{name}.norm1", branch, saved.x, saved.norm1)
    (gradient,) = r.add(f"{name}.add1_backward", [gradient, branch], [hidden])
    return gradient


def _mask(r: _Recorder, name: str, gradient: int, mask: int | None, hidden: int) -> list[int]:
    return [gradient] if mask is None else r.add(f"{name}_backward", [gradient, mask], [hidden])


def _linear_backward(r: _Recorder, shape: Shape, name: str, gradient: int, x: int, into: int, out: int) -> int:
    """Gradients of a linear layer from `into` to `out` widths: input, weight, bias."""
    flops = 2.0 * shape.tokens * into * out * shape.width**2
    (result,) = r.add(
        f"{name}.input_gradient", [gradient], [into * shape.tokens * shape.width * FLOAT_BYTES], flops=flops
    )
    r.keep(r.add(f"{name}.weight_gradient", [gradient, x], [into * out * shape.width**2 * FLOAT_BYTES], flops=flops))
    r.keep(r.add(f"{name}.bias_gradient", [gradient], [out * shape.width * FLOAT_BYTES]))
    return result


def _norm_backward(r: _Recorder, shape: Shape, name: str, gradient: int, x: int, norm: list[int]) -> int:
    sizes = [shape.tokens * shape.width * FLOAT_BYTES, shape.width * FLOAT_BYTES, shape.width * FLOAT_BYTES]
    result, weight, bias = r.add(f"{name}_backward", [gradient, x, *norm[1:]], sizes)
    r.keep([weight, bias])
    return result
