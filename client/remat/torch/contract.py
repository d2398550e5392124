"""From PyTorch's joint graph to the op graph that the planner sees.

The joint graph holds one fx node per operator of forward and backward. Contracting it means:

* a node that makes new storages is an op, and each new storage is a value; the `getitem`s that take its
  results apart belong to it;
* a node whose results all lie in storages that exist already is a view: no op, but part of whoever reads it;
* placeholders are resident (`fixed_bytes`), except the tangents, which come into being between the phases;
* between the phases stands the *boundary* op: the user's code that turns outputs into tangents. It reads the
  forward outputs and the new contents of mutated buffers, and writes the tangents;
* an assertion about the contents of a tensor (`torch._check`) is a chain of ops that write nothing and run once;
* a BatchNorm is two ops: a bookkeeping one that owns the new running statistics and runs once, and
  the normalisation itself, which may be recomputed (see `batch_norm`).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from remat.torch import batch_norm, random_state
from remat.torch.allocation import distinct_bytes, main_device, storage_bytes, storage_key, tensors_in
from remat.torch.breaks import break_at
from remat.torch.fake_layouts import correct_layouts
from remat.torch.fake_storages import correct_fakes
from remat.torch.mutation import is_mutable, named_arguments, written_arguments
from remat.torch.naming import op_name
from remat.torch.ordering import order_nodes
from remat.torch.signature import is_collective, signature_of
from remat_solver.errors import CaptureError
from remat_solver.graph import Graph, Op, Phase, Value

aten = torch.ops.aten

BOUNDARY = "boundary"
_STATISTICS = ".statistics"


@dataclass(frozen=True, kw_only=True, eq=False)
class JointGraph:
    """A joint graph and its contraction, side by side.

    Op i of `graph` runs `nodes[i]`; None marks the ops that run nothing (the boundary and the owners of
    running statistics). `values` gives the value number of each fx node that names a whole result;
    `inputs` are the fake tensors that the graph takes in; `random_devices` gives the generator's device of
    each random op, by op index; `unchecked` are the values that autograd saves without a version check
    (tensors put on `ctx` by hand). `loss_is_outside` says that some tangent is no scalar: the model returns
    more than a loss. `own_regions` counts the regions of `torch.utils.checkpoint` that the model brings: they
    are not honoured, since the plan decides what is recomputed. `eager_kernels` says that eager mode's kernels run the
    graph; a compiler that makes its own keeps to the trace. `tangents` counts the gradients that the backward starts
    from; `mutated_inputs` are the places of inputs whose contents the step replaces, `mutated_bytes` is their size.
    `has_effects` says that some op does more than return results, so that the step can't be run again.
    """

    graph: Graph
    module: fx.GraphModule
    nodes: tuple[fx.Node | None, ...]
    boundary: int
    values: dict[fx.Node, int]
    inputs: tuple[torch.Tensor, ...]
    forward_outputs: tuple[Any, ...]
    backward_outputs: tuple[Any, ...]
    random_devices: dict[int, torch.device]
    unchecked: frozenset[int]
    loss_is_outside: bool
    own_regions: int
    device: torch.device
    eager_kernels: bool = True
    tangents: int = 0
    mutated_inputs: frozenset[int] = frozenset()
    mutated_bytes: int = 0
    has_effects: bool = False


@dataclass
class _Ops:
    """The op graph while it is being put together."""

    device: torch.device
    replays_random: bool
    ops: list[Op] = field(default_factory=list)
    nodes: list[fx.Node | None] = field(default_factory=list)
    value_count: int = 0
    owner: dict[int, int | None] = field(default_factory=dict)
    """Storage key -> value number, or None for an input."""
    values: dict[fx.Node, int] = field(default_factory=dict)
    reads: dict[fx.Node, frozenset[int]] = field(default_factory=dict)
    """Node -> the values in whose storages its results lie."""
    inputs: dict[fx.Node, frozenset[int]] = field(default_factory=dict)
    """Node -> keys of the input storages in which its results lie."""
    pinned: set[int | None] = field(default_factory=set)
    """Values of which there must never be a second copy."""
    random_devices: dict[int, torch.device] = field(default_factory=dict)

    def add(self, op: Op, node: fx.Node | None) -> int:
        self.ops.append(op)
        self.nodes.append(node)
        return len(self.ops) - 1

    def new_values(self, tensors: Iterable[torch.Tensor], name: str) -> tuple[Value, ...]:
        """Makes a value of each storage among `tensors` that has no owner yet, called after the op `name`."""
        made: list[Value] = []
        for tensor in tensors:
            key = storage_key(tensor)
            if key not in self.owner:
                self.owner[key] = self.value_count
                self.value_count += 1
                label = f"{name}[{len(made)}]" if made else name
                made.append(Value(size_bytes=storage_bytes(tensor, self.device), name=label))
        return tuple(made)


def contract(
    module: fx.GraphModule, *, forward_output_count: int, name: str = "", eager_kernels: bool = True
) -> JointGraph:
    """The op graph of a joint graph, without costs (`fixed_bytes`, times and workspaces are zero).

    Without `eager_kernels` the trace is taken at its word, and an op that draws random numbers runs just once: only
    eager mode's generators can be set back.

    Raises `CaptureError` when shapes are symbolic, and for a model on the meta device.
    """
    if eager_kernels:
        correct_layouts(module)
        correct_fakes(module)
    placeholders = module.graph.find_nodes(op="placeholder")
    outputs, mutated = _outputs(module, forward_output_count)
    forward, backward = order_nodes(module, outputs[:forward_output_count])
    example_tensors = [tensor for node in module.graph.nodes for tensor in _results(node)]
    ops = _Ops(device=main_device(example_tensors), replays_random=eager_kernels)
    if ops.device.type == "meta":
        raise CaptureError(
            "the model is on the meta device, whose ops are not those of a device that trains it.",
            hint="Capture it on the CPU or the GPU: tracing runs nothing, but weights and batch must be there.",
        )
    changing = _mutated_inputs(placeholders, mutated)
    frozen = _mutated_keys(changing, [*forward, *backward])
    tangents = [node for node in placeholders if is_tangent(node)]
    inputs = [node for node in placeholders if not is_tangent(node)]
    checks = _checks(module)
    for node in inputs:
        _add_input(ops, node)
    for node in forward:
        if node in checks:
            _add_check(ops, node)
        else:
            _add_node(ops, node, frozen, "forward")
    _add_boundary(ops, tangents, outputs[:forward_output_count])
    boundary = len(ops.ops) - 1
    for node in backward:
        _add_node(ops, node, frozen, "backward")
    held = _held_to_the_end(ops, outputs, forward_output_count, mutated, tangents)
    ops.pinned.update(held, (ops.owner.get(key) for key in frozen))
    graph = Graph(ops=tuple(_pin_writers(ops)), outputs=tuple(sorted(held)), name=name, device=ops.device.type)
    return JointGraph(
        graph=graph,
        module=module,
        nodes=tuple(ops.nodes),
        boundary=boundary,
        values=ops.values,
        inputs=tuple(tensor for node in inputs for tensor in _results(node)),
        forward_outputs=tuple(outputs[:forward_output_count]),
        backward_outputs=tuple(outputs[forward_output_count:]),
        random_devices=ops.random_devices,
        unchecked=frozenset().union(
            *(found for node, found in ops.reads.items() if node.meta.get("saved_tensor_with_no_vc_check"))
        ),
        loss_is_outside=any(tensor.numel() > 1 for node in tangents for tensor in _results(node)),
        own_regions=len({node.meta["ac_graph_id"] for node in module.graph.nodes if "ac_graph_id" in node.meta}),
        device=ops.device,
        eager_kernels=eager_kernels,
        tangents=len(tangents),
        mutated_inputs=frozenset(place for place, node in enumerate(inputs) if node in changing),
        mutated_bytes=distinct_bytes((tensor for node in changing for tensor in _results(node)), ops.device),
        has_effects=any(_has_effect(node.target) for node in [*forward, *backward]),
    )


def is_tangent(node: fx.Node) -> bool:
    """Whether a placeholder receives the gradient of a forward output."""
    return node.op == "placeholder" and "tangents" in str(node.target)


def _outputs(module: fx.GraphModule, forward_output_count: int) -> tuple[list[Any], set[int]]:
    """The joint graph's results, and the positions of those that only replace an input's contents."""
    node = next(iter(module.graph.find_nodes(op="output")))
    outputs = pytree.arg_tree_leaves(*node.args)
    described = pytree.tree_leaves(node.meta.get("desc", []), is_leaf=lambda leaf: not isinstance(leaf, (list, tuple)))
    mutated = {
        position
        for position, description in enumerate(described[:forward_output_count])
        if isinstance(description, InputMutationAOTOutput)
    }
    return outputs, mutated


def _results(node: fx.Node) -> list[torch.Tensor]:
    return tensors_in(node.meta.get("val"))


def _mutated_inputs(placeholders: list[fx.Node], mutated: set[int]) -> list[fx.Node]:
    """The inputs whose contents the step replaces."""
    if not placeholders or not mutated:
        return []
    output = next(iter(placeholders[0].graph.find_nodes(op="output")))
    changed = {output.meta["desc"][position].mutated_input for position in mutated}
    return [node for node in placeholders if node.meta.get("desc") in changed]


def _mutated_keys(changing: list[fx.Node], nodes: list[fx.Node]) -> frozenset[int]:
    """Storages whose contents change while the step runs: what reads them can't be run again later."""
    keys = {storage_key(tensor) for node in changing for tensor in _results(node)}
    for node in nodes:
        if is_mutable(node.target):
            written = pytree.arg_tree_leaves(*written_arguments(node.target, node.args, node.kwargs))
            changed = [argument for argument in written if isinstance(argument, fx.Node)]
            keys.update(storage_key(tensor) for argument in changed for tensor in _results(argument))
    return frozenset(keys)


def _has_effect(target: object) -> bool:
    """Whether an op does more than return results: it changes an argument, or talks to other ranks."""
    return is_mutable(target) or is_collective(target)


def _add_input(ops: _Ops, node: fx.Node) -> None:
    keys = {storage_key(tensor) for tensor in _results(node)}
    for key in keys:
        ops.owner[key] = None
    ops.reads[node] = frozenset()
    ops.inputs[node] = frozenset(keys)


def _checks(module: fx.GraphModule) -> set[fx.Node]:
    """The nodes that read a number out of a tensor only to assert something about it, and the assertions."""
    found: set[fx.Node] = set()
    for node in reversed(module.graph.nodes):
        is_number = isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool))
        if node.target is aten._assert_scalar.default or (
            is_number and node.users and all(user in found for user in node.users)
        ):
            found.add(node)
    return found


def _add_check(ops: _Ops, node: fx.Node) -> None:
    reads = frozenset().union(*(ops.reads[source] for source in node.all_input_nodes))
    ops.add(
        Op(name=op_name(node), time_ns=0, reads=tuple(sorted(reads)), writes=(), recomputable=False, phase="forward"),
        node,
    )
    ops.reads[node] = ops.inputs[node] = frozenset()


def _add_node(ops: _Ops, node: fx.Node, frozen: frozenset[int], phase: Phase) -> None:
    if node.op == "get_attr":
        _add_input(ops, node)
        return
    _refuse_odd_results(node)
    if node.target is operator.getitem:
        _add_part(ops, node)
        return
    results = _results(node)
    known = [storage_key(tensor) in ops.owner for tensor in results]
    if results and all(known) and not is_mutable(node.target):
        _add_view(ops, node)
    elif batch_norm.is_batch_norm(node.target, node.args):
        _add_batch_norm(ops, node, frozen, phase)
    else:
        _add_op(ops, node, frozen, phase, pure=not any(known))


def _refuse_odd_results(node: fx.Node) -> None:
    if node.target is aten._local_scalar_dense.default:
        raise break_at(node, "it reads a number out of a tensor")
    for leaf in pytree.tree_leaves(node.meta.get("val")):
        if isinstance(leaf, torch.Tensor) and leaf.layout is not torch.strided:
            raise CaptureError(
                f"{node.name} gives a sparse tensor, which owns no memory of its own that could be planned.",
                hint='Make embeddings with sparse=False, or compile with mode="eager".',
            )
        if free_unbacked_symbols(leaf):
            raise break_at(node, "what it gives has a shape that depends on values")
        is_symbolic = isinstance(leaf, torch.Tensor) and not all(isinstance(size, int) for size in leaf.shape)
        if is_symbolic or isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise CaptureError(
                f"{node.name} has a symbolic shape.",
                hint="Compile with dynamic=False: each shape has its own plan.",
            )


def _add_view(ops: _Ops, node: fx.Node) -> None:
    ops.reads[node] = frozenset().union(*(ops.reads[source] for source in node.all_input_nodes))
    ops.inputs[node] = frozenset().union(*(ops.inputs[source] for source in node.all_input_nodes))


def _add_part(ops: _Ops, node: fx.Node) -> None:
    """A `getitem`: names one result of an op, or one part of a view."""
    _name_results(ops, node)
    source = node.all_input_nodes[0]
    ops.inputs[node] = ops.inputs[source]


def _name_results(ops: _Ops, node: fx.Node) -> None:
    owners = {ops.owner[storage_key(tensor)] for tensor in _results(node)}
    ops.reads[node] = frozenset(owner for owner in owners if owner is not None)
    if isinstance(node.meta.get("val"), torch.Tensor) and len(ops.reads[node]) == 1:
        (ops.values[node],) = ops.reads[node]


def _add_op(ops: _Ops, node: fx.Node, frozen: frozenset[int], phase: Phase, *, pure: bool) -> None:
    reads = frozenset().union(*(ops.reads[source] for source in node.all_input_nodes))
    inputs = frozenset().union(*(ops.inputs[source] for source in node.all_input_nodes))
    device = _random_device(node)
    state_bytes = random_state.state_bytes(ops.device) if device is not None and ops.replays_random else 0
    writes = ops.new_values(_results(node), op_name(node))
    recomputable = (
        pure
        and bool(writes)
        and _is_pure(node.target)
        and not inputs & frozen
        and not {ops.owner.get(key) for key in frozen} & reads
        and (device is None or ops.replays_random)
    )
    index = ops.add(
        Op(
            name=op_name(node),
            time_ns=0,
            reads=tuple(sorted(reads)),
            writes=writes,
            recomputable=recomputable,
            recompute_state_bytes=state_bytes,
            phase=phase,
            signature=_signature(node),
        ),
        node,
    )
    if device is not None:
        ops.random_devices[index] = device
    if not pure:  # some of its results lie in storages that were there before
        ops.inputs[node] = inputs
        ops.pinned |= reads
    else:
        ops.inputs[node] = frozenset()
    _name_results(ops, node)


def _add_batch_norm(ops: _Ops, node: fx.Node, frozen: frozenset[int], phase: Phase) -> None:
    results = _results(node)
    reads = frozenset().union(*(ops.reads[source] for source in node.all_input_nodes))
    batch = frozenset().union(
        *(ops.inputs[source] for source in pytree.arg_tree_leaves(node.args[:3]) if isinstance(source, fx.Node))
    )
    statistics = ops.new_values(results[batch_norm.RECOMPUTED_RESULTS :], op_name(node) + _STATISTICS)
    ops.add(
        Op(
            name=op_name(node) + _STATISTICS,
            time_ns=0,
            reads=tuple(sorted(reads)),
            writes=statistics,
            recomputable=False,
            phase=phase,
        ),
        None,
    )
    writes = ops.new_values(results, op_name(node))
    op = Op(
        name=op_name(node),
        time_ns=0,
        reads=tuple(sorted(reads)),
        writes=writes,
        recomputable=not batch & frozen,
        phase=phase,
        signature=_signature(node),
    )
    ops.add(op, node)
    ops.inputs[node] = frozenset()
    _name_results(ops, node)


def _is_pure(target: object) -> bool:
    if not isinstance(target, torch._ops.OpOverload) or _has_effect(target):
        return False
    return torch.Tag.nondeterministic_bitwise not in target.tags


def _random_device(node: fx.Node) -> torch.device | None:
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    if not random_state.is_random(node.target, named_arguments(node.target, node.args, node.kwargs)):
        return None
    return main_device(_results(node))


def _signature(node: fx.Node) -> str:
    """Empty for what can't be measured alone (a higher-order op, a collective): it then counts as free."""
    if not isinstance(node.target, torch._ops.OpOverload) or is_collective(node.target):
        return ""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: source.meta.get("val"))
    return signature_of(node.target, args, kwargs)


def _add_boundary(ops: _Ops, tangents: list[fx.Node], forward_outputs: list[Any]) -> None:
    reads = frozenset().union(*(ops.reads[output] for output in forward_outputs if isinstance(output, fx.Node)))
    writes = ops.new_values((tensor for node in tangents for tensor in _results(node)), "tangent")
    ops.add(Op(name=BOUNDARY, time_ns=0, reads=tuple(sorted(reads)), writes=writes, recomputable=False), None)
    for node in tangents:
        ops.inputs[node] = frozenset()
        _name_results(ops, node)


def _held_to_the_end(
    ops: _Ops, outputs: list[Any], forward_output_count: int, mutated: set[int], tangents: list[fx.Node]
) -> frozenset[int]:
    """Gradients, and the forward's results, which the user's loop holds. New buffers are copied at the boundary."""
    held: set[int] = set()
    for position, output in enumerate(outputs):
        if isinstance(output, fx.Node) and not (position < forward_output_count and position in mutated):
            held |= ops.reads[output]
    for node in tangents:
        if all(tensor.numel() <= 1 for tensor in _results(node)):
            held |= ops.reads[node]  # `loss.backward()` itself holds the gradient that it starts from
    return frozenset(held)


def _pin_writers(ops: _Ops) -> Iterable[Op]:
    """An op that writes a pinned value runs once: an output's recompute would briefly hold it twice, say."""
    first = 0
    for op in ops.ops:
        written = range(first, first + len(op.writes))
        first += len(op.writes)
        pinned = op.recomputable and any(value in ops.pinned for value in written)
        yield replace(op, recomputable=False) if pinned else op
