"""The op graph of one training step: what the planner plans.

An op reads values and writes values; a value is one storage. Values are numbered in the order in
which they are written: those of op 0 first, then those of op 1, and so on. Ops stand in a
topological order, so an op reads only values that an earlier op writes. Views and other aliases own
nothing and do not appear. Parameters, buffers, the batch and the optimizer's state are not values
but part of `fixed_bytes`, which is resident throughout.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from remat_solver.errors import InvalidGraph

Phase = Literal["forward", "backward", "none"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "none")

MAX_BYTES = 2**50
"""No size may exceed it (1 PiB): larger ones are mistakes, and their sums would overflow the engines."""
MAX_TIME_NS = 2**60
MAX_OPS = 1_000_000
GraphSchema = Literal["remat.graph/1"]
GRAPH_SCHEMA: GraphSchema = "remat.graph/1"


@dataclass(frozen=True, kw_only=True)
class Value:
    """One storage that an op writes. `size_bytes` is what the allocator holds for it."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 (pydantic reads it; the dataclass must not)

    size_bytes: int
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operation.

    `reads` are value numbers (unique); `writes` are the values that it produces, several of which
    may die separately. `workspace_bytes` is temporary memory while it runs. `recomputable=False`
    means that it runs exactly once. `recompute_state_bytes` (a random generator's state, say) is
    held from its first run to its last recompute. `signature` is opaque: whoever measured the op
    knows how to run it again from that.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    name: str
    time_ns: int
    reads: tuple[int, ...] = ()
    writes: tuple[Value, ...] = ()
    workspace_bytes: int = 0
    recomputable: bool = True
    recompute_state_bytes: int = 0
    phase: Phase = "none"
    signature: str = ""


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Ops in topological order, the values that must live to the end, and what is always resident.

    `outputs` are value numbers (gradients, the loss, new buffers): once computed they stay in memory
    to the end. `device` and `estimated` say where the costs come from; neither they nor any name
    enters `hash`, which identifies the planning problem.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    ops: tuple[Op, ...]
    outputs: tuple[int, ...] = ()
    fixed_bytes: int = 0
    name: str = ""
    device: str = ""
    estimated: bool = False
    schema: GraphSchema = GRAPH_SCHEMA

    def __post_init__(self) -> None:
        _check_graph(self)

    def __len__(self) -> int:
        return len(self.ops)

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """Every value, by number."""
        return tuple(value for op in self.ops for value in op.writes)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """`size_bytes` of every value, by number."""
        return tuple(value.size_bytes for value in self.values)

    @cached_property
    def first_value(self) -> tuple[int, ...]:
        """Length ops + 1: op i writes the values `range(first_value[i], first_value[i + 1])`."""
        starts = [0]
        for op in self.ops:
            starts.append(starts[-1] + len(op.writes))
        return tuple(starts)

    def written_by(self, op: int) -> range:
        """The numbers of the values that op `op` writes."""
        return range(self.first_value[op], self.first_value[op + 1])

    @cached_property
    def producer(self) -> tuple[int, ...]:
        """The op that writes each value, by number."""
        return tuple(index for index, op in enumerate(self.ops) for _ in op.writes)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """The ops that read each value, ascending, by number."""
        readers: list[list[int]] = [[] for _ in self.values]
        for index, op in enumerate(self.ops):
            for value in op.reads:
                readers[value].append(index)
        return tuple(tuple(ops) for ops in readers)

    @cached_property
    def is_output(self) -> tuple[bool, ...]:
        """Whether each value is an output, by number."""
        outputs = set(self.outputs)
        return tuple(value in outputs for value in range(len(self.values)))

    @cached_property
    def keeps_its_place(self) -> tuple[bool, ...]:
        """Whether each op must stay in order with the others of its kind, whatever the order of the rest.

        So must ops that may not be recomputed (collectives, mutation of inputs) and ops that draw random numbers.
        """
        return tuple(not op.recomputable or op.recompute_state_bytes > 0 for op in self.ops)

    @cached_property
    def total_time_ns(self) -> int:
        """The time of running every op once: the store-all time."""
        return sum(op.time_ns for op in self.ops)

    @cached_property
    def hash(self) -> str:
        """sha256 (hex) of the planning problem: all integers that matter, no names, no signatures.

        Two graphs with the same hash have the same plans. The canonical form is pinned by golden
        vectors in the tests, because clients compute it themselves.
        """
        return hashlib.sha256(b"remat-graph/1\0" + self._canonical_bytes()).hexdigest()

    @cached_property
    def structure_hash(self) -> str:
        """sha256 (hex) of what a schedule has to respect: everything in `hash` but times, workspaces and `fixed_bytes`.

        A schedule that runs on a graph runs on every graph with the same structure, whatever was measured.
        """
        bare = tuple(replace(op, time_ns=0, workspace_bytes=0) for op in self.ops)
        return replace(self, ops=bare, fixed_bytes=0).hash

    def _canonical_bytes(self) -> bytes:
        problem: list[Any] = [self.fixed_bytes, sorted(self.outputs)]
        problem.extend(
            [
                op.time_ns,
                op.workspace_bytes,
                int(op.recomputable),
                op.recompute_state_bytes,
                PHASES.index(op.phase),
                sorted(op.reads),
                [value.size_bytes for value in op.writes],
            ]
            for op in self.ops
        )
        return json.dumps(problem, separators=(",", ":")).encode()


def _check_graph(graph: Graph) -> None:
    if graph.schema != GRAPH_SCHEMA:
        raise InvalidGraph(
            f"the graph's schema is {graph.schema!r}, and this version reads {GRAPH_SCHEMA!r}.",
            hint="Write the graph with a matching version of remat.",
        )
    if not graph.ops:
        raise InvalidGraph("the graph has no ops.", hint="Capture a training step that computes something.")
    if len(graph.ops) > MAX_OPS:
        raise InvalidGraph(f"the graph has {len(graph.ops)} ops; at most {MAX_OPS} are accepted.")
    _check_amount(graph.fixed_bytes, MAX_BYTES, "fixed_bytes", None)
    written = 0
    total = sum(len(op.writes) for op in graph.ops)
    for index, op in enumerate(graph.ops):
        _check_op(index, op, written, total)
        written += len(op.writes)
    _check_outputs(graph.outputs, total)


def _check_op(index: int, op: Op, written: int, total: int) -> None:
    label = f"op {index} ({op.name!r})"
    if op.phase not in PHASES:
        raise InvalidGraph(f"{label}: phase {op.phase!r} is none of {', '.join(PHASES)}.", op=op.name)
    _check_amount(op.time_ns, MAX_TIME_NS, "time_ns", op, label)
    _check_amount(op.workspace_bytes, MAX_BYTES, "workspace_bytes", op, label)
    _check_amount(op.recompute_state_bytes, MAX_BYTES, "recompute_state_bytes", op, label)
    for value in op.writes:
        _check_amount(value.size_bytes, MAX_BYTES, "size_bytes", op, label)
    if len(set(op.reads)) != len(op.reads):
        raise InvalidGraph(f"{label} lists a value twice in `reads`.", hint="List each value once.", op=op.name)
    for read in op.reads:
        if not _is_number_below(read, total):
            raise InvalidGraph(
                f"{label} reads value {read!r}, which no op writes.",
                hint=f"The graph's values are numbered 0 to {total - 1} in the order of `writes`.",
                op=op.name,
            )
        if read >= written:
            raise InvalidGraph(
                f"{label} reads value {read}, which it or a later op writes: "
                "the ops are not in a topological order, or form a cycle.",
                hint="Sort the ops so that each reads only what earlier ones write.",
                op=op.name,
            )


def _check_amount(amount: object, limit: int, field: str, op: Op | None, label: str = "the graph") -> None:
    if not isinstance(amount, int) or isinstance(amount, bool):
        raise InvalidGraph(
            f"{label}: {field} is {amount!r}, not an integer.",
            hint="Bytes and nanoseconds are whole numbers.",
            op=op.name if op else None,
        )
    if not 0 <= amount <= limit:
        raise InvalidGraph(
            f"{label}: {field} is {amount}, outside 0 to {limit}.",
            hint="Check the units: sizes are bytes, times nanoseconds.",
            op=op.name if op else None,
        )


def _check_outputs(outputs: tuple[int, ...], total: int) -> None:
    if len(set(outputs)) != len(outputs):
        raise InvalidGraph("`outputs` lists a value twice.", hint="List each value once.")
    for value in outputs:
        if not _is_number_below(value, total):
            raise InvalidGraph(
                f"`outputs` lists value {value!r}, which no op writes.",
                hint=f"The graph's values are numbered 0 to {total - 1}.",
            )


def _is_number_below(number: object, limit: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < limit
