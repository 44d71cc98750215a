"""What a fault did, and whether that is allowed. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from csv import DictReader
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

NS_PER_S = 1_000_000_000

#: The goals of every fault.
RECOVERED_WITHIN_S = 15.0
LOST_AT_MOST_S = 1.0

#: (from, to) on CLOCK_REALTIME.
Span = tuple[int, int]


@dataclass
class Record:
    """
    What was measured: readings of the clock and how many were wrong, the seconds of samples that are lost, the ids of
    the findings that were raised, and how long after the fault the last part worked again (None: one never did).
    `recovered` names each part with its time.
    """

    intervals: int = 0
    wrong: int = 0
    lost_s: float | None = None
    reported: frozenset[str] = frozenset()
    recovered: dict[str, float | None] = field(default_factory=dict)

    @property
    def recovery_s(self) -> float | None:
        times = list(self.recovered.values())
        return None if not times or None in times else max(time for time in times if time is not None)


def lost_s(samples: Sequence[int], began_ns: int, ended_ns: int, absent: Collection[Span] = ()) -> float:
    """
    The longest stretch without a stored sample from `began_ns` to the first sample after `ended_ns`, beyond what is
    usual. While the daemon did not run (`absent`) there were no samples to lose.
    """
    if len(samples) < 2:
        return (ended_ns - began_ns) / NS_PER_S
    gaps = list(pairwise(samples))
    usual_ns = median(end - begin for begin, end in gaps)
    if samples[0] > began_ns:
        gaps.append((began_ns, samples[0]))
    if samples[-1] < ended_ns:
        gaps.append((samples[-1], ended_ns))
    during = [(begin, end) for begin, end in gaps if end > began_ns and begin < ended_ns]
    longest_ns = max((end - begin - _covered_ns((begin, end), absent) for begin, end in during), default=0)
    return max(0.0, (longest_ns - usual_ns) / NS_PER_S)


def _covered_ns(gap: Span, absent: Collection[Span]) -> int:
    return sum(max(0, min(gap[1], end) - max(gap[0], begin)) for begin, end in absent)


def record_of_machine(result: Mapping[str, Any], samples: Iterable[str], lasts_ns: int) -> Record:
    """
    What tests/vm/vm_soak.py measured in a virtual machine: its claims against the true time, its node's findings, and of the last
    `lasts_ns` of its samples (CSV) the longest stretch without one. `as_of_ns` counts no step.
    """
    tallies = result["tallies"]
    times = sorted(int(row["as_of_ns"]) for row in DictReader(samples))
    return Record(
        intervals=sum(each["judged"] for each in tallies),
        wrong=sum(each["missed"] for each in tallies),
        lost_s=lost_s(times, times[-1] - lasts_ns, times[-1]) if times else None,
        reported=frozenset(result["findings"]),
    )


def failures(record: Record, must_report: Collection[str], may_report: Collection[str]) -> list[str]:
    """Each goal that was missed, in words; empty: none."""
    found = [f"{record.wrong} of {record.intervals} intervals without the true time"] if record.wrong else []
    if not record.intervals:
        found.append("the clock was not read")
    if record.lost_s is not None and record.lost_s > LOST_AT_MOST_S:
        found.append(f"{record.lost_s:.1f} s of samples lost")
    if unreported := set(must_report) - record.reported:
        found.append(f"not reported: {', '.join(sorted(unreported))}")
    if false := record.reported - set(must_report) - set(may_report):
        found.append(f"reported falsely: {', '.join(sorted(false))}")
    for part, time_s in record.recovered.items():
        if time_s is None:
            found.append(f"{part} did not recover")
        elif time_s > RECOVERED_WITHIN_S:
            found.append(f"{part} recovered after {time_s:.1f} s")
    return found


@dataclass(frozen=True)
class Row:
    """One line of the table. `not_run` is why the fault was not tried, "" where it was."""

    group: str
    name: str
    record: Record = field(default_factory=Record)
    failed: tuple[str, ...] = ()
    not_run: str = ""

    @property
    def is_good(self) -> bool:
        return not self.failed and not self.not_run


HEAD = ("fault", "intervals", "without the true time", "samples lost", "reported", "recovery", "verdict")


def table(rows: Sequence[Row]) -> str:
    """In Markdown."""
    lines = [HEAD, tuple("---" for _ in HEAD), *(_cells(row) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(row: Row) -> tuple[str, ...]:
    name = f"{row.group}: {row.name}"
    if row.not_run:
        return (name, "", "", "", "", "", f"not run: {row.not_run}")
    record = row.record
    lost = "" if record.lost_s is None else f"{record.lost_s:.1f} s"
    recovery = "" if record.recovery_s is None else f"{record.recovery_s:.1f} s"
    reported = ", ".join(f"`{id}`" for id in sorted(record.reported)) or "nothing"
    verdict = "; ".join(row.failed) or "held"
    return (name, f"{record.intervals:,}", str(record.wrong), lost, reported, recovery, verdict)
