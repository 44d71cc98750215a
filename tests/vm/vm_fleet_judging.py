"""How far the clocks of two nodes are apart, beside what the hub says, and when the ranks on them are released. Pure."""

from __future__ import annotations

import bisect
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vm_truth import MachineLog, Series, Value, Verdict


class Answer(NamedTuple):
    """What the hub said of the alignment while this machine's CLOCK_MONOTONIC_RAW went from `before_ns` to `after_ns`."""

    before_ns: int
    after_ns: int
    alignment_ns: int | None
    reason: str


class Apart(NamedTuple):
    """
    An answer beside the truth, at the moment `at` (host ticks) at which it came. `apart_ns`: how far the nodes' system clocks were
    apart, +- `error_ns`.
    """

    answer: Answer
    at: float
    verdict: Verdict
    apart_ns: float | None = None
    error_ns: float | None = None


class Line(NamedTuple):
    """A line of guest/rank.py."""

    step: int
    released_raw_ns: int
    instant_ns: int
    mode: str
    reason: str
    straggler: int | None
    alignment_ns: int | None


class Release(NamedTuple):
    """How long the second rank was released after the first one, in truth, +- `error_ns`; and what the hub's alignment was."""

    step: int
    skew_ns: float
    error_ns: float
    alignment_ns: int | None


class HostLog:
    """The log of `clocktruth log` of this machine: CLOCK_MONOTONIC_RAW on the scale of its own counter."""

    def __init__(self, lines: Iterable[str]) -> None:
        rows = [[int(cell) for cell in cells] for line in lines if len(cells := line.split()) == 9]
        self._raw_ns = [row[5] for row in rows]
        self._at = [(row[3] + row[4]) / 2 for row in rows]

    def moment_of(self, raw_ns: int) -> float | None:
        """None: outside of the log."""
        index = bisect.bisect(self._raw_ns, raw_ns)
        if not 0 < index < len(self._raw_ns):
            return None
        first, second = self._raw_ns[index - 1], self._raw_ns[index]
        share = (raw_ns - first) / (second - first)
        return self._at[index - 1] + share * (self._at[index] - self._at[index - 1])


def judged_alignment(answers: Iterable[Answer], host: HostLog, one: Series, other: Series) -> list[Apart]:
    """Each answer at the moment it came; those outside of the logs are left out."""
    found = []
    for answer in answers:
        at = host.moment_of(answer.after_ns)
        if at is not None:
            found.append(_judged(answer, at, one.value_at(at), other.value_at(at)))
    return found


def _judged(answer: Answer, at: float, one: Value | None, other: Value | None) -> Apart:
    if answer.alignment_ns is None:
        return Apart(answer, at, Verdict.UNKNOWN)
    if one is None or other is None:
        return Apart(answer, at, Verdict.NO_TRUTH)
    lowest, highest = one.low - other.high, one.high - other.low
    apart_ns, error_ns = abs(lowest + highest) / 2, (highest - lowest) / 2
    if apart_ns - error_ns > answer.alignment_ns:
        verdict = Verdict.MISSED
    else:
        verdict = Verdict.HELD if apart_ns + error_ns <= answer.alignment_ns else Verdict.OPEN
    return Apart(answer, at, verdict, apart_ns, error_ns)


def parse_lines(text: str) -> list[Line]:
    """Lines that are not whole are left out."""
    return [_line(cells) for line in text.splitlines() if len(cells := line.split()) == 7]


def _line(cells: Sequence[str]) -> Line:
    step, released, instant, mode, reason, straggler, alignment = cells
    return Line(int(step), int(released), int(instant), mode, reason, _number(straggler), _number(alignment))


def _number(cell: str) -> int | None:
    return None if cell == "None" else int(cell)


def releases(ranks: Sequence[Sequence[Line]], logs: Sequence[MachineLog]) -> list[Release]:
    """Of the steps of both ranks that the logs reach."""
    of_second = {line.step: line for line in ranks[1]}
    found = []
    for first in ranks[0]:
        second = of_second.get(first.step)
        if second is None:
            continue
        moments = [log.moment_of_raw(line.released_raw_ns) for log, line in zip(logs, (first, second), strict=True)]
        if moments[0] is None or moments[1] is None:
            continue
        skew_ticks = (moments[1].low + moments[1].high - moments[0].low - moments[0].high) / 2
        error_ticks = (moments[0].width + moments[1].width) / 2
        ticks = logs[0].ticks_per_ns
        found.append(Release(first.step, skew_ticks / ticks, error_ticks / ticks, first.alignment_ns))
    return found


@dataclass(frozen=True)
class Summary:
    """What the answers of a part of the run amount to."""

    verdicts: dict[str, int]
    reasons: dict[str, int]
    median_alignment_ns: float | None
    largest_alignment_ns: int | None
    largest_apart_ns: float | None
    nearest: float | None
    median_error_ns: float | None


def summary(found: Sequence[Apart]) -> Summary:
    known = [each for each in found if each.apart_ns is not None and each.error_ns is not None]
    said = [each.answer.alignment_ns for each in known if each.answer.alignment_ns is not None]
    apart = [each.apart_ns for each in known if each.apart_ns is not None]
    return Summary(
        dict(Counter(each.verdict.name for each in found)),
        dict(Counter(each.answer.reason for each in found if each.answer.reason != "ok")),
        statistics.median(said) if said else None,
        max(said, default=None),
        max(apart, default=None),
        max((one / other for one, other in zip(apart, said, strict=True) if other), default=None),
        statistics.median(each.error_ns for each in known if each.error_ns is not None) if known else None,
    )


def skew_summary(found: Sequence[Release]) -> Mapping[str, float | int]:
    """Of what is known: absolute skews in ns, and how many were larger than the alignment of that moment."""
    if not found:
        return {"releases": 0}
    skews = sorted(abs(each.skew_ns) for each in found)
    return {
        "releases": len(skews),
        "median_ns": statistics.median(skews),
        "p90_ns": skews[round(0.9 * (len(skews) - 1))],
        "largest_ns": skews[-1],
        "median_error_ns": statistics.median(each.error_ns for each in found),
        "median_alignment_ns": statistics.median([each.alignment_ns for each in found if each.alignment_ns] or [0]),
        "beyond_alignment": sum(
            each.alignment_ns is not None and abs(each.skew_ns) - each.error_ns > each.alignment_ns for each in found
        ),
    }
