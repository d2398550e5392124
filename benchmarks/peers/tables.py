"""The rows for people: who reaches which peak at what cost, and each peer met at its own peak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.peers import contenders
from benchmarks.peers.comparison import Comparison, Row
from benchmarks.peers.measuring import Ratio

NOISE = 0.02
"""Differences of time below it are none."""
OVERHEAD_TOLERANCE = 0.05
PEAK_TOLERANCE = 0.001
"""How far predictions of exact mode may be off: shares of the store-all time, and of the measured peak."""


@dataclass(frozen=True, kw_only=True)
class Class:
    """Contenders that are compared with each other. `champion` is the family of ours that meets the peers."""

    plain: str
    peers: tuple[str, ...]
    ours: tuple[str, ...]
    champion: str

    @property
    def families(self) -> tuple[str, ...]:
        """The columns."""
        return (*self.peers, *self.ours)

    @property
    def target_head(self) -> tuple[str, ...]:
        """The head of `by_target`."""
        return ("network", "peak at most", *self.families)


OP_BY_OP = Class(
    plain="the unmodified model",
    peers=(contenders.CHECKPOINT, contenders.SELECTIVE, contenders.MEMORY_BUDGET),
    ours=(contenders.EXACT, contenders.EAGER),
    champion=contenders.EXACT,
)
COMPILED = Class(
    plain="torch.compile by itself",
    peers=(contenders.COMPILED_MEMORY_BUDGET,),
    ours=(contenders.INDUCTOR,),
    champion=contenders.INDUCTOR,
)


def class_of(comparison: Comparison) -> Class:
    """The class that a comparison belongs to."""
    return COMPILED if set(comparison.families) <= set(contenders.COMPILED_FAMILIES) else OP_BY_OP


def merged(parts: Sequence[Comparison]) -> list[Comparison]:
    """One comparison for each network from runs of different families; each keeps the ratios of its own rounds."""
    whole: dict[str, Comparison] = {}
    for part in parts:
        known = whole.get(part.network)
        if known is None:
            whole[part.network] = part
            continue
        names = {row.name for row in known.rows}
        whole[part.network] = replace(
            known,
            families=(*known.families, *part.families),
            rows=(*known.rows, *(row for row in part.rows if row.name not in names)),
            unplanned={**known.unplanned, **part.unplanned},
        )
    return list(whole.values())


def fastest_within(comparison: Comparison, family: str, share: float) -> Row | None:
    """The family's fastest setting with right gradients whose measured peak is at most `share` of the plain one."""
    limit = int(share * comparison.plain_peak_bytes)
    fitting = [row for row in _competing(comparison, family) if row.peak_bytes <= limit]
    return min(fitting, key=_cpu, default=None)


def by_target(comparisons: Sequence[Comparison]) -> list[list[str]]:
    """A line for each network and target: the fastest setting of every family that fits."""
    lines = []
    for comparison in comparisons:
        for target in comparison.targets:
            cells = [
                _ratio_cell(fastest_within(comparison, family, target)) if family in comparison.families else "not run"
                for family in class_of(comparison).families
            ]
            limit = f"{target:.0%} ({_megabytes(int(target * comparison.plain_peak_bytes))})"
            lines.append([comparison.network, limit, *cells])
    return lines


def by_peer(comparisons: Sequence[Comparison]) -> list[list[str]]:
    """A line for each peer's setting with right gradients, and the fastest of our plans within its measured peak."""
    lines = []
    for comparison in comparisons:
        contest = class_of(comparison)
        for family in contest.peers:
            for peer in _competing(comparison, family):
                ours = fastest_within(comparison, contest.champion, peer.peak_share)
                lines.append(
                    [
                        comparison.network,
                        peer.name,
                        f"{_megabytes(peer.peak_bytes)} ({peer.peak_share:.0%})",
                        _both(peer),
                        "none" if ours is None else _both(ours),
                        "" if ours is None else f"{100 * (_cpu(ours) - _cpu(peer)):+.1f}",
                        "yes" if peer.buffers_identical else "all but buffers",
                    ]
                )
    return lines


def all_rows(comparisons: Sequence[Comparison]) -> list[list[str]]:
    """Every contender that was timed."""
    lines = []
    for comparison in comparisons:
        for row in comparison.rows:
            if row.cpu is None or row.wall is None:
                continue
            predicted = "" if row.predicted_peak_bytes is None else _megabytes(row.predicted_peak_bytes, decimals=3)
            lines.append(
                [
                    comparison.network,
                    row.name,
                    _megabytes(row.peak_bytes, decimals=3),
                    predicted,
                    _interval(row.cpu),
                    _interval(row.wall),
                    _identical(row),
                ]
            )
    return lines


def overheads(comparisons: Sequence[Comparison]) -> list[list[str]]:
    """A line for each plan that predicts its overhead: measured, predicted, and the difference in points."""
    return [
        [
            comparison.network,
            row.name,
            _overhead(row.to_store_all),
            f"{100 * (row.predicted_overhead or 0):.1f}%",
            f"{100 * row.overhead_error:+.1f}",
        ]
        for comparison in comparisons
        for row in comparison.rows
        if row.to_store_all is not None and row.overhead_error is not None
    ]


def broken_claims(comparisons: Sequence[Comparison]) -> list[str]:
    """Where we were slower than a peer with right gradients at its peak, lost a bit, exceeded or mispredicted."""
    broken = []
    for comparison in comparisons:
        contest = class_of(comparison)
        ours = [row for row in comparison.rows if row.family in contest.ours]
        broken += [
            f"{comparison.network}, {row.name}: not {_promise(contest)}"
            for row in ours
            if not (row.gradients_right and (row.buffers_identical or contest is COMPILED))
        ]
        broken += [
            f"{comparison.network}, {row.name}: measured peak {row.peak_bytes} above its budget {row.budget_bytes}"
            for row in ours
            if row.budget_bytes is not None and row.peak_bytes > row.budget_bytes
        ]
        if contest is OP_BY_OP:
            broken += [
                f"{comparison.network}, {row.name}: {what}"
                for row in ours
                if row.family == contest.champion
                for what in _missed_predictions(row)
            ]
        for peer in (row for family in contest.peers for row in _competing(comparison, family)):
            best = fastest_within(comparison, contest.champion, peer.peak_share)
            if best is None:
                broken.append(f"{comparison.network}: {peer.name} reaches a peak for which we have no plan")
            elif _cpu(best) > _cpu(peer) + NOISE:
                broken.append(_faster(comparison.network, peer, best))
    return broken


def _missed_predictions(row: Row) -> list[str]:
    missed = []
    if row.overhead_error is not None and abs(row.overhead_error) > OVERHEAD_TOLERANCE:
        missed.append(f"overhead off by {100 * row.overhead_error:+.1f} points")
    if row.predicted_peak_bytes and abs(row.peak_bytes / row.predicted_peak_bytes - 1) > PEAK_TOLERANCE:
        missed.append(f"measured peak {row.peak_bytes}, predicted {row.predicted_peak_bytes}")
    return missed


def _promise(contest: Class) -> str:
    return "right" if contest is COMPILED else "identical"


def _faster(network: str, peer: Row, ours: Row) -> str:
    assert peer.cpu is not None
    assert ours.cpu is not None
    intervals = "overlap" if ours.cpu.low <= peer.cpu.high else "are apart"
    points = 100 * (ours.cpu.median - peer.cpu.median)
    return f"{network}: {peer.name} is faster at its peak, by {points:.1f} points; the 95% intervals {intervals}"


PEER_HEAD = (
    "network",
    "peer",
    "its peak",
    "its time, CPU (wall)",
    "ours within that peak",
    "ours less its, points",
    "peer bit-identical",
)
ROW_HEAD = ("network", "contender", "peak", "predicted", "CPU / plain", "wall / plain", "bit-identical")


OVERHEAD_HEAD = ("network", "plan", "measured (CPU time)", "predicted", "measured less predicted, points")


def as_markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table to commit."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _competing(comparison: Comparison, family: str) -> list[Row]:
    """The family's timed rows with right gradients, whatever they do to buffers."""
    return [row for row in comparison.rows if row.family == family and row.cpu and row.gradients_right]


def _cpu(row: Row) -> float:
    assert row.cpu is not None
    return row.cpu.median


def _ratio_cell(row: Row | None) -> str:
    if row is None:
        return "does not reach it"
    setting = "" if row.family.startswith("remat") else f", {row.setting}"
    return f"{_both(row)} at {row.peak_share:.0%}{setting}"


def _both(row: Row) -> str:
    assert row.wall is not None
    return f"{_cpu(row):.3f} ({row.wall.median:.3f})"


def _interval(ratio: Ratio) -> str:
    return f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


def _overhead(ratio: Ratio) -> str:
    return f"{100 * (ratio.median - 1):.1f}% ({100 * (ratio.low - 1):.1f} to {100 * (ratio.high - 1):.1f})"


def _identical(row: Row) -> str:
    if row.loss_and_gradients_identical:
        return "yes" if row.buffers_identical else "all but buffers"
    if row.gradients_right:
        return f"to {row.largest_difference:.1e}"
    return f"NO, gradients off by {row.largest_difference:.1e}"


def _megabytes(amount: int, decimals: int = 1) -> str:
    return f"{amount / 1e6:.{decimals}f} MB"
