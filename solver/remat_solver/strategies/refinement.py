"""Where a model was too lenient: the slots that its schedule shows to be missing."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from remat_solver.formulation.memory_cuts import Slot
from remat_solver.graph import Graph

_MISMATCHES_PER_ROUND = 4


def places(schedule: Sequence[int]) -> list[Slot]:
    """The slot (stage, op) of each step: the stage is the op whose first run comes next, or is this one."""
    found: list[Slot] = []
    stage = 0
    for op in schedule:
        found.append((stage, op))
        if op == stage:
            stage += 1
    return found


def missing_slots(
    graph: Graph,
    schedule: Sequence[int],
    timeline_bytes: Sequence[int],
    budget_bytes: int,
    present: Collection[Slot],
    *,
    limit: int,
) -> list[Slot]:
    """Slots to add to `present`, for at most `limit` stages where the schedule exceeds the budget, worst first.

    Steps over the budget are grouped by neighbouring stages; each group gives its worst step's slot,
    and the first computation's in that stage. If those are present, others of the stage and of the stages
    before follow: in the end every slot is there, and nothing is left to exceed.
    """
    groups: list[list[tuple[int, Slot]]] = []
    for slot, bytes_in_use in zip(places(schedule), timeline_bytes, strict=True):
        if bytes_in_use <= budget_bytes:
            continue
        excess = (bytes_in_use - budget_bytes, slot)
        if groups and slot[0] - groups[-1][-1][1][0] <= 1:
            groups[-1].append(excess)
        else:
            groups.append([excess])
    groups.sort(key=lambda group: (-max(group)[0], group[0][1]))
    found: list[Slot] = []
    for group in groups:
        new = _slots_of_group(group, present, len(graph))
        found.extend(slot for slot in new if slot not in found)
        limit -= bool(new)
        if limit <= 0:
            break
    return found


def _slots_of_group(group: list[tuple[int, Slot]], present: Collection[Slot], op_count: int) -> list[Slot]:
    """The first of these that are new: the worst step's slot and its stage's, other steps', whole stages.

    A recompute may stand where the model did not mean it: its latest place in index order is then in
    the stage before. So the search goes backwards, one stage at a time.
    """
    by_excess = [slot for _, slot in sorted(group, key=lambda item: (-item[0], item[1])) if slot[0] < op_count]
    for stage, op in by_excess:
        new = [slot for slot in dict.fromkeys(((stage, stage), (stage, op))) if slot not in present]
        if new:
            return new
    for stage, op in by_excess:
        before = (stage - 1, op)
        if 0 <= op < stage and before not in present:
            return [before]
    for stage in range(by_excess[0][0] if by_excess else op_count - 1, -1, -1):
        new = [(stage, op) for op in range(stage + 1) if (stage, op) not in present]
        if new:
            return new
    return []


def mismatched_slots(schedule: Sequence[int], present: Collection[Slot]) -> list[Slot]:
    """Slots around recomputes of a schedule that fits but costs more than the model's objective."""
    new: list[Slot] = []
    for stage, op in places(schedule):
        if op != stage:
            new.extend(slot for slot in ((stage, stage), (stage, op)) if slot not in present and slot not in new)
        if len(new) >= _MISMATCHES_PER_ROUND:
            break
    return new
