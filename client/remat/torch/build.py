"""From a schedule to the forward and the backward graph that run it, op by op.

Every run of an op becomes a fresh node that reads the latest copy of what it needs. A copy that the
forward made and the backward reads is saved for it. Views are not saved: whoever reads one makes it anew from
the storage's owner, once per graph and copy. The graphs follow AOTAutograd's convention:
forward (inputs) -> (outputs, saved), backward (saved, tangents) -> (gradients).
"""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import SavedForBackwardsAOTOutput, SavedForBackwardsNoVcCheckAOTOutput
from torch._subclasses import FakeTensor

from remat.torch import batch_norm, fake_storages, random_state
from remat.torch.contract import JointGraph, is_tangent

_IDENTITIES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)
_NO_VERSION_CHECK = "saved_tensor_with_no_vc_check"

Key = fx.Node | int
"""What a copy is a copy of: a joint node's tensor, or the generator state saved for the op with that index."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Built:
    """The two modules that run a schedule, and how many op runs they hold (views and bookkeeping not counted)."""

    forward: fx.GraphModule
    backward: fx.GraphModule
    runs: int


def build(joint: JointGraph, schedule: Sequence[int]) -> Built:
    """The forward and backward modules that run `schedule` (which the referee accepted for `joint.graph`)."""
    return _Builder(joint, schedule).build()


class _Builder:
    """Writes both graphs in the order of the schedule: the forward up to the boundary op, then the backward."""

    def __init__(self, joint: JointGraph, schedule: Sequence[int]) -> None:
        self.joint = joint
        self.schedule = schedule
        self.run_counts = Counter(schedule)
        self.parts = _parts_by_source(joint.module)
        self.bases = _with_parts(joint, self.parts)
        self.graph = fx.Graph()
        self.copies: dict[Key, fx.Node] = {}
        """The latest copy of each key in the graph being written."""
        self.views: dict[fx.Node, tuple[Any, fx.Node]] = {}
        """Each view made in that graph: what it was made from, and the node."""
        self.left_behind: dict[Key, fx.Node] = {}
        """Once the backward is being written: the forward's latest copies."""
        self.saved: list[tuple[Key, fx.Node, fx.Node]] = []
        """What crosses: key, the forward's node, the backward's placeholder."""
        self.first_tangent: fx.Node | None = None
        self.fake_states: dict[torch.device, torch.Tensor] = {}
        self.runs = 0

    def build(self) -> Built:
        self._add_placeholders(tangents=False)
        has_run: set[int] = set()
        for index in self.schedule:
            if index == self.joint.boundary:
                forward, outputs = self.graph, self._resolve_outputs(self.joint.forward_outputs)
                self._start_backward()
            elif (node := self.joint.nodes[index]) is not None:
                self._run(index, node, is_recompute=index in has_run)
            has_run.add(index)
        gradients = self._resolve_outputs(self.joint.backward_outputs)
        self._finish(forward, outputs, gradients)
        root = self.joint.module
        return Built(forward=fx.GraphModule(root, forward), backward=fx.GraphModule(root, self.graph), runs=self.runs)

    def _add_placeholders(self, *, tangents: bool) -> None:
        for node in self.joint.module.graph.find_nodes(op="placeholder"):
            if is_tangent(node) == tangents:
                made = self.graph.placeholder(node.name)
                made.meta.update(node.meta)
                self.copies[node] = made
                if tangents and self.first_tangent is None:
                    self.first_tangent = made

    def _start_backward(self) -> None:
        self.left_behind, self.copies, self.views, self.graph = self.copies, {}, {}, fx.Graph()
        self._add_placeholders(tangents=True)

    def _run(self, index: int, node: fx.Node, *, is_recompute: bool) -> None:
        target: Any = self._target(node)
        args: tuple[Any, ...] = node.args
        without_statistics = is_recompute and batch_norm.is_batch_norm(target, args)
        if without_statistics:
            target, args = batch_norm.recompute_call(args)
        args, kwargs = self._resolve(args), self._resolve(node.kwargs)
        device = self.joint.random_devices.get(index)
        if device is not None and self.run_counts[index] > 1:
            if is_recompute:
                target, args = random_state.Replay(device, target), (self._fetch(index), *args)
            else:
                self._save_state(index, device, node)
        made = self._add(node, target, args, kwargs)
        self.runs += 1
        self._bind(node, made, batch_norm.RECOMPUTED_RESULTS if without_statistics else None)

    def _target(self, node: fx.Node) -> Any:
        """What runs in place of the node's target; a compiler knows only PyTorch's own ops."""
        return fake_storages.replacement(node) if self.joint.eager_kernels else node.target

    def _add(self, node: fx.Node, target: Any, args: Any, kwargs: Any) -> fx.Node:
        made = self.graph.create_node("call_function", target, args, kwargs, name=node.name)
        if "val" in node.meta:
            made.meta["val"] = node.meta["val"]
        return made

    def _bind(self, node: fx.Node, made: fx.Node, limit: int | None = None) -> None:
        """Makes `made` the latest copy of `node`, and takes its results apart (the first `limit`) right away."""
        self.copies[node] = made
        for part in self.parts.get(node, ()):
            position = part.args[1]
            assert isinstance(position, int)
            if limit is None or position < limit:
                self._bind(part, self._add(part, operator.getitem, (made, position), {}))

    def _save_state(self, index: int, device: torch.device, node: fx.Node) -> None:
        state = self.graph.create_node("call_function", random_state.SaveState(device), (), {})
        if device not in self.fake_states:
            self.fake_states[device] = _fake_state(node, device)
        state.meta["val"] = self.fake_states[device]
        self.copies[index] = state

    def _resolve(self, tree: Any) -> Any:
        return fx.map_arg(tree, self._fetch)

    def _resolve_outputs(self, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Outputs keep their detaches: autograd must not be handed one tensor object twice."""
        return tuple(
            self._fetch(output, keep_identities=True) if isinstance(output, fx.Node) else output for output in outputs
        )

    def _fetch(self, key: Key, *, keep_identities: bool = False) -> fx.Node:
        """The node of the present graph that holds the latest copy of `key`."""
        if key in self.copies:
            return self.copies[key]
        if isinstance(key, int) or key.op == "placeholder" or key in self.bases:
            return self._receive(key)
        if key.op == "get_attr":
            self.copies[key] = self.graph.get_attr(str(key.target))
            return self.copies[key]
        return self._view(key, keep_identities=keep_identities)

    def _view(self, key: fx.Node, *, keep_identities: bool) -> fx.Node:
        args, kwargs = self._resolve(key.args), self._resolve(key.kwargs)
        if key.target in _IDENTITIES and not keep_identities:
            return args[0]  # type: ignore[no-any-return]
        made_from, made = self.views.get(key, (None, None))
        if made is None or made_from != (args, kwargs):
            made = self._add(key, self._target(key), args, kwargs)
            self.views[key] = ((args, kwargs), made)
        return made

    def _receive(self, key: Key) -> fx.Node:
        """Saves the forward's latest copy of `key` for the backward."""
        kept = self.left_behind[key]
        assert self.first_tangent is not None
        with self.graph.inserting_before(self.first_tangent):
            received = self.graph.placeholder(kept.name)
        received.meta["val"] = kept.meta["val"]
        self.saved.append((key, kept, received))
        self.copies[key] = received
        return received

    def _finish(self, forward: fx.Graph, outputs: tuple[Any, ...], gradients: tuple[Any, ...]) -> None:
        unchecked = [item for item in self.saved if self._is_unchecked(item[0])]
        checked = [item for item in self.saved if not self._is_unchecked(item[0])]
        for _, kept, received in unchecked:  # AOTAutograd wants these after all others
            assert self.first_tangent is not None
            self.first_tangent.prepend(received)
            kept.meta[_NO_VERSION_CHECK] = True
        described = _descriptions(self.joint.module)
        saved = [SavedForBackwardsAOTOutput(position) for position in range(len(checked))]
        saved_unchecked = [
            SavedForBackwardsNoVcCheckAOTOutput(position) for position in range(len(checked), len(self.saved))
        ]
        result = forward.output((*outputs, *(kept for _, kept, _ in checked + unchecked)))
        result.meta["desc"] = [*described[: len(outputs)], *saved, *saved_unchecked]
        result = self.graph.output(gradients)
        result.meta["desc"] = described[len(outputs) :]

    def _is_unchecked(self, key: Key) -> bool:
        """Whether autograd must not check the version of what is saved for `key`: put on `ctx` by hand, and mutable.

        Only inputs and outputs can be changed by anyone; and what is not checked, PyTorch keeps to the end.
        """
        if not isinstance(key, fx.Node):
            return False
        if key.op == "placeholder":
            return bool(key.meta.get(_NO_VERSION_CHECK, False))
        value = self.joint.values.get(key)
        return value in self.joint.unchecked and self.joint.graph.is_output[value]


def _parts_by_source(module: fx.GraphModule) -> dict[fx.Node, list[fx.Node]]:
    parts = defaultdict(list)
    for node in module.graph.find_nodes(op="call_function", target=operator.getitem):
        parts[node.args[0]].append(node)
    return parts


def _with_parts(joint: JointGraph, parts: dict[fx.Node, list[fx.Node]]) -> set[fx.Node]:
    """Every node that an op run binds: the op's own and, below it, those that take its results apart."""
    found: set[fx.Node] = set()
    waiting = [node for node in joint.nodes if node is not None]
    while waiting:
        node = waiting.pop()
        found.add(node)
        waiting.extend(parts.get(node, ()))
    return found


def _descriptions(module: fx.GraphModule) -> list[Any]:
    node = next(iter(module.graph.find_nodes(op="output")))
    return list(node.meta.get("desc", [None] * len(node.args[0])))


def _fake_state(node: fx.Node, device: torch.device) -> torch.Tensor:
    """A stand-in for a saved generator state, for AOTAutograd's bookkeeping."""
    state = random_state.SaveState(device)()
    for tensor in torch.utils._pytree.tree_leaves(node.meta.get("val")):
        if isinstance(tensor, FakeTensor):
            return tensor.fake_mode.from_tensor(state)
    return state
