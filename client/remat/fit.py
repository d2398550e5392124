"""Will it fit? Answered from the op graph, before any training step runs.

`fits` asks about one step, `largest_batch` about a family of them. Peaks are those of forward and backward, everything
included; a verdict is no better than the costs that it rests on, and says when those are estimates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from remat_solver.bounds import working_set_bound
from remat_solver.budget import format_bytes, parse_budget, parse_bytes
from remat_solver.errors import InfeasibleBudget, InvalidRequest, NoPlanInTime
from remat_solver.graph import Graph
from remat_solver.options import SolveOptions
from remat_solver.plan import Plan
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.solve import solve

if TYPE_CHECKING:
    from remat.torch import Step

Verdict = Literal["without recomputation", "with a plan", "no", "not known"]

TIME_LIMIT_S = 30.0
"""Seconds for each solve, unless told otherwise."""
ANY_PLAN = 10.0
"""A gap that every plan meets: whether there is a plan is all that a search for the largest batch asks."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Whether a step fits a budget; true in a condition where it does.

    `store_all_peak_bytes` is the peak without recomputation, `least_bytes` the bytes below which nothing can fit
    (proven). `plan` is the plan that fits, if there is one: the store-all plan where nothing need be recomputed.
    `reason` says why not, where the verdict is "no" (proven) or "not known" (no plan was found in time).
    """

    verdict: Verdict
    budget_bytes: int
    store_all_peak_bytes: int
    least_bytes: int
    costs_are_estimates: bool
    plan: Plan | None = None
    reason: str = ""

    def __bool__(self) -> bool:
        return self.plan is not None

    def __str__(self) -> str:
        estimated = " (from estimated costs)" if self.costs_are_estimates else ""
        if self.plan is None:
            return f"{self.verdict}: {self.reason}{estimated}"
        overhead = f", {self.plan.overhead:.1%} more compute" if self.plan.recompute_count else ""
        return (
            f"fits {format_bytes(self.budget_bytes)} {self.verdict}: "
            f"peak {format_bytes(self.plan.peak_bytes)}{overhead}{estimated}"
        )


@dataclass(frozen=True, kw_only=True)
class LargestBatch:
    """The largest batch that fits, how it fits, and every batch that was tried, in order."""

    batch: int
    fit: Fit
    tried: tuple[tuple[int, Fit], ...]


def fits(
    step: Step | Graph,
    budget: str | int,
    *,
    max_overhead: float | None = None,
    reserve: str | int = 0,
    **solve_fields: Any,
) -> Fit:
    """Whether `step` (or its measured graph) can run within `budget`, and how.

    A `Step` is captured and its distinct ops are measured one by one; the step itself never runs, so it need not fit.
    max_overhead: a plan that takes a larger share of extra compute (0.2 is 20%) does not count as fitting.
    reserve: bytes (or "1GiB") of the budget to set aside for what runs outside of the step.
    solve_fields: further fields of `SolveOptions`, such as `time_limit_s`.

    Raises the errors of capture, and `InvalidRequest` for a budget that can't be read.
    """
    reserve_bytes = parse_bytes(reserve, field="reserve")
    graph = step if isinstance(step, Graph) else _measured(step)
    graph = replace(graph, fixed_bytes=graph.fixed_bytes + reserve_bytes)
    parsed = parse_budget(budget)
    store_all_peak = simulate(graph, store_all_schedule(graph)).peak_bytes
    budget_bytes = parsed.in_bytes(store_all_peak)
    options = SolveOptions(budget_bytes=budget_bytes, **{"gap": 1e-2, "time_limit_s": TIME_LIMIT_S, **solve_fields})
    options.refuse_reorder("remat.fits")
    least = working_set_bound(graph)
    verdict: Verdict
    plan: Plan | None = None
    reason = ""
    try:
        plan = solve(graph, options)
    except InfeasibleBudget as error:
        verdict, reason = "no", str(error)
        least = max(least, error.fields["proven_infeasible_below_bytes"] or 0)
    except NoPlanInTime as error:
        verdict, reason = "not known", str(error)
    else:
        verdict = "with a plan" if plan.recompute_count else "without recomputation"
        if max_overhead is not None and plan.overhead > max_overhead:
            verdict = "no" if plan.bound_overhead > max_overhead else "not known"
            reason = (
                f"the best plan takes {plan.overhead:.1%} more compute (at least {plan.bound_overhead:.1%} is needed), "
                f"and {max_overhead:.1%} is allowed."
            )
            plan = None
    return Fit(
        verdict=verdict,
        budget_bytes=budget_bytes,
        store_all_peak_bytes=store_all_peak,
        least_bytes=least,
        costs_are_estimates=graph.estimated,
        plan=plan,
        reason=reason,
    )


def largest_batch(
    make_step: Callable[[int], Step | Graph],
    budget: str | int,
    *,
    max_overhead: float | None = None,
    reserve: str | int = 0,
    multiple_of: int = 1,
    at_most: int = 65536,
    on_try: Callable[[int, Fit], None] | None = None,
    **solve_fields: Any,
) -> LargestBatch:
    """The largest batch whose step, `make_step(batch)`, fits `budget`, in multiples of `multiple_of`.

    budget: bytes, not a share: every batch has another peak.
    max_overhead: how large a share of extra compute a batch may take (0.2 is 20%). Without it any plan will do.
    reserve: bytes (or "1GiB") of the budget to set aside for what runs outside of the step.
    on_try: told of every batch that was tried.

    Larger batches are taken to need more memory. Where no plan was found in time the batch counts as too large, and
    its `Fit` says "not known". Raises `InfeasibleBudget` or `NoPlanInTime` if not even the smallest batch fits.
    """
    if parse_budget(budget).budget_bytes is None:
        raise InvalidRequest(
            f"the largest batch within {budget!r} is not defined: every batch has another peak.",
            hint='Give bytes, as in "8GiB".',
            field="budget",
        )
    if not 1 <= multiple_of <= at_most:
        raise InvalidRequest(f"multiple_of {multiple_of} is outside 1 to at_most, {at_most}.", field="multiple_of")
    search = _BatchSearch(limit=at_most // multiple_of)
    while (count := search.next_count()) is not None:
        batch = count * multiple_of
        wanted = solve_fields if max_overhead is not None else {"gap": ANY_PLAN, **solve_fields}
        fit = fits(make_step(batch), budget, max_overhead=max_overhead, reserve=reserve, **wanted)
        search.tried.append((count, fit))
        if on_try:
            on_try(batch, fit)
    best = search.largest()
    if best == 0:
        raise _nothing_fits(search.tried[0][1], multiple_of)
    fit = next(fit for count, fit in search.tried if count == best)
    if max_overhead is None:
        fit = fits(
            make_step(best * multiple_of), budget, reserve=reserve, **solve_fields
        )  # now for the fastest plan, not for any
    return LargestBatch(
        batch=best * multiple_of,
        fit=fit,
        tried=tuple((count * multiple_of, fit) for count, fit in search.tried),
    )


class _BatchSearch:
    """Which count to try next: doubling at first, then where the proven least memory meets the budget, then halving."""

    def __init__(self, *, limit: int) -> None:
        self.limit = limit
        self.tried: list[tuple[int, Fit]] = []

    def largest(self) -> int:
        """The largest count known to fit; 0 if none is."""
        return max((count for count, fit in self.tried if fit), default=0)

    def next_count(self) -> int | None:
        """None when the answer is known."""
        low = self.largest()
        high = min((count for count, fit in self.tried if not fit), default=self.limit + 1)
        if high - low <= 1:
            return None
        if low == 0:
            return 1
        if high <= self.limit:
            return (low + high) // 2
        return min(max(self._expected(low), low + 1), self.limit)

    def _expected(self, low: int) -> int:
        """A little less than what the least bytes of the last two counts that fit lead to, in a straight line."""
        known = sorted((count, fit.least_bytes) for count, fit in self.tried if fit)
        if len(known) < 2:
            return 2 * low
        (one, one_bytes), (other, other_bytes) = known[-2:]
        slope = (other_bytes - one_bytes) / (other - one)
        if slope <= 0:
            return 2 * low
        budget_bytes = self.tried[-1][1].budget_bytes
        return int(other + 0.9 * (budget_bytes - other_bytes) / slope)


def _nothing_fits(fit: Fit, batch: int) -> Exception:
    message = f"not even a batch of {batch} fits {format_bytes(fit.budget_bytes)}: {fit.reason}"
    if fit.verdict == "no":
        return InfeasibleBudget(
            message,
            hint="Give more memory, or a smaller model.",
            budget_bytes=fit.budget_bytes,
            proven_infeasible_below_bytes=fit.least_bytes,
            proof_scope="order",
        )
    return NoPlanInTime(message, hint="Give time_limit_s more seconds.", budget_bytes=fit.budget_bytes)


def _measured(step: Step) -> Graph:
    from remat.torch import capture, measure

    return measure(capture(step))
