"""Costs through a solver service: the second job of a model, on whatever machine, builds the graph of the first."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping

from remat.client import Client
from remat.torch.cost_cache import CostCache, OpCost
from remat_solver.errors import ServiceError

_log = logging.getLogger("remat")


class SharedCosts:
    """The table of a service before the one on this machine's disk, whose costs are passed on to it.

    What the service holds counts, so that equal models have equal graphs, and with them equal plans. Without the
    service (it can't be reached, or the key may not write there) the disk's costs are used, and the log says so.
    """

    def __init__(self, endpoint: str, local: CostCache | None = None) -> None:
        self._endpoint = endpoint
        self._local = local or CostCache()

    def get(self, environment: str, signatures: Iterable[str]) -> dict[str, OpCost]:
        """The known costs among `signatures`, the service's first."""
        hashes = {text: _hash(text) for text in signatures}
        device, _, torch = environment.partition("|")
        table = self._asked(lambda client: client.costs(device, torch))
        shared = {text: _cost(table[key]) for text, key in hashes.items() if key in table}
        local = self._local.get(environment, hashes.keys() - shared.keys())
        return shared | self._passed_on(environment, local)

    def put(self, environment: str, costs: Mapping[str, OpCost]) -> None:
        """Keeps `costs` here and there, except where another process was first."""
        self._local.put(environment, costs)
        self._passed_on(environment, costs)

    def _passed_on(self, environment: str, costs: Mapping[str, OpCost]) -> dict[str, OpCost]:
        """Gives costs to the service; they themselves, or what was there before."""
        if not costs:
            return {}
        device, _, torch = environment.partition("|")
        sent = {_hash(text): (cost.time_ns, cost.workspace_bytes) for text, cost in costs.items()}
        kept = self._asked(lambda client: client.share_costs(device, torch, sent))
        return {text: _cost(kept[_hash(text)]) if _hash(text) in kept else cost for text, cost in costs.items()}

    def _asked(self, ask: Callable[[Client], dict[str, tuple[int, int]]]) -> dict[str, tuple[int, int]]:
        try:
            with Client(self._endpoint) as client:
                return ask(client)
        except ServiceError as error:
            _log.warning("op costs are not shared: %s", error)
            return {}


def _hash(signature: str) -> str:
    return hashlib.sha256(signature.encode()).hexdigest()


def _cost(figures: tuple[int, int]) -> OpCost:
    return OpCost(time_ns=figures[0], workspace_bytes=figures[1])
