"""The second class: the same networks under Inductor, beside `torch.compile` by itself.

Results of two compilations differ by rounding, so that gradients count as right when they are about as near to those
of the plain compiled run in float64 as the plain compiled run's are in float32.
"""

from __future__ import annotations

import copy
import os
import time
from functools import partial

import torch

from benchmarks.peers import contenders
from benchmarks.peers.comparison import Announce, Bench, Comparison, announcer, rows_of
from benchmarks.peers.contenders import Contender
from benchmarks.peers.measuring import peak_bytes, time_interleaved, train
from benchmarks.peers.networks import NETWORKS, Network
from remat.torch import Step
from remat.torch.heap import keep_freed_memory
from remat.torch.inductor.rehearsal import without_kernels
from remat.torch.inductor.survey import survey
from remat.torch.measure import measure
from remat_solver.errors import InfeasibleBudget, NoPlanInTime, VerificationFailed


def compare_compiled_named(name: str, targets: tuple[float, ...], rounds: int) -> Comparison:
    """`compare_compiled` for a process of its own; says on stderr what it is doing."""
    return compare_compiled(name, NETWORKS[name], targets, rounds, announcer(name))


def compare_compiled(
    name: str, network: Network, targets: tuple[float, ...], rounds: int, announce: Announce
) -> Comparison:
    """Everything about one network under Inductor. Targets are shares of the plain compiled run's measured peak.

    We are planned for every target, and for the peak of every memory budget with right gradients that is worth timing.
    """
    torch.set_num_threads(1)
    keep_freed_memory()
    started = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    step = network.make_step()
    announce("the plain compiled run")
    plain = contenders.compiled_plain(step)
    reference = train(plain)
    bench = Bench(
        network=name,
        reference=reference,
        plain_peak=peak_bytes(plain),
        entered=[plain],
        trained={plain.name: reference},
        peaks={},
        precise=train(contenders.compiled_in_float64(step)),
    )
    bench.peaks[plain.name] = bench.plain_peak
    _enter_memory_budgets(bench, step, announce)
    ops, unplanned = _enter_plans(bench, step, targets, announce)
    announce(f"timing {len(bench.entered)} contenders")
    times = time_interleaved(bench.entered, rounds)
    return Comparison(
        network=name,
        families=contenders.COMPILED_FAMILIES,
        ops=ops,
        plain_peak_bytes=bench.plain_peak,
        targets=targets,
        rounds=rounds,
        started=started,
        cores=len(os.sched_getaffinity(0)),
        load=os.getloadavg()[2],
        rows=rows_of(bench, times),
        unplanned=unplanned,
    )


def _enter_memory_budgets(bench: Bench, step: Step, announce: Announce) -> None:
    """Each setting, unless a larger one with right gradients has as low a peak: that one recomputes less."""
    for budget in contenders.BUDGET_SETTINGS:
        with without_kernels():
            peak = peak_bytes(_warm(contenders.compiled_memory_budget(step, budget)))
        rivals = [bench.plain_peak, *(bench.peaks[one.name] for one in bench.entered if bench.has_right_gradients(one))]
        announce(f"memory budget {budget}: peak {peak / 1e6:.1f} MB")
        if peak < min(rivals):
            bench.enter(contenders.compiled_memory_budget(step, budget))


def _warm(contender: Contender) -> Contender:
    """Compiles the contender by running it once, whatever that does to its weights."""
    contender.run()
    return contender


def _enter_plans(
    bench: Bench, step: Step, targets: tuple[float, ...], announce: Announce
) -> tuple[int, dict[str, str]]:
    """Plans for every target and every peer's peak; returns the number of ops, and what has no plan, and why."""
    surveyed = survey(copy.deepcopy(step), measure=partial(measure, cache=None))
    wanted = {f"at {target:.0%}": int(target * bench.plain_peak) for target in targets}
    peers = [peer for peer in bench.entered if peer.family == contenders.COMPILED_MEMORY_BUDGET]
    wanted |= {f"against {p.name}": bench.peaks[p.name] for p in peers if bench.has_right_gradients(p)}
    unplanned = {}
    for setting, above_start in wanted.items():
        announce(f"planning {setting}")
        try:
            planned = contenders.inductor(step, surveyed, above_start, setting)
        except (InfeasibleBudget, NoPlanInTime, VerificationFailed) as error:
            unplanned[f"{contenders.INDUCTOR} {setting}"] = str(error)
            continue
        announce(planned.name)
        bench.enter(planned)
    return len(surveyed.joint.graph), unplanned
