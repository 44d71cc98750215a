"""The model's bounds against the truth of a simulated chain: how often it gave one, how often that missed, and the worst."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from chain import Chain, Instant
from hardware_chain import HardwareInstant
from scenarios import Scenario

from timesyncd.bound import ErrorBound, published
from timesyncd.model.replay import Replay, ReplayedRow, TraceRow, bounds_at

#: Rows of the first two minutes, in which the servo locks, are judged, but may lack a bound.
LOCKED_AFTER_NS = 120_000_000_000


class PublishingReplay(Replay):
    """The model, and the bound that the daemon has published after a row."""

    def bound(self, newest: TraceRow) -> ErrorBound | None:
        return self._with_newest_grandmaster(newest)


class Reader:
    """A reader of the segment: it has what was published last, older, and measures how the clock was steered since."""

    def __init__(self) -> None:
        self._written: ErrorBound | None = None
        self._known: ErrorBound | None = None

    def read(self, written: ErrorBound | None, instant: Instant | HardwareInstant, at_ns: int) -> ReplayedRow:
        """`written` is what the daemon has published up to `at_ns`, the moment of the instant."""
        if written is not self._written:
            self._written = written
            self._known = written and published(written, at_ns, instant.frequency_ppb, instant.raw)
        return bounds_at(self._known, at_ns, instant.raw)


@dataclass(slots=True)
class Tally:
    """
    What was counted of one kind of bound. `worst` is the largest |truth| / bound, above 1 = a miss; `at_ns` is its row's time.
    `asked` and `given` count the rows after the servo has locked.
    """

    asked: int = 0
    given: int = 0
    judged: int = 0
    misses: int = 0
    worst: float = 0.0
    at_ns: int = 0
    widths_ns: list[int] = field(default_factory=list)

    def count(self, error_ns: float, bound_ns: int | None, at_ns: int) -> None:
        self.asked += at_ns >= LOCKED_AFTER_NS
        if bound_ns is None:
            return
        self.given += at_ns >= LOCKED_AFTER_NS
        self.judged += 1
        if at_ns >= LOCKED_AFTER_NS:
            self.widths_ns.append(bound_ns)
        size_ns = abs(error_ns)
        self.misses += size_ns > bound_ns
        if size_ns > self.worst * bound_ns:
            self.worst, self.at_ns = size_ns / bound_ns if bound_ns else float("inf"), at_ns

    @property
    def median_width_ns(self) -> float | None:
        """The median bound after the servo has locked; None: there was none."""
        return median(self.widths_ns) if self.widths_ns else None

    @property
    def given_share(self) -> float:
        return self.given / self.asked if self.asked else 0.0


@dataclass(slots=True)
class Judgement:
    """One seed's tallies: of the readings, and (`between`, the hard bound against the grandmaster) of the instants between them."""

    seed: int
    gm_hard: Tally = field(default_factory=Tally)
    gm_stat: Tally = field(default_factory=Tally)
    utc_hard: Tally = field(default_factory=Tally)
    utc_stat: Tally = field(default_factory=Tally)
    between: Tally = field(default_factory=Tally)

    @property
    def median_width_ns(self) -> float | None:
        """Of the bound against the grandmaster; where the scenario has none, of that against UTC."""
        return self.gm_hard.median_width_ns if self.gm_hard.judged else self.utc_hard.median_width_ns

    def count(self, instant: Instant | HardwareInstant, at_ns: int, replayed: ReplayedRow) -> None:
        if instant.blind:
            return
        gm_ns, utc_ns = instant.gm_error_ns, instant.utc_error_ns
        if not instant.is_reading:
            self.between.count(gm_ns, replayed.gm_hard_ns, at_ns)
            return
        self.gm_hard.count(gm_ns, replayed.gm_hard_ns, at_ns)
        self.gm_stat.count(gm_ns, replayed.gm_stat_ns, at_ns)
        self.utc_hard.count(utc_ns, replayed.utc_hard_ns, at_ns)
        self.utc_stat.count(utc_ns, replayed.utc_stat_ns, at_ns)


def replayed(scenario: Scenario, seed: int, seconds: float) -> Iterator[tuple[Instant, ReplayedRow]]:
    """Each instant with the bounds at it: at a reading decided from the rows up to it, between two as they age."""
    model, reader = PublishingReplay(), Reader()
    known: ErrorBound | None = None
    for instant in Chain(scenario, seed, seconds).instants():
        if instant.is_reading:
            yield instant, model.accept(instant.row)
            known = model.bound(instant.row)
        else:
            yield instant, reader.read(known, instant, instant.row.t_ns)


def judged(scenario: Scenario, seed: int, seconds: float) -> Judgement:
    judgement = Judgement(seed)
    for instant, row in replayed(scenario, seed, seconds):
        judgement.count(instant, instant.row.t_ns, row)
    return judgement
