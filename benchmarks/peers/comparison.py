"""One network, every contender, at every target: the rows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console

from benchmarks.peers import contenders
from benchmarks.peers.contenders import Contender
from benchmarks.peers.measuring import (
    Ratio,
    Times,
    Training,
    are_equal,
    largest_difference,
    peak_bytes,
    ratio,
    time_interleaved,
    train,
)
from benchmarks.peers.networks import NETWORKS, Network
from remat.torch import Step, capture
from remat.torch.heap import keep_freed_memory
from remat.torch.measure import measure
from remat_solver.errors import InfeasibleBudget, NoPlanInTime
from remat_solver.graph import Graph
from remat_solver.solve import solve

Announce = Callable[[str], None]

SLACK = 2.0
"""How many times as far from a more precise run as the plain run's gradients may be, and still count as right."""
ROUNDING = 1e-3
"""So far they may be in any case. What is wrong is wrong by half (noise that is drawn anew)."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contender on one network.

    Peaks are bytes of forward and backward above weights, optimizer state and batch. Ratios are to the plain run of
    the same round; None where the contender was not timed, because another setting of its family has both a lower
    peak and less to recompute. `to_store_all` is CPU time over that of our own plan without recomputation, None for
    contenders that predict no overhead. Gradients are right if identical, or under Inductor about as near to a run in
    float64 as the plain run's; `largest_difference` is that of any gradient, from the plain run's or from float64's, by
    its norm.
    """

    network: str
    family: str
    setting: str
    peak_bytes: int
    peak_share: float
    budget_bytes: int | None
    predicted_peak_bytes: int | None
    predicted_overhead: float | None
    loss_and_gradients_identical: bool
    gradients_right: bool
    buffers_identical: bool
    largest_difference: float
    wall: Ratio | None
    cpu: Ratio | None
    to_store_all: Ratio | None

    @property
    def name(self) -> str:
        """For people and as a key."""
        return f"{self.family} {self.setting}".strip()

    @property
    def overhead_error(self) -> float | None:
        """Measured less predicted compute overhead, as a share of the store-all plan's time."""
        if self.to_store_all is None or self.predicted_overhead is None:
            return None
        return self.to_store_all.median - 1 - self.predicted_overhead


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All rows of one network, and what we could not plan, with the reason (by setting).

    `cores` is how many the process might use, `load` the machine's load average over the last 15 minutes of timing.
    """

    network: str
    families: tuple[str, ...]
    ops: int
    plain_peak_bytes: int
    targets: tuple[float, ...]
    rounds: int
    started: str
    cores: int
    load: float
    rows: tuple[Row, ...]
    unplanned: dict[str, str]


@dataclass(kw_only=True)
class Bench:
    """The contenders of one network as they come in, with what was seen of each."""

    network: str
    reference: Training
    plain_peak: int
    entered: list[Contender]
    trained: dict[str, Training]
    peaks: dict[str, int]
    precise: Training | None = None
    """The plain run in float64, where gradients needn't be identical: see `has_right_gradients`."""

    def enter(self, contender: Contender) -> None:
        """Trains it and takes its peak (which also compiles it)."""
        self.trained[contender.name] = train(contender)
        self.peaks[contender.name] = peak_bytes(contender)
        self.entered.append(contender)

    def has_right_gradients(self, contender: Contender) -> bool:
        """Whether losses and gradients equal the plain ones, or are about as near to more precise ones as those are."""
        if self.precise is None:
            return _is_identical(self.trained[contender.name], self.reference)
        allowed = max(SLACK * self._distance(self.reference), ROUNDING)
        return self._distance(self.trained[contender.name]) <= allowed

    def difference(self, contender: Contender) -> float:
        """How far its gradients are from the plain ones, or from the more precise run's."""
        return self._distance(self.trained[contender.name])

    def _distance(self, training: Training) -> float:
        return largest_difference(training.gradients, (self.precise or self.reference).gradients)


def compare_named(
    name: str, families: tuple[str, ...], targets: tuple[float, ...], rounds: int, time_limit_s: float
) -> Comparison:
    """`compare` for a process of its own; says on stderr what it is doing."""
    return compare(name, NETWORKS[name], families, targets, rounds, time_limit_s, announcer(name))


def announcer(name: str) -> Announce:
    """Says on stderr what the comparison of this network is doing."""
    console = Console(stderr=True, highlight=False)
    return lambda text: console.print(f"{name}: {text}")


def compare(
    name: str,
    network: Network,
    families: tuple[str, ...],
    targets: tuple[float, ...],
    rounds: int,
    time_limit_s: float,
    announce: Announce,
) -> Comparison:
    """Everything about one network. Targets are shares of the plain run's measured peak.

    We are planned for every target, and for the peak of every contender with right gradients, so that each is met on
    its own ground. Times are taken on one thread; freed memory is kept in the process, for all alike.
    """
    torch.set_num_threads(1)
    keep_freed_memory()
    started = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    step = network.make_step()
    announce("measuring ops")
    graph = measure(capture(step), cache=None)
    bench = _with_peers(name, step, network, families, announce)
    unplanned: dict[str, str] = {}
    if contenders.EXACT in families:
        unplanned |= _enter_plans(bench, step, graph, targets, time_limit_s, announce)
    if contenders.EAGER in families:
        unplanned |= _enter_eager(bench, step, targets, announce)
    timed = [contender for contender in bench.entered if _is_worth_timing(bench, contender)]
    announce(f"timing {len(timed)} contenders")
    times = time_interleaved(timed, rounds)
    return Comparison(
        network=name,
        families=families,
        ops=len(graph),
        plain_peak_bytes=bench.plain_peak,
        targets=targets,
        rounds=rounds,
        started=started,
        cores=len(os.sched_getaffinity(0)),
        load=os.getloadavg()[2],
        rows=rows_of(bench, times),
        unplanned=unplanned,
    )


def rows_of(bench: Bench, times: dict[str, Times]) -> tuple[Row, ...]:
    """A row for everyone who entered; `times` has those who were timed."""
    base = times[contenders.PLAIN]
    store_all = times.get(contenders.STORE_ALL)
    rows = []
    for contender in bench.entered:
        own = times.get(contender.name)
        predicts = contender.predicted_overhead is not None
        rows.append(
            _row(
                bench,
                contender,
                wall=ratio(own.wall_s, base.wall_s) if own else None,
                cpu=ratio(own.cpu_s, base.cpu_s) if own else None,
                to_store_all=ratio(own.cpu_s, store_all.cpu_s) if own and store_all and predicts else None,
            )
        )
    return tuple(rows)


def _with_peers(name: str, step: Step, network: Network, families: tuple[str, ...], announce: Announce) -> Bench:
    announce("the plain run")
    plain = contenders.plain(step)
    reference = train(plain)
    bench = Bench(
        network=name,
        reference=reference,
        plain_peak=peak_bytes(plain),
        entered=[plain],
        trained={plain.name: reference},
        peaks={},
    )
    bench.peaks[plain.name] = bench.plain_peak
    makers: dict[str, Callable[[], list[Contender]]] = {
        contenders.TRACED: lambda: [contenders.traced(step)],
        contenders.CHECKPOINT: lambda: contenders.checkpointed(step, network),
        contenders.SELECTIVE: lambda: contenders.selective(step, network),
        contenders.MEMORY_BUDGET: lambda: contenders.memory_budgets(step),
    }
    for peer in (peer for family, make in makers.items() if family in families for peer in make()):
        announce(peer.name)
        bench.enter(peer)
    return bench


def _enter_plans(
    bench: Bench, step: Step, graph: Graph, targets: tuple[float, ...], time_limit_s: float, announce: Announce
) -> dict[str, str]:
    """Plans for every target and every peer's peak; equal schedules run once. Returns what found no plan, and why."""
    wanted = {f"at {target:.0%}": int(target * bench.plain_peak) for target in targets}
    peers = [peer for peer in bench.entered if peer.family not in (contenders.PLAIN, contenders.TRACED)]
    wanted |= {f"against {p.name}": bench.peaks[p.name] for p in peers if _is_worth_meeting(bench, p)}
    unplanned = {}
    known: dict[tuple[int, ...], str] = {}
    for setting, above_start in {contenders.WITHOUT_RECOMPUTATION: None, **wanted}.items():
        announce(f"planning {setting}")
        budget = {"budget_fraction": 1.0} if above_start is None else {"budget_bytes": graph.fixed_bytes + above_start}
        try:
            plan = solve(graph, **budget, time_limit_s=time_limit_s)
        except (InfeasibleBudget, NoPlanInTime) as error:
            unplanned[setting] = str(error)
            continue
        if plan.schedule in known:
            continue
        known[plan.schedule] = setting
        bench.enter(contenders.exact(step, graph, plan, setting))
    return unplanned


def _enter_eager(bench: Bench, step: Step, targets: tuple[float, ...], announce: Announce) -> dict[str, str]:
    """Eager mode at every target."""
    unplanned = {}
    for target in targets:
        setting = f"at {target:.0%}"
        announce(f"planning eager mode {setting}")
        try:
            bench.enter(contenders.eager(step, int(target * bench.plain_peak), setting))
        except InfeasibleBudget as error:
            unplanned[f"eager {setting}"] = str(error)
    return unplanned


def _is_worth_meeting(bench: Bench, peer: Contender) -> bool:
    below_plain = bench.peaks[peer.name] < bench.plain_peak
    return below_plain and bench.has_right_gradients(peer) and _is_worth_timing(bench, peer)


def _is_worth_timing(bench: Bench, contender: Contender) -> bool:
    """Not a memory budget whose peak a larger budget reaches too: that one recomputes less."""
    if contender.family != contenders.MEMORY_BUDGET:
        return True
    peak = bench.peaks[contender.name]
    return all(
        bench.peaks[other.name] > peak or not bench.has_right_gradients(other)
        for other in bench.entered
        if other.family == contenders.MEMORY_BUDGET and float(other.setting) > float(contender.setting)
    )


def _is_identical(one: Training, other: Training) -> bool:
    return are_equal(one.losses, other.losses) and are_equal(one.gradients, other.gradients)


def _row(
    bench: Bench, contender: Contender, *, wall: Ratio | None, cpu: Ratio | None, to_store_all: Ratio | None
) -> Row:
    mine = bench.trained[contender.name]
    peak = bench.peaks[contender.name]
    return Row(
        network=bench.network,
        family=contender.family,
        setting=contender.setting,
        peak_bytes=peak,
        peak_share=peak / bench.plain_peak,
        budget_bytes=contender.budget_bytes,
        predicted_peak_bytes=contender.predicted_peak_bytes,
        predicted_overhead=contender.predicted_overhead,
        loss_and_gradients_identical=_is_identical(mine, bench.reference),
        gradients_right=bench.has_right_gradients(contender),
        buffers_identical=are_equal(mine.buffers, bench.reference.buffers),
        largest_difference=bench.difference(contender),
        wall=wall,
        cpu=cpu,
        to_store_all=to_store_all,
    )
