"""One rank asks for all: its answer, its error, and what happens when it has neither."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from torch import distributed

from remat.torch.ranks import Ranks, fellow_ranks
from remat_solver.errors import InfeasibleBudget
from remat_solver.graph import Graph
from remat_solver.plan import Plan
from remat_solver.solve import solve
from tests.solver.graphs import chain

GRAPH = chain(3)
Answer = tuple[Graph, Plan]
ANSWER = (GRAPH, solve(GRAPH, budget_fraction=1.0))


def on_two_ranks(ask: Callable[[int], Answer]) -> list[Answer | BaseException]:
    """What two ranks get that ask the same at once; `ask` takes the number of the rank that runs it."""
    store = distributed.HashStore()
    results: list[Answer | BaseException] = []

    def run(rank: int) -> None:
        try:
            results.append(Ranks(store).ask_once(GRAPH, "question", lambda: ask(rank)))
        except BaseException as error:
            results.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_one_asks_and_all_get_its_answer() -> None:
    askers: list[int] = []

    def ask(rank: int) -> Answer:
        askers.append(rank)
        return ANSWER

    first, second = on_two_ranks(ask)
    assert first == second == ANSWER
    assert len(askers) == 1


def test_all_raise_what_the_one_raised() -> None:
    def ask(rank: int) -> Answer:
        raise InfeasibleBudget("too small.", hint="Ask for more.", budget_bytes=rank)

    first, second = on_two_ranks(ask)
    assert isinstance(first, InfeasibleBudget)
    assert isinstance(second, InfeasibleBudget)
    assert first.to_dict() == second.to_dict()


def test_the_others_ask_when_the_one_gave_up() -> None:
    gave_up = threading.Event()

    def ask(rank: int) -> Answer:
        if not gave_up.is_set():
            gave_up.set()
            raise KeyboardInterrupt
        return ANSWER

    results = on_two_ranks(ask)
    assert sorted(type(result) for result in results if isinstance(result, BaseException)) == [KeyboardInterrupt]
    assert ANSWER in results


def test_a_question_asked_again_is_asked_anew() -> None:
    ranks = Ranks(distributed.HashStore())
    with pytest.raises(InfeasibleBudget):
        ranks.ask_once(GRAPH, "question", lambda: (_ for _ in ()).throw(InfeasibleBudget("too small.")))
    assert ranks.ask_once(GRAPH, "question", lambda: ANSWER) == ANSWER


def test_a_process_alone_has_no_ranks() -> None:
    assert fellow_ranks() is None
