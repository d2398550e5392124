"""Small graphs with answers worked out by hand."""

from remat_solver.graph import Graph, Op, Value


def op(name: str, *reads: int, sizes: tuple[int, ...] = (1,), time_ns: int = 1, **fields: object) -> Op:
    """An op that reads the given value numbers and writes values of the given sizes."""
    writes = tuple(Value(size_bytes=size) for size in sizes)
    return Op(name=name, time_ns=time_ns, reads=reads, writes=writes, **fields)  # type: ignore[arg-type]


def chain(length: int, size: int = 10) -> Graph:
    """A forward chain and its backward: backward op i reads forward value i and the gradient before it."""
    ops = [op(f"f{i}", *([i - 1] if i else []), sizes=(size,), phase="forward") for i in range(length)]
    for step, i in enumerate(reversed(range(length))):
        gradient = [length + step - 1] if step else []
        ops.append(op(f"b{i}", i, *gradient, sizes=(size,), phase="backward"))
    return Graph(ops=tuple(ops), outputs=(2 * length - 1,), fixed_bytes=5)


def wide() -> Graph:
    """Two big values that need not be in memory together, in an order that has them together."""
    big = (op("a", sizes=(9,)), op("b", sizes=(9,)), op("c", 0, sizes=(1,)), op("d", 1, sizes=(1,)), op("e", 2, 3))
    return Graph(ops=big, outputs=(4,))
