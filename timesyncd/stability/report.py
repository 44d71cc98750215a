"""The report of a series of time errors: what `timesyncd stability` prints, as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from timesyncd.stability.masks import MASKS, MaskInput, MaskVerdict, Point, Quantity, judge
from timesyncd.stability.readings import Pair, Placing, Reading, ReadingPlace, sampling_interval_ns
from timesyncd.stability.streaming import IntervalSums, StabilitySums
from timesyncd.stability.time_error import FILTER_INTERVAL_NS, BlockSums, LowPass

_NS_PER_S = 1_000_000_000

#: The longest observation interval of a mask, TDEV of PRTC-B.
LONGEST_NS = 100_000 * _NS_PER_S
#: Observation intervals beside the octaves: where the masks end.
_ENDS_NS = (1_000 * _NS_PER_S, 10_000 * _NS_PER_S)
#: From how many readings the sampling interval is estimated.
_FIRST_READINGS = 1_001
#: The low-passed time error is summed as an integer of this many parts of a ns.
_PARTS = 1_000
#: A TDEV counts from a record of twelve observation intervals (ITU-T G.8272, 6.2), which has 9 m + 1 terms.
_TDEV_TERMS_PER_SAMPLE = 9


@dataclass(frozen=True, slots=True)
class Deviations:
    """
    ADEV (dimensionless), TDEV and MTIE (ns) of one observation interval; None: too few samples without a gap.

    `_low`: of the time error after the low-pass of 0.1 Hz.
    """

    tau_ns: int
    adev: float | None
    tdev_ns: float | None
    mtie_ns: int | None
    tdev_low_ns: float | None
    mtie_low_ns: float | None
    terms: int


@dataclass(frozen=True, slots=True)
class StabilityReport:
    """
    What a series of time errors states about its clock. All in ns; None: unknown, with the reason in `reasons`.

    `samples` were used, `early` were not: they came less than half an interval after the last one. A gap and a change of the
    reference restart all windows. `longest_run_ns`: the longest series without either.
    """

    interval_ns: int
    begin_ns: int | None
    end_ns: int | None
    samples: int
    early: int
    gaps: int
    reference_changes: int
    longest_run_ns: int
    max_abs_te_ns: int | None
    constant_te_ns: float | None
    worst_constant_te_ns: float | None
    constant_te_blocks: int
    max_abs_te_low_ns: float | None
    range_high_ns: float | None
    deviations: tuple[Deviations, ...]
    verdicts: tuple[MaskVerdict, ...]
    reasons: dict[str, str]


def observation_intervals(interval_ns: int, longest_ns: int) -> list[int]:
    """In samples: the octaves up to `longest_ns`, and the ends of the masks."""
    longest = max(1, longest_ns // interval_ns)
    octaves = [1 << power for power in range(longest.bit_length())]
    ends = [end_ns // interval_ns for end_ns in _ENDS_NS]
    return sorted({*octaves, *(end for end in ends if 1 <= end <= longest)})


class StabilityMeter:
    """Sums a series that is sampled each `interval_ns`, reading by reading, in memory bounded by `longest_ns`."""

    def __init__(self, interval_ns: int, longest_ns: int = LONGEST_NS) -> None:
        self._interval_ns = interval_ns
        self._intervals = observation_intervals(interval_ns, longest_ns)
        self._placing = Placing(interval_ns)
        self._sums = StabilitySums(self._intervals)
        self._constant = BlockSums(interval_ns)
        self._filtered = _Filtered(interval_ns, self._intervals) if interval_ns <= FILTER_INTERVAL_NS else None
        self._begin_ns: int | None = None
        self._end_ns: int | None = None
        self._counts = dict.fromkeys(ReadingPlace, 0)
        self._run = self._longest_run = 0
        self._max_abs = 0

    def add(self, reading: Reading) -> None:
        place = self._placing.place(reading)
        self._counts[place] += 1
        if place is ReadingPlace.EARLY:
            return
        if place is not ReadingPlace.NEXT:
            self._gap()
        self._run += 1
        self._longest_run = max(self._longest_run, self._run)
        self._max_abs = max(self._max_abs, abs(reading.te_ns))
        self._begin_ns = reading.at_ns if self._begin_ns is None else self._begin_ns
        self._end_ns = reading.at_ns
        self._sums.add(reading.te_ns)
        self._constant.add(reading.te_ns)
        if self._filtered is not None:
            self._filtered.add(reading.te_ns)

    def _gap(self) -> None:
        self._run = 0
        self._sums.gap()
        self._constant.gap()
        if self._filtered is not None:
            self._filtered.gap()

    def report(self) -> StabilityReport:
        """As of the readings so far; more may follow."""
        low = self._filtered.sums.results() if self._filtered else (None,) * len(self._intervals)
        pairs = list(zip(self._sums.results(), low, strict=True))
        constant, counts, reasons = self._constant.result(), self._counts, self._reasons()
        longest_run_ns = max(0, self._longest_run - 1) * self._interval_ns
        flat = self._flat()
        measured = MaskInput(flat, _curves(pairs, self._interval_ns), longest_run_ns / _NS_PER_S, reasons)
        return StabilityReport(
            interval_ns=self._interval_ns,
            begin_ns=self._begin_ns,
            end_ns=self._end_ns,
            samples=sum(counts.values()) - counts[ReadingPlace.EARLY],
            early=counts[ReadingPlace.EARLY],
            gaps=max(0, counts[ReadingPlace.AFTER_GAP] - 1),
            reference_changes=counts[ReadingPlace.OTHER_REFERENCE],
            longest_run_ns=longest_run_ns,
            max_abs_te_ns=None if self._begin_ns is None else self._max_abs,
            constant_te_ns=constant.newest_mean,
            worst_constant_te_ns=constant.worst_mean,
            constant_te_blocks=constant.count,
            max_abs_te_low_ns=flat.get(Quantity.MAX_TE_LOW),
            range_high_ns=flat.get(Quantity.RANGE_HIGH),
            deviations=tuple(_deviations(raw, low, self._interval_ns) for raw, low in pairs if raw.windows),
            verdicts=tuple(judge(mask, measured) for mask in MASKS),
            reasons={quantity.value: reason for quantity, reason in reasons.items()},
        )

    def _flat(self) -> dict[Quantity, float]:
        """The quantities that are one number; those that are unknown are left out."""
        filtered = self._filtered if self._filtered and self._filtered.samples else None
        values = {
            Quantity.MAX_TE: None if self._begin_ns is None else self._max_abs,
            Quantity.CONSTANT_TE: self._constant.result().worst_mean,
            Quantity.MAX_TE_LOW: filtered.max_abs_ns if filtered else None,
            Quantity.RANGE_HIGH: filtered.high.result().largest_range if filtered else None,
        }
        return {quantity: value for quantity, value in values.items() if value is not None}

    def _reasons(self) -> dict[Quantity, str]:
        """Of the quantities that this series cannot have."""
        reasons = {}
        if self._constant.result().count == 0:
            reasons[Quantity.CONSTANT_TE] = "no 1,000 s without a gap"
        filtered = (Quantity.MAX_TE_LOW, Quantity.MTIE_LOW, Quantity.TDEV_LOW, Quantity.RANGE_HIGH)
        if self._filtered is None:
            interval_s = self._interval_ns / _NS_PER_S
            slow = f"a reading each {interval_s:g} s: the filter of 0.1 Hz needs one a second or more"
            return reasons | dict.fromkeys(filtered, slow)
        if self._filtered.samples == 0:
            return reasons | dict.fromkeys(
                filtered, "no run of readings is longer than the filter needs to settle, 8 s"
            )
        if self._filtered.high.result().count == 0:
            reasons[Quantity.RANGE_HIGH] = "no 1,000 s without a gap after the filter settled"
        return reasons


class _Filtered:
    """The time error after the filter of 0.1 Hz: its low-passed part, and what the filter removes."""

    def __init__(self, interval_ns: int, intervals: Sequence[int]) -> None:
        self.sums = StabilitySums(intervals)
        self.high = BlockSums(interval_ns)
        self.max_abs_ns = 0.0
        self.samples = 0
        self._low_pass = LowPass(interval_ns)

    def add(self, te_ns: int) -> None:
        low = self._low_pass.add(te_ns)
        if low is None:
            return
        self.samples += 1
        self.max_abs_ns = max(self.max_abs_ns, abs(low))
        self.sums.add(round(low * _PARTS))
        self.high.add(te_ns - low)

    def gap(self) -> None:
        self._low_pass.gap()
        self.sums.gap()
        self.high.gap()


def _deviations(raw: IntervalSums, low: IntervalSums | None, interval_ns: int) -> Deviations:
    tau_ns = raw.interval_samples * interval_ns
    tdev_low = None if low is None else low.tdev
    mtie_low = None if low is None else low.mtie
    return Deviations(
        tau_ns=tau_ns,
        adev=raw.adev(tau_ns),
        tdev_ns=raw.tdev,
        mtie_ns=raw.mtie,
        tdev_low_ns=None if tdev_low is None else tdev_low / _PARTS,
        mtie_low_ns=None if mtie_low is None else mtie_low / _PARTS,
        terms=raw.windows,
    )


def _curves(pairs: list[tuple[IntervalSums, IntervalSums | None]], interval_ns: int) -> dict[Quantity, list[Point]]:
    curves: dict[Quantity, list[Point]] = {}
    for raw, low in pairs:
        tau_s = raw.interval_samples * interval_ns / _NS_PER_S
        for sums, mtie, tdev, parts in (
            (raw, Quantity.MTIE, Quantity.TDEV, 1),
            (low, Quantity.MTIE_LOW, Quantity.TDEV_LOW, _PARTS),
        ):
            if sums is None:
                continue
            if sums.mtie is not None:
                curves.setdefault(mtie, []).append(Point(tau_s, sums.mtie / parts, covered=True))
            if sums.tdev is not None:
                covered = sums.tdev_terms > _TDEV_TERMS_PER_SAMPLE * sums.interval_samples
                curves.setdefault(tdev, []).append(Point(tau_s, sums.tdev / parts, covered))
    return curves


def stability_of(readings: Iterable[Reading], longest_ns: int = LONGEST_NS) -> StabilityReport | None:
    """
    The report of readings in order of time; None for fewer than two at different times.

    The sampling interval is the median of the first thousand.
    """
    ordered: Iterator[Reading] = iter(readings)
    first = list(islice(ordered, _FIRST_READINGS))
    interval_ns = sampling_interval_ns(first)
    if interval_ns is None:
        return None
    meter = StabilityMeter(interval_ns, min(longest_ns, LONGEST_NS))
    for reading in chain(first, ordered):
        meter.add(reading)
    return meter.report()


@dataclass(frozen=True, slots=True)
class PairStability:
    """
    The report of two nodes' difference. `report` None: unknown, for `problem`. `references`: what both nodes were compared
    against; `left_out`: what was not compared, and why, as a sentence.
    """

    report: StabilityReport | None
    problem: str | None
    references: tuple[str, ...]
    left_out: str


def pair_stability(first: Iterable[Reading], second: Iterable[Reading], longest_ns: int = LONGEST_NS) -> PairStability:
    """Of `first` minus `second`, both in order of time, at the readings of the first that have a partner of the same reference."""
    ordered = iter(first)
    begin = list(islice(ordered, _FIRST_READINGS))
    pair = Pair(within_ns=(sampling_interval_ns(begin) or 0) // 2)
    report = stability_of(pair.differences(chain(begin, ordered), second), longest_ns)
    problem = pair.counts.problem() or (None if report else "fewer than two readings at equal times in this span")
    return PairStability(report, problem, tuple(pair.counts.references), pair.counts.left_out())
