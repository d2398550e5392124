"""From a joint graph to a plan for it: measure, ask the planner, and keep a record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from torch import fx

from remat.torch.build import build
from remat.torch.contract import JointGraph
from remat.torch.measure import describe_device
from remat.torch.ranks import fellow_ranks
from remat.torch.record import PlannedGraph
from remat_solver.errors import ApplyError, PlanMismatch
from remat_solver.graph import Graph
from remat_solver.plan import Plan
from remat_solver.simulate import simulate

_log = logging.getLogger("remat")

Planner = Callable[[Graph], Plan]
Measure = Callable[[Graph], Graph]


@dataclass(kw_only=True)
class Planning:
    """Turns joint graphs into forward and backward modules; remembers each in `planned`.

    `planner` makes a plan for a measured graph. Equal graphs, recaptured, share one plan. `question` names what the
    planner asks, so that the ranks of a distributed job can ask it once; "" keeps every rank to itself.
    """

    planner: Planner
    measure: Measure
    question: str = ""
    planned: list[PlannedGraph] = field(default_factory=list)
    known: dict[str, Plan] = field(default_factory=dict)

    def apply(self, joint: JointGraph, *, trace_s: float) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Measures, plans and builds. Raises whatever the planner raises, and then leaves no record."""
        if joint.own_regions and not self.planned:
            _log.warning(
                "The model brings %d regions of torch.utils.checkpoint: the plan decides in their place.",
                joint.own_regions,
            )
        start = perf_counter()
        graph, plan, measure_s = self._plan(joint)
        solved = perf_counter()
        if plan.is_reordered:
            raise ApplyError(
                "the plan runs ops in another order than the model, which the exact runtime does not do.",
                hint="Solve without reorder: a graph doesn't say which ops read what another op changes in place.",
            )
        replay = simulate(graph, plan.schedule)
        built = build(joint, plan.schedule)
        runs_planned = sum(joint.nodes[index] is not None for index in plan.schedule)
        if built.runs != runs_planned:
            raise ApplyError(f"the schedule asks for {runs_planned} op runs, and {built.runs} were built.")
        self.planned.append(
            PlannedGraph(
                graph=graph,
                plan=plan,
                device=joint.device,
                runs_planned=runs_planned,
                runs_built=built.runs,
                predicted_peak_bytes=replay.peak_bytes,
                loss_is_outside=joint.loss_is_outside,
                own_regions=joint.own_regions,
                trace_s=trace_s,
                measure_s=measure_s,
                solve_s=solved - start - measure_s,
                build_s=perf_counter() - solved,
            )
        )
        return built.forward, built.backward

    def _plan(self, joint: JointGraph) -> tuple[Graph, Plan, float]:
        """The measured graph, its plan, and the seconds that this process spent on measuring."""
        measure_s = 0.0

        def ask() -> tuple[Graph, Plan]:
            nonlocal measure_s
            start = perf_counter()
            graph = self.measure(joint.graph)
            measure_s = perf_counter() - start
            return graph, self.known.get(graph.hash) or self.planner(graph)

        ranks = fellow_ranks() if self.question else None
        if ranks is None:
            graph, plan = ask()
        else:
            graph, plan = ranks.ask_once(joint.graph, f"{self.question} on {describe_device(joint.device)}", ask)
        self.known[graph.hash] = plan
        return graph, plan, measure_s


def planner_for(plans: Sequence[Plan]) -> Planner:
    """Hands out whichever of the given plans was made for the graph; raises `PlanMismatch` if none was."""

    def choose(graph: Graph) -> Plan:
        for plan in plans:
            if plan.graph_hash == graph.hash or plan.structure_hash == graph.structure_hash:
                return plan
        raise PlanMismatch(
            f"no plan given is for this graph of {len(graph)} ops (structure {graph.structure_hash[:12]}).",
            hint="Plan this model at this input shape: capture it, measure it, and solve again.",
            plan_graph_hash=plans[0].graph_hash if plans else None,
            graph_hash=graph.hash,
        )

    return choose
