"""Which moments of a run count, and what they amount to. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from vm_truth import Moment, Verdict

#: After a disturbance nothing can know of it before the next Sync; a Sync may be lost, so two of them.
EXCLUDED_SYNCS = 2

#: A run counts where the truth is known this well in nearly all moments; else the machine was too busy.
GOOD_TRUTH_NS = 10_000
GOOD_SHARE = 0.95


class Disturbance(NamedTuple):
    """
    Something that no node can know before the next Sync happened between two moments (host ticks). `log` names the machine and
    the clock whose log shows it: ("grandmaster", "phc") or ("node", "realtime").
    """

    what: str
    earliest: float
    latest: float
    log: tuple[str, str] | None = None


@dataclass(frozen=True)
class Tally:
    """
    What the claims of one kind amount to. Of the moments that are not excluded: `judged`, `held`, `missed`, `open` (the error of the truth
    leaves it open), `unknown` (no interval was claimed), by status. `excluded` moments have `excluded_missed` misses among them, the
    last one `last_miss_s` after its disturbance. Widths are half of the interval.
    """

    kind: str
    moments: int
    excluded: int
    excluded_missed: int
    last_miss_s: float | None
    judged: int
    held: int
    missed: int
    open: int
    unknown: int
    no_truth: int
    statuses: dict[str, int]
    reasons: dict[str, int]
    median_bound_ns: float | None
    largest_bound_ns: float | None
    rms_offset_ns: float | None
    largest_offset_ns: float | None
    worst_ratio: float | None
    median_truth_error_ns: float | None
    share_of_good_truth: float | None

    @property
    def counts(self) -> bool:
        """Whether the truth was known well enough for this run to count."""
        return self.share_of_good_truth is not None and self.share_of_good_truth >= GOOD_SHARE

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def excluding(at: float, disturbances: Sequence[Disturbance], reach_ticks: float) -> Disturbance | None:
    """The disturbance of which nothing at this moment can know yet; None: the moment counts."""
    for each in disturbances:
        if each.earliest <= at <= each.latest + reach_ticks:
            return each
    return None


def is_excluded(moment: Moment, disturbances: Sequence[Disturbance], reach_ticks: float) -> Disturbance | None:
    """A claim is excluded where it was made before it could be known, and where it is made of such a moment."""
    return excluding(moment.asked_at, disturbances, reach_ticks) or excluding(moment.at, disturbances, reach_ticks)


def tally(
    kind: str,
    moments: Sequence[Moment],
    disturbances: Sequence[Disturbance],
    sync_interval_s: float,
    ticks_per_ns: float,
) -> Tally:
    reach_ticks = EXCLUDED_SYNCS * sync_interval_s * 1e9 * ticks_per_ns
    of_kind = [moment for moment in moments if moment.claim.kind == kind]
    excluded = [(moment, is_excluded(moment, disturbances, reach_ticks)) for moment in of_kind]
    counted = [moment for moment, why in excluded if why is None]
    late = [
        (moment.at - why.latest) / ticks_per_ns / 1e9
        for moment, why in excluded
        if why is not None and moment.verdict is Verdict.MISSED
    ]
    return _tally_of(kind, len(of_kind), counted, late)


def _tally_of(kind: str, moments: int, counted: Sequence[Moment], late_misses_s: Sequence[float]) -> Tally:
    verdicts = Counter(moment.verdict for moment in counted)
    known = [moment for moment in counted if moment.bound_ns is not None]
    offsets = [abs(moment.offset_ns) for moment in known if moment.offset_ns is not None]
    bounds = [moment.bound_ns for moment in known if moment.bound_ns is not None]
    errors = [moment.truth_error_ns for moment in known if moment.truth_error_ns is not None]
    return Tally(
        kind=kind,
        moments=moments,
        excluded=moments - len(counted),
        excluded_missed=len(late_misses_s),
        last_miss_s=max(late_misses_s, default=None),
        judged=verdicts[Verdict.HELD] + verdicts[Verdict.MISSED] + verdicts[Verdict.OPEN],
        held=verdicts[Verdict.HELD],
        missed=verdicts[Verdict.MISSED],
        open=verdicts[Verdict.OPEN],
        unknown=verdicts[Verdict.UNKNOWN],
        no_truth=verdicts[Verdict.NO_TRUTH],
        statuses=dict(Counter(moment.claim.status for moment in counted)),
        reasons=dict(Counter(moment.claim.reason for moment in counted if moment.claim.reason not in ("-", "ok"))),
        median_bound_ns=statistics.median(bounds) if bounds else None,
        largest_bound_ns=max(bounds, default=None),
        rms_offset_ns=statistics.fmean(offset**2 for offset in offsets) ** 0.5 if offsets else None,
        largest_offset_ns=max(offsets, default=None),
        worst_ratio=max((offset / bound for offset, bound in zip(offsets, bounds, strict=True)), default=None),
        median_truth_error_ns=statistics.median(errors) if errors else None,
        share_of_good_truth=sum(error <= GOOD_TRUTH_NS for error in errors) / len(errors) if errors else None,
    )


def lines(tally: Tally) -> list[str]:
    """For people."""
    share = tally.excluded / tally.moments if tally.moments else 0.0
    last = "" if tally.last_miss_s is None else f", the last {tally.last_miss_s * 1e3:.0f} ms after it"
    text = [
        f"{tally.kind}: {tally.missed} of {tally.judged} moments missed, {tally.open} open, {tally.unknown} unknown, "
        + f"{tally.no_truth} without truth; {share:.1%} excluded, {tally.excluded_missed} misses among them{last}",
        f"  {tally.statuses} {tally.reasons}",
    ]
    if tally.median_bound_ns is not None and tally.rms_offset_ns is not None:
        text.append(
            f"  bound {_us(tally.median_bound_ns)} us (median) to {_us(tally.largest_bound_ns)} us; offset {_us(tally.rms_offset_ns)} us (rms) "
            f"to {_us(tally.largest_offset_ns)} us; worst |offset| / bound {tally.worst_ratio:.2f}; "
            f"truth +- {_us(tally.median_truth_error_ns)} us{'' if tally.counts else ': TOO BUSY, does not count'}"
        )
    return text


def miss_lines(
    moments: Sequence[Moment], disturbances: Sequence[Disturbance], reach_ticks: float, most: int = 12
) -> list[str]:
    """The misses that count, the first of them in full."""
    missed = [
        moment
        for moment in moments
        if moment.verdict is Verdict.MISSED and is_excluded(moment, disturbances, reach_ticks) is None
    ]
    return [
        f"  MISSED by {_us(moment.missed_by_ns)} us: offset {_us(moment.offset_ns)} us, bound {_us(moment.bound_ns)} us, "
        f"truth +- {_us(moment.truth_error_ns)} us: {' '.join(map(str, moment.claim))}"
        for moment in missed[:most]
    ]


def _us(ns: float | None) -> str:
    return "-" if ns is None else f"{ns / 1e3:.1f}"
