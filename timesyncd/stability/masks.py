"""
The masks of ITU-T for clocks and networks as data, and their comparison with a measurement.

A figure is here only where two public sources agree on it. `Mask.unknown` names the others.
The editions compared are G.8272 (07/2025), G.8273.2 (2023) Amd. 2 (11/2025) and G.8271.1 (2022) Amd. 3 (05/2025).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Quantity(StrEnum):
    """What a limit is about. `_LOW` and `_HIGH`: after the first-order filter of 0.1 Hz."""

    MAX_TE = "max|TE|"
    CONSTANT_TE = "cTE"
    MAX_TE_LOW = "max|TE_L|"
    MTIE = "MTIE"
    TDEV = "TDEV"
    MTIE_LOW = "dTE_L MTIE"
    TDEV_LOW = "dTE_L TDEV"
    RANGE_HIGH = "dTE_H peak to peak"


class MaskOutcome(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    NOT_ENOUGH_DATA = "not enough data"
    #: Of a mask: no known limit fails, and the standard has one that is not known here.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Segment:
    """The limit `base_ns + slope * tau_s` for observation intervals tau in (after_s, until_s]; `until_s` None: without end."""

    after_s: float
    until_s: float | None
    base_ns: float
    slope_ns_per_s: float = 0.0

    def contains(self, tau_s: float) -> bool:
        return self.after_s < tau_s and (self.until_s is None or tau_s <= self.until_s)


@dataclass(frozen=True, slots=True)
class Limit:
    """One quantity's limit in ns: a number for all (`flat_ns`), or by observation interval. `source` is the clause or table."""

    quantity: Quantity
    source: str
    flat_ns: float | None = None
    segments: tuple[Segment, ...] = ()

    def at(self, tau_s: float) -> float | None:
        for segment in self.segments:
            if segment.contains(tau_s):
                return segment.base_ns + segment.slope_ns_per_s * tau_s
        return None


@dataclass(frozen=True, slots=True)
class Mask:
    """
    A named set of limits.

    `unknown` states which limits of the standard are not among them, and why: so the mask cannot be passed. `open` states which
    the standard itself leaves for further study.
    """

    name: str
    limits: tuple[Limit, ...]
    unknown: tuple[str, ...] = ()
    open: tuple[str, ...] = ()


_ONE_SOURCE = "unknown: only one public source states it"
_FURTHER_STUDY = "for further study in the standard"


def _prtc(name: str, max_te_ns: float, mtie: tuple[Segment, ...], tdev: tuple[Segment, ...], tables: str) -> Mask:
    """
    G.8272: clause 6.1 (time error) and 6.2 (wander), locked.

    Sources: allantools 2024.6 (`allantools/mask.py`), Red Hat's vse-sync-test (`vse_sync_pp/requirements.py`), and Kshana's
    transcription of the edition of 2025. They agree, but for where the TDEV of PRTC-A ends: 10,000 s, of the last.
    """
    mtie_table, tdev_table = tables.split(",")
    return Mask(
        name,
        (
            Limit(Quantity.MAX_TE, "G.8272, 6.1", max_te_ns),
            Limit(Quantity.MTIE, f"G.8272, {mtie_table}", segments=mtie),
            Limit(Quantity.TDEV, f"G.8272, {tdev_table}", segments=tdev),
        ),
    )


PRTC_A = _prtc(
    "G.8272 PRTC-A",
    100,
    (Segment(0.1, 273, 25, 0.275), Segment(273, None, 100)),
    (Segment(0.1, 100, 3), Segment(100, 1_000, 0, 0.03), Segment(1_000, 10_000, 30)),
    "Table 1,Table 3",
)
PRTC_B = _prtc(
    "G.8272 PRTC-B",
    40,
    (Segment(0.1, 54.5, 25, 0.275), Segment(54.5, None, 40)),
    (Segment(0.1, 100, 1), Segment(100, 500, 0, 0.01), Segment(500, 100_000, 5)),
    "Table 2,Table 4",
)


def _boundary_clock(
    letter: str, max_te_ns: float, constant_ns: float, mtie_ns: float, tdev_ns: float, high_ns: float | None
) -> Mask:
    """
    G.8273.2, 7.1: noise generation of a T-BC or T-TSC, constant temperature, ideal input.

    Sources: Calnex's one-page summary of G.8273.2 (page 10027019), Kshana's transcription of Tables 7-1 to 7-7 of the edition of
    2025, and for class C Red Hat's vse-sync-test. They agree on the figures here; on dTE_H of class C they do not.
    The tables begin at the packet interval or, for a 1PPS output, at 1 s.
    """
    limits = (
        Limit(Quantity.MAX_TE, "G.8273.2, Table 7-1", max_te_ns),
        Limit(Quantity.CONSTANT_TE, "G.8273.2, Table 7-3", constant_ns),
        Limit(Quantity.MTIE_LOW, "G.8273.2, Table 7-4", segments=(Segment(0, 1_000, mtie_ns),)),
        Limit(Quantity.TDEV_LOW, "G.8273.2, Table 7-5", segments=(Segment(0, 1_000, tdev_ns),)),
    )
    name = f"G.8273.2 class {letter}"
    if high_ns is None:
        return Mask(name, limits, ("dTE_H: unknown: public sources disagree (none, or 30 ns)",))
    return Mask(name, (*limits, Limit(Quantity.RANGE_HIGH, "G.8273.2, Table 7-7", high_ns)))


CLASS_A = _boundary_clock("A", 100, 50, 40, 4, 70)
CLASS_B = _boundary_clock("B", 70, 20, 40, 4, 70)
CLASS_C = _boundary_clock("C", 30, 10, 10, 2, None)

#: G.8273.2, Table 7-2: class D limits max|TE_L| alone. Sources: Calnex's one-page summary and its article on classes C and D.
CLASS_D = Mask(
    "G.8273.2 class D",
    (Limit(Quantity.MAX_TE_LOW, "G.8273.2, Table 7-2", 5),),
    open=(f"max|TE|, cTE, dTE_L and dTE_H: {_FURTHER_STUDY}",),
)

#: G.8271.1, 7.3.1: deployment case 1, class 4 applications. Sources of 1,100 ns: Calnex's one-page summary of G.8271.1 (page
#: 9470164) and Kshana's transcription of the edition of 2025.
POINT_C = Mask(
    "G.8271.1 point C",
    (Limit(Quantity.MAX_TE_LOW, "G.8271.1, 7.3.1", 1_100),),
    unknown=(f"dTE_L MTIE (Table 7-1) and dTE_H: {_ONE_SOURCE}",),
    open=(f"dTE_L TDEV: {_FURTHER_STUDY}",),
)

MASKS = (PRTC_A, PRTC_B, CLASS_A, CLASS_B, CLASS_C, CLASS_D, POINT_C)


@dataclass(frozen=True, slots=True)
class Point:
    """A quantity in ns at an observation interval. `covered`: the data contain enough of it to count as a pass."""

    tau_s: float
    value_ns: float
    covered: bool


@dataclass(frozen=True, slots=True)
class MaskInput:
    """What a mask is compared with. A quantity that is absent is unknown, for the reason in `reasons`."""

    flat: Mapping[Quantity, float]
    curves: Mapping[Quantity, Sequence[Point]]
    covered_s: float
    reasons: Mapping[Quantity, str]


@dataclass(frozen=True, slots=True)
class LimitVerdict:
    """
    How a measurement compares with one limit.

    `value_ns`, `limit_ns` and `tau_s` (None for a quantity without observation interval) are those of the worst point, the one
    with the largest value over limit; `reason` is set where there is not enough data.
    """

    quantity: Quantity
    source: str
    outcome: MaskOutcome
    value_ns: float | None = None
    limit_ns: float | None = None
    tau_s: float | None = None
    reason: str | None = None

    @property
    def margin_ns(self) -> float | None:
        """Positive: below the limit."""
        return None if self.value_ns is None or self.limit_ns is None else self.limit_ns - self.value_ns


@dataclass(frozen=True, slots=True)
class MaskVerdict:
    """
    `outcome` is a fail if any limit fails, and a pass only if all pass and none is unknown. `not_compared`: limits without a
    figure, and why.
    """

    mask: str
    outcome: MaskOutcome
    limits: tuple[LimitVerdict, ...]
    not_compared: tuple[str, ...]


#: A 1PPS measurement, by which the masks of clocks are defined, has a sample a second; a mask needs intervals that short.
_SHORTEST_S = 1.0
#: A number without an observation interval needs 1,000 s of data, over which G.8273.2 states it.
_FLAT_S = 1_000.0


def judge(mask: Mask, measured: MaskInput) -> MaskVerdict:
    """A fail needs one point above a limit; a pass needs data for each limit's observation intervals."""
    verdicts = tuple(
        _judge_curve(limit, measured) if limit.segments else _judge_flat(limit, measured) for limit in mask.limits
    )
    outcomes = {verdict.outcome for verdict in verdicts} | ({MaskOutcome.UNKNOWN} if mask.unknown else set())
    order = (MaskOutcome.FAIL, MaskOutcome.NOT_ENOUGH_DATA, MaskOutcome.UNKNOWN, MaskOutcome.PASS)
    worst = next(each for each in order if each in outcomes)
    return MaskVerdict(mask.name, worst, verdicts, mask.unknown + mask.open)


def _judge_flat(limit: Limit, measured: MaskInput) -> LimitVerdict:
    value, allowed = measured.flat.get(limit.quantity), limit.flat_ns
    if value is None or allowed is None:
        return _unknown(limit, measured)
    if abs(value) > allowed:
        return LimitVerdict(limit.quantity, limit.source, MaskOutcome.FAIL, abs(value), allowed)
    enough = measured.covered_s >= _FLAT_S
    reason = None if enough else f"{measured.covered_s:.0f} s without a gap, {_FLAT_S:.0f} s are needed"
    outcome = MaskOutcome.PASS if enough else MaskOutcome.NOT_ENOUGH_DATA
    return LimitVerdict(limit.quantity, limit.source, outcome, abs(value), allowed, reason=reason)


def _judge_curve(limit: Limit, measured: MaskInput) -> LimitVerdict:
    points = [
        (point, allowed)
        for point in measured.curves.get(limit.quantity, ())
        if (allowed := limit.at(point.tau_s)) is not None
    ]
    # A mean over few terms is no evidence in either direction; a range that occurred is.
    if limit.quantity in (Quantity.TDEV, Quantity.TDEV_LOW):
        points = [each for each in points if each[0].covered]
    if not points:
        return _unknown(limit, measured)
    worst, allowed = max(points, key=lambda each: each[0].value_ns / each[1])
    missing = None if worst.value_ns > allowed else _missing(limit, [point for point, _ in points if point.covered])
    outcome = (
        MaskOutcome.FAIL if worst.value_ns > allowed else MaskOutcome.NOT_ENOUGH_DATA if missing else MaskOutcome.PASS
    )
    return LimitVerdict(limit.quantity, limit.source, outcome, worst.value_ns, allowed, worst.tau_s, missing)


def _missing(limit: Limit, covered: Sequence[Point]) -> str | None:
    """Which observation intervals of the mask the data do not cover. An endless mask needs one interval in its last segment."""
    if not covered:
        return "no observation interval of the mask is covered"
    shortest_s, longest_s = covered[0].tau_s, covered[-1].tau_s
    if shortest_s > max(_SHORTEST_S, limit.segments[0].after_s):
        return f"observation intervals from {shortest_s:g} s only; the mask needs them from {_SHORTEST_S:g} s"
    last = limit.segments[-1]
    needed_s = last.after_s if last.until_s is None else last.until_s
    # Observation intervals double, so the last one below the mask's end may be half of it.
    if longest_s <= needed_s / 2 or (last.until_s is None and longest_s <= needed_s):
        return f"observation intervals to {longest_s:g} s only; the mask needs them to {needed_s:g} s"
    return None


def _unknown(limit: Limit, measured: MaskInput) -> LimitVerdict:
    reason = measured.reasons.get(limit.quantity, "the data have no observation interval of the mask")
    return LimitVerdict(limit.quantity, limit.source, MaskOutcome.NOT_ENOUGH_DATA, reason=reason)
