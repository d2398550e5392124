"""The ranks of one distributed job: the first to come measures and asks, the others take its costs and its plan.

It goes through the job's key-value store, not through a broadcast: a collective waits for every rank, and ranks need
not compile the same graphs (pipeline stages, an uneven last batch). Whoever meets a question first is its asker.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import torch.distributed as dist
from backports import zstd

from remat_solver.errors import RematError
from remat_solver.files import decompress_zstd, dump_json, parse_json
from remat_solver.graph import Graph
from remat_solver.plan import Plan

PATIENCE_S = 3600.0
"""How long an asker that says nothing is waited for; a launcher ends the job long before if a rank has died."""
FIRST_LOOK_S = 0.05
LOOK_INTERVAL_S = 1.0
MAX_ANSWER_BYTES = 2**30
NO_ANSWER = b"{}"
"""The asker failed for a reason of its own: the others try for themselves."""
Ask = Callable[[], tuple[Graph, Plan]]
_log = logging.getLogger("remat")


class KeyValueStore(Protocol):
    """What is used of `torch.distributed.Store`."""

    def add(self, key: str, amount: int, /) -> int:
        """Adds to a counter and returns it."""
        ...

    def check(self, keys: list[str], /) -> bool:
        """Whether all of them are there."""
        ...

    def get(self, key: str, /) -> bytes:
        """What was set."""
        ...

    def set(self, key: str, value: Any, /) -> None:
        """Leaves a value, bytes here, for all ranks."""
        ...


class Ranks:
    """All ranks of a job, seen from one of them."""

    def __init__(self, store: KeyValueStore) -> None:
        self.store = store
        self._times_asked: Counter[str] = Counter()

    def ask_once(self, graph: Graph, question: str, ask: Ask) -> tuple[Graph, Plan]:
        """The measured graph and plan for an unmeasured `graph`: from `ask` on one rank, from that rank on the others.

        `question` says everything else that the answer depends on. Raises on every rank what `ask` raised on the one.
        """
        text = f"{graph.hash} {question}"
        self._times_asked[text] += 1  # the n-th time that one rank asks belongs with the n-th time of the others
        key = f"remat/{hashlib.sha256(text.encode()).hexdigest()}/{self._times_asked[text]}"
        if self.store.add(f"{key}/askers", 1) > 1:
            answer = self._await(key)
            return ask() if answer is None else _read(answer)
        try:
            measured, plan = ask()
        except RematError as error:
            self._leave(key, json.dumps({"error": error.to_dict()}).encode())
            raise
        except BaseException:
            self._leave(key, NO_ANSWER)
            raise
        self._leave(key, dump_json(measured) + b"\n" + dump_json(plan))
        return measured, plan

    def _leave(self, key: str, answer: bytes) -> None:
        self.store.set(key, zstd.compress(answer))

    def _await(self, key: str) -> bytes | None:
        """What the asker left under the key; None if it left no answer."""
        deadline_s, pause_s = time.monotonic() + PATIENCE_S, FIRST_LOOK_S
        while not self.store.check([key]):
            if time.monotonic() > deadline_s:
                _log.warning("the rank that asks for a plan has been silent for %.0f s: asking too.", PATIENCE_S)
                return None
            time.sleep(pause_s * random.uniform(0.7, 1.3))
            pause_s = min(2 * pause_s, LOOK_INTERVAL_S)
        answer = decompress_zstd(self.store.get(key), MAX_ANSWER_BYTES)
        return None if answer == NO_ANSWER else answer


_mine: Ranks | None = None


def fellow_ranks() -> Ranks | None:
    """The ranks of the distributed job that this process belongs to; None if it is alone."""
    global _mine
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return None
    store = dist.distributed_c10d._get_default_store()
    if _mine is None or _mine.store is not store:
        _mine = Ranks(store)
    return _mine


def _read(answer: bytes) -> tuple[Graph, Plan]:
    first, _, second = answer.partition(b"\n")
    if not second:
        raise RematError.from_dict(json.loads(first)["error"])
    return parse_json(Graph, first, path="another rank's graph"), parse_json(Plan, second, path="another rank's plan")
