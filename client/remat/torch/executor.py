"""Runs an fx graph exactly as written, and frees each tensor right after its last use.

The graph becomes one plain Python function. It is *boxed*: it takes its arguments as one list and empties
it, so that saved tensors die in mid-backward (`functorch.compile.make_boxed_func` keeps them all alive). Ops are called
the quickest way that does the same.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from torch import fx

from remat.torch.bindings import Call, quickest_targets

BoxedFunction = Callable[[list[Any]], tuple[Any, ...]]


def boxed_function(module: fx.GraphModule, *, label: str = "graph") -> BoxedFunction:
    """A function that runs `module` op by op; it takes a list of arguments, which it empties."""
    source, names = write_source(module)
    exec(compile(source, f"<remat {label}>", "exec"), names)
    function: Any = names["run"]
    function._boxed_call = True
    return function  # type: ignore[no-any-return]


def write_source(module: fx.GraphModule) -> tuple[str, dict[str, Any]]:
    """The function's text, and the global names that it needs."""
    writer = _Writer(module)
    return writer.text(), writer.names


class _Writer:
    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.names: dict[str, Any] = {}
        self.targets: dict[Any, str] = {}
        self.locals: dict[fx.Node, str] = {}
        self.dying = _last_uses(module.graph)
        self.quickest = quickest_targets(_calls_on_stand_ins(module.graph))

    def text(self) -> str:
        lines = ["def run(args):"]
        nodes = list(self.module.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        for node in nodes:
            self.locals[node] = f"v{len(self.locals)}"
        if placeholders:
            lines.append(f"    {', '.join(self.locals[node] for node in placeholders)}, = args")
        lines.append("    args.clear()")
        unused = [node for node in placeholders if not node.users]
        self._free(unused, lines)
        for node in nodes:
            if node.op == "get_attr":
                self.locals[node] = self._constant(_attribute(self.module, str(node.target)))
            elif node.op == "call_function":
                lines.append(f"    {self.locals[node]} = {self._call(node)}")
                self._free(self.dying[node], lines)
            elif node.op == "output":
                lines.append(f"    return ({''.join(self._argument(value) + ', ' for value in node.args[0])})")
        return "\n".join(lines) + "\n"

    def _free(self, nodes: list[fx.Node], lines: list[str]) -> None:
        dead = [self.locals[node] for node in nodes if node.op != "get_attr"]
        if dead:
            lines.append(f"    del {', '.join(dead)}")

    def _call(self, node: fx.Node) -> str:
        if node.target is operator.getitem:
            return f"{self._argument(node.args[0])}[{self._argument(node.args[1])}]"
        arguments = [self._argument(argument) for argument in node.args]
        arguments += [f"{name}={self._argument(argument)}" for name, argument in node.kwargs.items()]
        return f"{self._target(self.quickest.get(node, node.target))}({', '.join(arguments)})"

    def _target(self, target: Any) -> str:
        if target not in self.targets:
            self.targets[target] = f"f{len(self.targets)}"
            self.names[self.targets[target]] = target
        return self.targets[target]

    def _argument(self, argument: Any) -> str:
        if isinstance(argument, fx.Node):
            return self.locals[argument]
        if argument is None or type(argument) in (bool, int, str):
            return repr(argument)
        if type(argument) is float and math.isfinite(argument):
            return repr(argument)
        if isinstance(argument, tuple) and not hasattr(argument, "_fields"):
            return f"({''.join(self._argument(part) + ', ' for part in argument)})"
        if isinstance(argument, list):
            return f"[{', '.join(self._argument(part) for part in argument)}]"
        if isinstance(argument, dict):
            return "{" + ", ".join(f"{name!r}: {self._argument(part)}" for name, part in argument.items()) + "}"
        return self._constant(argument)

    def _constant(self, value: Any) -> str:
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name


def _calls_on_stand_ins(graph: fx.Graph) -> dict[fx.Node, Call]:
    """The calls of a graph, on the stand-ins that tracing left with its nodes; without those that lack one."""
    return {
        node: (node.target, *fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"]))
        for node in graph.nodes
        if node.op == "call_function" and all("val" in source.meta for source in node.all_input_nodes)
    }


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """For each node, what dies right after it: arguments read for the last time, and its own unread result."""
    dying: dict[fx.Node, list[fx.Node]] = defaultdict(list)
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        for source in node.all_input_nodes:
            last[source] = node
        if not node.users and node.op == "call_function":
            last[node] = node
    for source, node in last.items():
        dying[node].append(source)
    return dying


def _attribute(module: fx.GraphModule, path: str) -> Any:
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name)
    return found
