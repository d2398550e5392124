"""Measuring: each distinct op once, alone, on made-up inputs, on its own device.

The model itself is never run, so a model whose training step does not fit can still be planned, and
identical layers cost nothing extra.
"""

from __future__ import annotations

import logging
import platform
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from remat.torch.cost_cache import CostCache, CostStore, OpCost
from remat.torch.peak import start_profiler
from remat.torch.roofline import estimate_cost, round_to_3_digits
from remat.torch.signature import TensorSpec, decode
from remat.torch.synthetic import InputPool, PreparedCall
from remat.torch.untraced import run_untraced
from remat.torch.workspace import workspace_meter
from remat_solver.graph import Graph, Op

DEFAULT_REPEATS = 15
ROUNDS = 3
"""Repeats are spread over this many passes, so that a disturbance of some milliseconds can't spoil all of an op's."""
FEWEST_REPEATS = 2
"""Per pass, however long the op takes."""
BURST_NS = 20_000_000
"""No further repeats in a pass once an op took this long in it."""

_FILLER_BYTES = 2**26
_FILLS = 64

ProgressCallback = Callable[[int, int, str], None]
"""Called with the number of op runs done, their total and the op's name, on the measuring thread."""
_log = logging.getLogger("remat")
_DEFAULT_CACHE = CostCache
_GPU_NUMBER = re.compile(r'"cuda:\d+"')
_FORMAT = "3"
"""Changes when costs come to mean something else, so that older ones are not taken for new."""


def measure(
    graph: Graph,
    *,
    repeats: int = DEFAULT_REPEATS,
    cache: CostStore | type[CostCache] | None = _DEFAULT_CACHE,
    on_progress: ProgressCallback | None = None,
) -> Graph:
    """The graph with measured `time_ns` (wall, rounded to 3 digits) and `workspace_bytes` on every op.

    Each distinct signature is measured once: the least time of at most `repeats` runs after a warm-up.
    `cache` holds earlier measurements (by default the one on disk; None measures everything anew; `SharedCosts`
    shares them through a solver service). An op
    that can't run alone gets the roofline estimate, is named in the log, and the graph says `estimated`.
    Ops without a signature keep their costs. Nobody's random state is moved, and it works from inside a
    compiler's callback. Raises `CaptureError` for a signature that this PyTorch can't read.
    """
    store = cache() if isinstance(cache, type) else cache
    names = {op.signature: op.name for op in graph.ops if op.signature}
    devices = {signature: _device_of(signature) for signature in names}
    costs: dict[str, OpCost] = {}
    estimated = False
    for device in sorted(set(devices.values()), key=str):
        wanted = {signature: names[signature] for signature in names if devices[signature] == device}
        found, guessed = _costs_on(device, wanted, store, repeats, on_progress)
        costs |= found
        estimated = estimated or guessed
    ops = tuple(
        replace(op, time_ns=costs[op.signature].time_ns, workspace_bytes=_workspace_bytes(op, costs[op.signature]))
        if op.signature
        else op
        for op in graph.ops
    )
    label = ", ".join(describe_device(device) for device in sorted(set(devices.values()), key=str))
    return replace(graph, ops=ops, device=label or graph.device, estimated=estimated)


def _workspace_bytes(op: Op, cost: OpCost) -> int:
    """The op's own, and room for the generator's present state, which stands by while a random op is replayed."""
    return cost.workspace_bytes + op.recompute_state_bytes


def _costs_on(
    device: torch.device,
    names: dict[str, str],
    store: CostStore | None,
    repeats: int,
    on_progress: ProgressCallback | None,
) -> tuple[dict[str, OpCost], bool]:
    """The cost of each signature, and whether any of them is an estimate."""
    environment = _environment(device)
    known = _look_up(store, environment, names) if store else {}
    missing = {signature: name for signature, name in names.items() if signature not in known}
    if not missing:
        return known, False
    if not _is_here(device):
        _log.warning("there is no %s here: the costs of %d ops are estimates.", device, len(missing))
        return known | run_untraced(lambda _: {text: estimate_cost(text) for text in missing}), True
    start_profiler()
    bench = _Bench(device=device, names=missing, repeats=repeats, on_progress=on_progress)
    measured = run_untraced(bench.measure)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what the ops took is for the training
    if store:
        store.put(environment, {_on_any_gpu(text): cost for text, cost in measured.items()})
        measured |= _look_up(store, environment, measured)  # of two processes that measured at once, the first counts
    failed = {text: estimate_cost(text) for text in missing if text not in measured}
    return known | measured | failed, bool(failed)


def _look_up(store: CostStore, environment: str, signatures: Iterable[str]) -> dict[str, OpCost]:
    keys = {signature: _on_any_gpu(signature) for signature in signatures}
    found = store.get(environment, set(keys.values()))
    return {signature: found[key] for signature, key in keys.items() if key in found}


def _on_any_gpu(signature: str) -> str:
    """The signature without the number of the GPU: the ranks of one machine share costs, and so plans."""
    return _GPU_NUMBER.sub('"cuda"', signature)


@dataclass(kw_only=True)
class _Bench:
    """Measures ops of one device on the thread that calls `measure`."""

    device: torch.device
    names: dict[str, str]
    repeats: int
    on_progress: ProgressCallback | None

    def measure(self, stop: threading.Event) -> dict[str, OpCost]:
        """The cost of each op that can run alone."""
        pool = InputPool()
        least_ns: dict[str, int] = {}
        able = list(self.names)
        done = 0
        for turn in range(ROUNDS):
            for signature in list(able):
                if stop.is_set():
                    return {}
                time_ns = self._time(pool, signature, self._share(turn))
                if time_ns is None:
                    able.remove(signature)
                else:
                    least_ns[signature] = min(time_ns, least_ns.get(signature, time_ns))
                done += 1
                if self.on_progress:
                    self.on_progress(done, len(self.names) * ROUNDS, self.names[signature])
        workspaces = self._workspaces(pool, able)
        return {
            signature: OpCost(time_ns=round_to_3_digits(least_ns[signature]), workspace_bytes=workspaces[signature])
            for signature in able
        }

    def _share(self, turn: int) -> int:
        """How many of the repeats fall to this pass."""
        return (self.repeats + ROUNDS - 1 - turn) // ROUNDS

    def _time(self, pool: InputPool, signature: str, repeats: int) -> int | None:
        """The least time of some runs, ns; None if the op can't run on made-up inputs."""
        try:
            call = pool.prepare(*decode(signature))
            call.run()
            return _time_cuda(call, repeats, self.device) if self.device.type == "cuda" else _time_cpu(call, repeats)
        except torch.OutOfMemoryError:
            pool.clear()
            _log.warning(
                "%s does not fit on %s even alone: its cost is an estimate.", self.names[signature], self.device
            )
        except Exception as error:
            _log.warning("can't run %s alone (%s): its cost is an estimate.", self.names[signature], error)
        return None

    def _workspaces(self, pool: InputPool, signatures: Iterable[str]) -> dict[str, int]:
        keys = {str(index): signature for index, signature in enumerate(signatures)}
        with workspace_meter() as meter:
            for key, signature in keys.items():
                meter.measure(key, pool.prepare(*decode(signature)), self.device)
        return {signature: meter.workspace_bytes[key] for key, signature in keys.items()}


def _time_cpu(call: PreparedCall, repeats: int) -> int:
    """On one thread its CPU time, which other processes can't lengthen; on several only the wall can tell."""
    now = time.thread_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns
    least = 0
    spent = 0
    for turn in range(max(repeats, FEWEST_REPEATS)):
        call.restore()
        start = now()
        call.run()  # the result is freed within the time, as it is in a step
        elapsed = now() - start
        least = min(least, elapsed) if turn else elapsed
        spent += elapsed
        if spent > BURST_NS and turn + 1 >= FEWEST_REPEATS:
            break
    return least


def _time_cuda(call: PreparedCall, repeats: int, device: torch.device) -> int:
    """Events around each run, recorded without waiting and behind other work, so that a small op's launch is hidden.

    In a step the device is busy with what came before, too, while the next op is launched.
    """
    stream = torch.cuda.current_stream(device)
    _occupy(device)
    pairs = []
    for _ in range(max(repeats, FEWEST_REPEATS)):
        call.restore()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record(stream)
        call.run()
        end.record(stream)
        pairs.append((start, end))
    torch.cuda.synchronize(device)
    least_ms: float = min(start.elapsed_time(end) for start, end in pairs)
    return round(least_ms * 1e6)


def _occupy(device: torch.device) -> None:
    """Gives the device about a millisecond of work (each fill takes it longer than launching it takes the host)."""
    filler = torch.empty(_FILLER_BYTES, dtype=torch.uint8, device=device)
    for _ in range(_FILLS):
        filler.zero_()


def describe_device(device: torch.device) -> str:
    """The device for people: its model, and for a CPU how many threads run an op."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device) if _is_here(device) else "cuda (absent)"
    if device.type == "cpu":
        return f"{_cpu_model()} ({torch.get_num_threads()} threads)"
    return str(device)


def _environment(device: torch.device) -> str:
    """Everything but the op that its cost depends on: the device, then | and PyTorch with its settings."""
    settings = [
        f"costs {_FORMAT}",
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
    ]
    return f"{describe_device(device)}|{torch.__version__} {', '.join(map(str, settings))}"


def _is_here(device: torch.device) -> bool:
    if device.type == "cuda":
        return (device.index or 0) < torch.cuda.device_count()
    return device.type == "cpu"


def _device_of(signature: str) -> torch.device:
    _, args, kwargs = decode(signature)
    stack = [*args, *kwargs.values()]
    found = torch.device("cpu")
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack.extend(value)
        elif isinstance(value, TensorSpec) and value.device.type != "cpu":
            return value.device
        elif isinstance(value, torch.device):
            found = value
    return found


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith(("model name", "Hardware", "CPU part")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
