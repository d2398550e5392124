"""What a step does may be left to chance: layers that are skipped at random, a random number of sampled points.

Eager mode plans the step that it sees. So it looks at several draws of the random numbers first, plans one in
which everything runs, and measures what it promises in several of these.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from remat.torch.both_ways import forked_randomness
from remat.torch.eager.regions import Regions, candidate_regions, own_call
from remat.torch.eager.stand_ins import recomputed
from remat.torch.step import Step
from remat_solver.errors import ApplyError

LOOKED_AT = 4
"""Draws in which the forward runs to see which modules take part."""
AT_MOST = 16
"""As many draws if the first ones differ."""
MEASURED = 3
"""Draws, at most, in which a plan's peak is measured."""


def run_forward(step: Step) -> None:
    """The model's forward for what else it does: with gradients, as it trains, but its blocks keep nothing for them."""
    with recomputed(_blocks(step)), torch.enable_grad():
        own_call(step.model)(*step.args, **dict(step.kwargs or {}))


def leave_behind(step: Step) -> None:
    """The model's forward for what it keeps: without gradients, since a result that it keeps would hold all of a graph.

    A backward would empty that. Where the forward needs gradients, they are there.
    """
    try:
        with torch.no_grad():
            own_call(step.model)(*step.args, **dict(step.kwargs or {}))
    except RuntimeError:
        run_forward(step)


def _blocks(step: Step) -> Regions:
    return next(iter(candidate_regions(step.model)), {})


@contextmanager
def in_draw(number: int) -> Iterator[None]:
    """The block runs with the random numbers of that draw; draw 0 is that of the generators as they stand."""
    with forked_randomness():
        if number:
            torch.manual_seed(number)  # those of every device
            np.random.seed(number)
            random.seed(number)
        yield


def full_draws(step: Step) -> list[int]:
    """The draws in which every block of the model runs that runs in any draw looked at.

    Smaller parts may differ: not every expert gets tokens in every step. Raises `ApplyError` if there is none.
    """
    modules = _blocks(step)
    ran: list[set[str]] = []
    while len(ran) < LOOKED_AT or (len(ran) < AT_MOST and any(paths != ran[0] for paths in ran)):
        with in_draw(len(ran)):
            states = _states()
            ran.append(_ran(step, modules))
            if _states() == states:
                return [0]  # nothing is drawn
    ever = set().union(*ran)
    full = [number for number, paths in enumerate(ran) if paths == ever]
    if full:
        return full
    path = min(ever - min(ran, key=len))
    raise ApplyError(
        f"the model runs other modules from step to step, by chance ({path}, for one), and never all of them in "
        f"{len(ran)} trials, so that no step can be planned for.",
        hint="Switch the skipping of layers off (layerdrop=0), or use mode='exact' if the model is one graph.",
    )


def _states() -> tuple[bytes, ...]:
    """Where the generators stand."""
    generators = [torch.get_rng_state()]
    if torch.cuda.is_available():
        generators += torch.cuda.get_rng_state_all()
    _, numpys, position, *_ = np.random.get_state()
    others = f"{random.getstate()} {position}".encode()
    return (*(state.numpy().tobytes() for state in generators), np.asarray(numpys).tobytes(), others)


def highest_peak(peaks_bytes: Sequence[int]) -> int:
    """What to expect of further draws: the highest of these, and as much again as they differ by.

    They differ where shapes follow from the data, as with experts among which tokens are shared out.
    """
    return 2 * max(peaks_bytes) - min(peaks_bytes)


def _ran(step: Step, modules: Mapping[str, nn.Module]) -> set[str]:
    """The paths of those modules that a forward calls."""
    found: set[str] = set()
    handles = [module.register_forward_pre_hook(_noting(found, path)) for path, module in modules.items()]
    try:
        run_forward(step)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _noting(found: set[str], path: str) -> Any:
    def note(_module: nn.Module, _inputs: Iterable[Any]) -> None:
        found.add(path)

    return note
