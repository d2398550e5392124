"""Budgets and options as people write them, and the keys that follow from them."""

import dataclasses
import pickle

import pytest

from remat_solver.budget import Budget, format_bytes, parse_budget, parse_bytes
from remat_solver.errors import InfeasibleBudget, InvalidRequest, RematError
from remat_solver.options import SolveOptions, matching_ops, plan_key
from tests.solver.graphs import chain


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("8GiB", Budget(budget_bytes=8 * 2**30)),
        ("1.5 gib", Budget(budget_bytes=3 * 2**29)),
        ("500MB", Budget(budget_bytes=500_000_000)),
        ("1024", Budget(budget_bytes=1024)),
        (4096, Budget(budget_bytes=4096)),
        ("80%", Budget(budget_fraction=0.8)),
        (" 12.5 % ", Budget(budget_fraction=0.125)),
    ],
)
def test_parsing(text: str | int, budget: Budget) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["", "eight", "8 parsecs", "-3GiB", "0", "0%", "1e9", "8GiB!", "nan%", 0, -5])
def test_nonsense_is_refused_with_an_example(text: str | int) -> None:
    with pytest.raises(InvalidRequest, match="8GiB"):
        parse_budget(text)


def test_fractions_round_down() -> None:
    assert parse_budget("33%").in_bytes(100_001) == 33_000


@pytest.mark.parametrize(("amount", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (2**31, "2.00 GiB")])
def test_bytes_for_people(amount: int, text: str) -> None:
    assert format_bytes(amount) == text


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "exactly one of"),
        ({"budget_bytes": 5, "max_overhead": 0.1}, "exactly one of"),
        ({"budget_bytes": 5, "gap": -1}, "gap is -1"),
        ({"budget_bytes": 5, "gap": float("nan")}, "gap is nan"),
        ({"budget_bytes": 5, "time_limit_s": float("inf")}, "time_limit_s is inf"),
        ({"budget_bytes": 5, "threads": 0}, "threads is 0"),
        ({"budget_bytes": 5, "strategy": "magic"}, "memory_cuts"),
        ({"budget_bytes": 5, "engine": "gurobi"}, "cbc"),
        ({"budget_bytes": 0}, "budget of 0"),
        ({"max_overhead": -0.5}, "max_overhead is -0.5"),
    ],
)
def test_options_are_checked(fields: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        SolveOptions(**fields)  # type: ignore[arg-type]


def test_pins_match_names_and_must_match_something() -> None:
    assert matching_ops(chain(3), ("f*", "b1")) == {0, 1, 2, 4}
    with pytest.raises(InvalidRequest, match="attention"):
        matching_ops(chain(3), ("attention*",))


def test_key_is_the_question() -> None:
    graph = chain(3)
    half = SolveOptions(budget_fraction=0.5)
    assert plan_key(graph, half, store_all_peak_bytes=80) == plan_key(
        graph, SolveOptions(budget_bytes=40, threads=8), store_all_peak_bytes=80
    )
    for change in (
        {"budget_fraction": 0.6},
        {"gap": 0.5},
        {"keep": ("f1",)},
        {"engine": "highs"},
        {"time_limit_s": 9.0},
    ):
        other = dataclasses.replace(half, **change)  # type: ignore[arg-type]
        assert plan_key(graph, other, store_all_peak_bytes=80) != plan_key(graph, half, store_all_peak_bytes=80)


def test_golden_key() -> None:
    key = plan_key(chain(3), SolveOptions(budget_bytes=40), store_all_peak_bytes=45)
    assert key == "cfa6d933779301c6cf0deb22ce4a21318e892d7500be67e416717d391dae2b05"


def test_errors_cross_the_wire_and_the_pickle_unchanged() -> None:
    error = InfeasibleBudget(
        "too small.", hint="Ask for more.", budget_bytes=5, proven_infeasible_below_bytes=9, proof_scope="order"
    )
    for copy in (RematError.from_dict(error.to_dict()), pickle.loads(pickle.dumps(error))):
        assert type(copy) is InfeasibleBudget
        assert copy.to_dict() == error.to_dict()
        assert copy.proven_infeasible_below_bytes == 9
        assert copy.known_feasible_bytes is None


def test_an_error_takes_only_its_own_fields() -> None:
    with pytest.raises(TypeError, match="no field 'colour'"):
        RematError("x", colour="red")
    with pytest.raises(AttributeError):
        _ = RematError("x").colour


def test_every_error_has_its_own_slug() -> None:
    def descendants(cls: type[RematError]) -> list[type[RematError]]:
        return [cls, *(deeper for child in cls.__subclasses__() for deeper in descendants(child))]

    classes = descendants(RematError)
    assert len({cls.slug for cls in classes}) == len(classes)


@pytest.mark.parametrize(("text", "amount"), [(0, 0), ("0", 0), (7, 7), ("1GiB", 2**30), ("500 MB", 500 * 10**6)])
def test_amounts_are_read(text: str | int, amount: int) -> None:
    assert parse_bytes(text, field="reserve") == amount


@pytest.mark.parametrize("text", ["10%", "much", -1, "-1GiB"])
def test_what_is_no_amount_is_refused(text: str | int) -> None:
    with pytest.raises(InvalidRequest, match=r"reserve .* is no number of bytes") as caught:
        parse_bytes(text, field="reserve")
    assert caught.value.fields["field"] == "reserve"
