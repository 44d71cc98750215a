"""Grandmaster, network, local clock and ptp4l together: what a management client reads, beside the truth."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

from emulated_ptp4l import EmulatedPtp4l, PiServo
from grandmaster_clock import GrandmasterClock
from local_clock import NS_PER_S, LocalClock
from network_path import NetworkPath
from scenarios import Scenario

from timesyncd.clocks import RawReading
from timesyncd.model.replay import TraceRow

DELAY_INTERVAL_NS = NS_PER_S
ANNOUNCE_INTERVAL_NS = 2 * NS_PER_S
ANNOUNCE_RECEIPT_TIMEOUT = 3

#: The interval between two looks at the truth.
LOOK_INTERVAL_NS = 0.25 * NS_PER_S


class Instant(NamedTuple):
    """
    The truth at a reading (`is_reading`), or between two: its row is then empty. The errors are local minus reference, positive = ahead.

    `blind`: between a step of the grandmaster and the first reading that shows a Sync of after it nothing on the node can know.
    `frequency_ppb` and `raw` are what the clock and its oscillator show.
    """

    row: TraceRow
    is_reading: bool
    gm_error_ns: float
    utc_error_ns: float
    blind: bool
    frequency_ppb: int
    raw: RawReading


class Chain:
    """One seed of a scenario. Every event is at a true time; the earliest is next."""

    def __init__(self, scenario: Scenario, seed: int, seconds: float) -> None:
        self._scenario = scenario
        self._rng = rng = Random(f"{scenario.name}/{seed}")
        self._end_ns = seconds * NS_PER_S
        self.clock = LocalClock(scenario.oscillator, rng, error_ns=rng.uniform(-1e6, 1e6))
        self.grandmaster = GrandmasterClock(scenario.grandmaster, rng)
        self.path = NetworkPath(scenario.path, rng, seconds)
        self.ptp4l = EmulatedPtp4l(
            self.clock,
            PiServo(scenario.sync_interval_s, scenario.software),
            scenario.delay_filter_length,
            scenario.may_master,
        )
        self._blindness = Blindness(self.grandmaster.step_moments_ns)
        self._sync_sent_ns = rng.random() * scenario.sync_interval_s * NS_PER_S
        self._announce_timeout_ns = math.inf
        self._announce_timeout_ns = math.inf

    def instants(self) -> Iterator[Instant]:
        """Until the end of the time given. The clock runs until an event, which then acts and says when it is due next."""
        times, acts = self._schedule()
        while (now_ns := min(times)) < self._end_ns:
            if now_ns >= self._announce_timeout_ns:
                self._announce_timeout_ns = math.inf
                self.ptp4l.announce_timeout()
            event = times.index(now_ns)
            self.clock.advance(now_ns)
            times[event] = acts[event](now_ns)
            if acts[event] == self._read:
                self._blindness.read()
                yield self._instant(now_ns, self._row(), is_reading=True)
            elif acts[event] == self._look:
                yield self._instant(now_ns, TraceRow(self.clock.boottime_ns(), None), is_reading=False)

    def _schedule(self) -> tuple[list[float], list[Callable[[float], float]]]:
        """When each kind of event is due first, and what it does."""
        random = self._rng.random
        read_ns = self._scenario.read_interval_s * NS_PER_S
        firsts = [
            self._sync_arrival_ns(),
            random() * NS_PER_S,
            random() * ANNOUNCE_INTERVAL_NS,
            random() * read_ns,
            0.0,
        ]
        return firsts, [self._sync, self._delay_request, self._announce, self._read, self._look]

    def _sync_arrival_ns(self) -> float:
        return self._sync_sent_ns + self.path.forward_ns(self._sync_sent_ns)

    def _sync(self, now_ns: float) -> float:
        sent_ns = self._sync_sent_ns
        if self.grandmaster.lives(sent_ns) and not self.path.loses_sync(sent_ns):
            self.ptp4l.sync(sent_ns + self.grandmaster.error_ns(sent_ns), self.clock.read_ns())
            self._blindness.sync(sent_ns)
        self._sync_sent_ns += self._scenario.sync_interval_s * NS_PER_S
        return self._sync_arrival_ns()

    def _delay_request(self, now_ns: float) -> float:
        arrival_ns = now_ns + self.path.reverse_ns(now_ns)
        lost = self.path.loses(now_ns) or self.path.loses(now_ns)
        if self.grandmaster.lives(now_ns) and not lost:
            self.ptp4l.delay_response(self.clock.read_ns(), arrival_ns + self.grandmaster.error_ns(arrival_ns))
        return now_ns + self._rng.uniform(0, 2) * DELAY_INTERVAL_NS

    def _announce(self, now_ns: float) -> float:
        if self.grandmaster.lives(now_ns) and not self.path.loses(now_ns):
            self.ptp4l.announce(self.grandmaster.clock_class(now_ns), self.grandmaster.accuracy)
            intervals = ANNOUNCE_RECEIPT_TIMEOUT + self._rng.random()
            self._announce_timeout_ns = now_ns + intervals * ANNOUNCE_INTERVAL_NS
        return now_ns + ANNOUNCE_INTERVAL_NS

    def _read(self, now_ns: float) -> float:
        spread = self._scenario.read_spread
        return now_ns + self._scenario.read_interval_s * self._rng.uniform(1 - spread, 1 + spread) * NS_PER_S

    def _look(self, now_ns: float) -> float:
        return now_ns + LOOK_INTERVAL_NS

    def _instant(self, now_ns: float, row: TraceRow, is_reading: bool) -> Instant:
        error_ns = self.clock.error_ns
        gm_error_ns = error_ns - self.grandmaster.error_ns(now_ns)
        frequency_ppb, raw = -round(self.clock.slowed_ppb), self.clock.raw_reading()
        return Instant(row, is_reading, gm_error_ns, error_ns, self._blindness.at(now_ns), frequency_ppb, raw)

    def _row(self) -> TraceRow:
        ptp4l = self.ptp4l
        return TraceRow(
            self.clock.boottime_ns(),
            ptp4l.offset_ns,
            ptp4l.path_delay_ns,
            round(self.clock.slowed_ppb),
            ptp4l.port_state,
            ptp4l.gm_present,
            ptp4l.clock_class,
            ptp4l.clock_accuracy,
        )


class Blindness:
    """What no reading can show yet: a step of the grandmaster, from then until a reading that shows a Sync sent after it."""

    def __init__(self, gm_steps_ns: list[float]) -> None:
        self._gm_steps_ns = gm_steps_ns
        self._sync_ns = self._shown_sync_ns = 0.0

    def sync(self, sent_ns: float) -> None:
        self._sync_ns = sent_ns

    def read(self) -> None:
        self._shown_sync_ns = self._sync_ns

    def at(self, now_ns: float) -> bool:
        return _any_between(self._gm_steps_ns, self._shown_sync_ns, now_ns)


def _any_between(moments_ns: list[float], after_ns: float, until_ns: float) -> bool:
    """Of sorted moments."""
    return bisect_right(moments_ns, until_ns) > bisect_right(moments_ns, after_ns)
