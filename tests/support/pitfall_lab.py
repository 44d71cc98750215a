"""
What the traps' tests share: a ptp4l as its driver sees it, second by second, and simulated chains through the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from chain import Chain, Instant
from fake_clocks import FakeClocks
from scenarios import Scenario

from timesyncd.bound import ErrorBound, Interval, Reference, interval_now
from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.drivers.ptp4l._history import Ptp4lSnapshot, SyncHistory
from timesyncd.drivers.ptp4l._management import (
    CurrentDataSet,
    ParentDataSet,
    PortDataSet,
    PortStats,
    TimeProperties,
    TimeStatus,
)
from timesyncd.model.ensemble import Ensemble, EnsembleUpdate
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.model.replay import Replay, ReplayedRow
from timesyncd.sample import ClockSample, NoSample, PortState

GM = bytes.fromhex("ca2f53fffe4f308f")

#: Seconds with a Sync until the driver is primed and the delay filter was renewed.
UNTIL_BOUND_S = 13

_E2E = 1


@dataclass
class Ptp4l:
    """What management reports; a test changes it between two seconds."""

    offset_ns: int = 642
    path_delay_ns: int = 2_300
    ingress_ns: int = 0
    state: PortState = PortState.SLAVE
    parent: bytes = GM
    grandmaster: bytes = GM
    clock_class: int = 6
    messages: int = 100

    def sync(self, arrived_ns: int) -> None:
        """A Sync came, and a delay was measured."""
        self.ingress_ns = arrived_ns
        self.messages += 1

    def picture(self, clocks: FakeClocks) -> Ptp4lSnapshot:
        now = Moment(realtime_ns=clocks.real_ns, boottime_ns=clocks.boot_ns)
        status = TimeStatus(self.offset_ns, self.ingress_ns, self.grandmaster)
        counters = (self.messages,) * 16
        return Ptp4lSnapshot(
            before=now,
            status=status,
            port=PortDataSet(1, self.state, 0, 0, 0, _E2E, 0),
            parent=ParentDataSet(self.parent, 1, self.clock_class, 0x21, self.grandmaster),
            current=CurrentDataSet(1, self.path_delay_ns << 16),
            properties=TimeProperties(37, True, True, True, 0x20),
            stats=PortStats(counters, counters),
            status_again=status,
            read_ns=now.boottime_ns,
            real_minus_boot_ns=now.real_minus_boot_ns,
            frequency_ppb=0,
        )


@dataclass
class Node:
    """
    A ptp4l that is read once a second through the driver's history and the model; `published` is what the clock
    segment holds,
    `reading` what the last second gave.
    """

    ptp4l: Ptp4l = field(default_factory=Ptp4l)
    clocks: FakeClocks = field(default_factory=FakeClocks)
    ensemble: Ensemble = field(default_factory=lambda: Ensemble({"ptp": EnsembleSettings()}))
    published: ErrorBound | None = None
    reading: ClockSample | NoSample | None = None

    def __post_init__(self) -> None:
        self._history = SyncHistory("ptp")
        self._history.clock, self._history.granularity_ns = "realtime", 1

    def synced(self, seconds: int = UNTIL_BOUND_S) -> ErrorBound:
        """So many seconds with a Sync each; gives what is published then."""
        for _ in range(seconds):
            self.second()
        assert self.published is not None
        return self.published

    def silent(self, seconds: int) -> None:
        for _ in range(seconds):
            self.second(with_sync=False)

    def second(self, with_sync: bool = True) -> None:
        self.clocks.advance(NS_PER_S)
        if with_sync:
            self.ptp4l.sync(self.clocks.real_ns)
        self.read()

    def read(self) -> None:
        self.reading = self._history.take(self.ptp4l.picture(self.clocks))
        if self.reading is not None:
            self.take(self.ensemble.accept(self.reading))

    def restarted(self) -> None:
        """The driver received an answer of another instance."""
        self.take(self.ensemble.accept(self._history.restart(self.clocks.boot_ns)))

    def take(self, outcome: EnsembleUpdate) -> None:
        self.published = outcome.bound or self.published

    def seen(self, reference: Reference = Reference.GRANDMASTER) -> tuple[Interval, str]:
        """What a program on this node reads now, and why."""
        assert self.published is not None
        interval, reason = interval_now(self.published, reference, lambda: (self.clocks.real_ns, self.clocks.boot_ns))
        return interval, reason.text

    def width_ns(self) -> int | None:
        """Half the interval against the grandmaster."""
        earliest, latest, *_ = self.seen()[0]
        return None if earliest is None or latest is None else (latest - earliest) // 2


def replay(scenario: Scenario, seconds: float, seed: int = 0) -> list[tuple[Instant, ReplayedRow]]:
    """The readings of one seed from which something could be known, each with what the model made of it."""
    model = Replay()
    rows = [(each, model.accept(each.row)) for each in Chain(scenario, seed, seconds).instants() if each.is_reading]
    return [(instant, row) for instant, row in rows if not instant.blind]


def misses(rows: list[tuple[Instant, ReplayedRow]]) -> int:
    """Readings of which the truth lies outside the hard bound."""
    return sum(row.gm_hard_ns is not None and abs(instant.gm_error_ns) > row.gm_hard_ns for instant, row in rows)


def naive_ns(instant: Instant) -> int:
    """What would be believed without a memory: the size of the offset, and the path delay."""
    assert instant.row.offset_ns is not None and instant.row.path_delay_ns is not None
    return abs(instant.row.offset_ns) + instant.row.path_delay_ns
