"""The replay written a second time, from the definition: liveness by looking ahead at every step."""

from collections.abc import Sequence

from remat_solver.graph import Graph


def naive_timeline(graph: Graph, schedule: Sequence[int]) -> list[int]:
    """Memory in use at each step of a valid schedule, quadratic and obvious."""
    return [
        graph.fixed_bytes
        + graph.ops[op].workspace_bytes
        + sum(size for value, size in enumerate(graph.sizes) if _is_held(graph, schedule, step, value))
        + sum(one.recompute_state_bytes for index, one in enumerate(graph.ops) if _holds_state(schedule, step, index))
        for step, op in enumerate(schedule)
    ]


def _is_held(graph: Graph, schedule: Sequence[int], step: int, value: int) -> bool:
    producer = graph.producer[value]
    if schedule[step] == producer:
        return True
    if producer not in schedule[:step]:
        return False
    if graph.is_output[value]:
        return True
    for later in schedule[step:]:
        if later == producer:
            return False
        if value in graph.ops[later].reads:
            return True
    return False


def _holds_state(schedule: Sequence[int], step: int, op: int) -> bool:
    runs = [position for position, other in enumerate(schedule) if other == op]
    return len(runs) > 1 and runs[0] <= step <= runs[-1]
