"""
Grandmaster, network, PHC, system clock, ptp4l and what steers the system clock together: what the daemon's drivers read,
beside the truth of the system clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

from chain import ANNOUNCE_INTERVAL_NS, ANNOUNCE_RECEIPT_TIMEOUT, DELAY_INTERVAL_NS, LOOK_INTERVAL_NS, Blindness
from emulated_ptp4l import EmulatedPtp4l, PiServo, ServoState
from grandmaster_clock import GrandmasterClock
from hardware_scenarios import Discipline, HardwareScenario
from local_clock import NS_PER_S, LocalClock
from network_path import NetworkPath

from timesyncd.clocks import Moment, RawReading
from timesyncd.drivers.ptp4l._history import Ptp4lSnapshot, SyncHistory
from timesyncd.drivers.ptp4l._management import (
    CurrentDataSet,
    ParentDataSet,
    PortDataSet,
    PortStats,
    TimeProperties,
    TimeStatus,
)
from timesyncd.sample import ClockSample, DelayExchange, NoSample, PhcSample, PortState

REALTIME_EPOCH_NS = 1_700_000_000 * 10**9
BOOTTIME_EPOCH_NS = 1_000 * 10**9
TAI_NS = 37 * 10**9

Readings = tuple[ClockSample | PhcSample | NoSample, ...]

PTP, PHC = "ptp", "phc"
CLOCK = "phc:0"

#: phc2sys and chronyd reach the kernel's limit with the tick: 10 %, and chronyd's maxslewrate of 8.3 %.
PHC2SYS_LIMIT_PPB = 1e8
CHRONYD_LIMIT_PPB = 83_333_333.0
CHRONYD_INTERVAL_S = 16.0

#: The driver takes the shortest of so many windows, one after the other.
WINDOWS = 5

_GRANDMASTER = bytes.fromhex("001122fffe334455")
_OWN = bytes.fromhex("0a1122fffe334455")
_SYNCS_UNTIL_POLLING = 3


class HardwareInstant(NamedTuple):
    """
    The truth of the system clock where the daemon's sources gave `readings`, or between two of their readings. The errors
    are local minus reference, positive = ahead. `blind`: nothing on the node can know yet. `frequency_ppb` and `raw` are what the system
    clock and its oscillator show.
    """

    readings: Readings
    is_reading: bool
    boottime_ns: int
    real_minus_boot_ns: int
    gm_error_ns: float
    utc_error_ns: float
    blind: bool
    frequency_ppb: int
    raw: RawReading


class HardwareChain:
    """One seed of a scenario. Every event is at a true time; the earliest is next."""

    def __init__(self, scenario: HardwareScenario, seed: int, seconds: float | None = None) -> None:
        seconds = scenario.seconds if seconds is None else seconds
        self._scenario = scenario
        self._rng = rng = Random(f"{scenario.name}/{seed}")
        self._end_ns = seconds * NS_PER_S
        card = scenario.card
        self.phc = LocalClock(card.oscillator, rng, error_ns=rng.uniform(-1e6, 1e6))
        self.system = LocalClock(scenario.system, rng, error_ns=rng.uniform(-1e6, 1e6))
        self.grandmaster = GrandmasterClock(scenario.grandmaster, rng)
        self.path = NetworkPath(scenario.path, rng, seconds)
        servo = PiServo(scenario.sync_interval_s, False, card.max_adj_ppb, scenario.step_threshold_ns)
        self.ptp4l = EmulatedPtp4l(self.phc, servo)
        self._discipline = _discipline(self)
        self._blindness = Blindness(self.grandmaster.step_moments_ns)
        self._driver = Driver(self)
        self._sync_sent_ns = rng.random() * scenario.sync_interval_s * NS_PER_S
        self._pending: tuple[float, float, float] | None = None
        self._announce_timeout_ns = math.inf
        self._syncs = self._requests = 0
        self._exchanges: list[DelayExchange] = []

    @property
    def scenario(self) -> HardwareScenario:
        return self._scenario

    @property
    def rng(self) -> Random:
        return self._rng

    def instants(self) -> Iterator[HardwareInstant]:
        """Until the end of the time given."""
        self._times, acts = self._schedule()
        times = self._times
        while (now_ns := min(times)) < self._end_ns:
            if now_ns >= self._announce_timeout_ns:
                self._announce_timeout_ns = math.inf
                self.ptp4l.announce_timeout()
            event = times.index(now_ns)
            self.phc.advance(now_ns)
            self.system.advance(now_ns)
            times[event] = math.inf
            readings = acts[event](now_ns)
            for reading in readings:
                if isinstance(reading, ClockSample):
                    self._blindness.read()
            if readings or event == _LOOK:
                yield self._instant(now_ns, readings)

    def _schedule(self) -> tuple[list[float], list[Callable[[float], Readings]]]:
        """When each kind of event is due first, and what it does; an act sets when it is due next."""
        random = self._rng.random
        firsts = [
            self._sync_arrival_ns(),
            math.inf,
            random() * NS_PER_S,
            random() * ANNOUNCE_INTERVAL_NS,
            NS_PER_S,
            math.inf,
            math.inf if self._scenario.card.read_at_sync else random() * NS_PER_S,
            random() * NS_PER_S,
            0.0,
        ]
        acts: list[Callable[[float], Readings]] = [
            self._stamp,
            self._process,
            self._delay_request,
            self._announce,
            self._begin_reading,
            self._end_reading,
            self._read_phc,
            self._steer,
            self._look,
        ]
        return firsts, acts

    def _sync_arrival_ns(self) -> float:
        return self._sync_sent_ns + self.path.forward_ns(self._sync_sent_ns)

    def _stamp(self, now_ns: float) -> Readings:
        sent_ns = self._sync_sent_ns
        if self.grandmaster.lives(sent_ns) and not self.path.loses_sync(sent_ns):
            self._syncs += 1
            self._pending = sent_ns, sent_ns + self.grandmaster.error_ns(sent_ns), self.stamped(self.phc)
            self._times[_PROCESS] = now_ns + self._rng.uniform(*self._scenario.follow_up_s) * NS_PER_S
        self._sync_sent_ns += self._scenario.sync_interval_s * NS_PER_S
        self._times[_STAMP] = self._sync_arrival_ns()
        return ()

    def _process(self, now_ns: float) -> Readings:
        assert self._pending is not None
        sent_ns, t1_ns, t2_ns = self._pending
        if self.ptp4l.follows:
            self.ptp4l.sync(t1_ns, t2_ns)
            self._blindness.sync(sent_ns)
            ingress_ns = self.ptp4l.ingress_ns
            self._driver.ingress_ns = 0 if ingress_ns is None else REALTIME_EPOCH_NS + TAI_NS + round(ingress_ns)
            if self._rng.random() >= self._scenario.missed_share:
                self._times[_BEGIN] = now_ns + self._rng.uniform(*self._scenario.card.read_after_s) * NS_PER_S
        return ()

    def _delay_request(self, now_ns: float) -> Readings:
        arrival_ns = now_ns + self.path.reverse_ns(now_ns)
        lost = self.path.loses(now_ns) or self.path.loses(now_ns)
        self._requests += 1
        if self.grandmaster.lives(now_ns) and not lost and self.ptp4l.follows:
            t3_ns, t4_ns = self.stamped(self.phc), arrival_ns + self.grandmaster.error_ns(arrival_ns)
            self.ptp4l.delay_response(t3_ns, t4_ns)
            self._driver.responses += 1
            local_ns = REALTIME_EPOCH_NS + TAI_NS + round(t3_ns)
            self._exchanges.append(DelayExchange(local_ns, math.ceil(t4_ns - t3_ns)))
        self._times[_DELAY] = now_ns + self._rng.uniform(0, 2) * DELAY_INTERVAL_NS
        return ()

    def _announce(self, now_ns: float) -> Readings:
        if self.grandmaster.lives(now_ns) and not self.path.loses(now_ns):
            self.ptp4l.announce(self.grandmaster.clock_class(now_ns), self.grandmaster.accuracy)
            intervals = ANNOUNCE_RECEIPT_TIMEOUT + self._rng.random()
            self._announce_timeout_ns = now_ns + intervals * ANNOUNCE_INTERVAL_NS
        self._times[_ANNOUNCE] = now_ns + ANNOUNCE_INTERVAL_NS
        return ()

    def _begin_reading(self, now_ns: float) -> Readings:
        self._driver.begin(now_ns)
        self._times[_END] = now_ns + self._rng.uniform(0.000_3, 0.003) * NS_PER_S
        return ()

    def _end_reading(self, now_ns: float) -> Readings:
        reading = self._driver.end(self._syncs, self._requests)
        wait_s = self._scenario.sync_interval_s
        if not isinstance(reading, NoSample):  # ptp4l pushes its next Sync; where none comes the driver polls
            wait_s = _SYNCS_UNTIL_POLLING * max(wait_s, 0.5)
        self._times[_BEGIN] = min(self._times[_BEGIN], now_ns + wait_s * NS_PER_S)
        if reading is None:
            return ()
        if isinstance(reading, ClockSample) and self._scenario.monitored:
            reading.exchanges, self._exchanges = tuple(self._exchanges), []
        return (reading,)

    def _read_phc(self, now_ns: float) -> Readings:
        self._times[_READ_PHC] = now_ns + NS_PER_S * self._rng.uniform(1.0, 1.02)
        return (self._driver.phc_reading(PHC),)

    def _steer(self, now_ns: float) -> Readings:
        self._times[_STEER] = self._discipline(now_ns)
        return ()

    def _look(self, now_ns: float) -> Readings:
        self._times[_LOOK] = now_ns + LOOK_INTERVAL_NS
        return ()

    def _instant(self, now_ns: float, readings: Readings) -> HardwareInstant:
        error_ns = self.system.error_ns
        moment = self.moment()
        return HardwareInstant(
            readings,
            bool(readings),
            moment.boottime_ns,
            moment.real_minus_boot_ns,
            error_ns - self.grandmaster.error_ns(now_ns),
            error_ns,
            self._blindness.at(now_ns),
            -round(self.system.slowed_ppb),
            self.system.raw_reading(),
        )

    def moment(self) -> Moment:
        return Moment(
            realtime_ns=REALTIME_EPOCH_NS + round(self.system.read_ns()),
            boottime_ns=BOOTTIME_EPOCH_NS + self.system.boottime_ns(),
        )

    def stamped(self, clock: LocalClock) -> float:
        granularity_ns = self._scenario.card.granularity_ns
        return math.floor(clock.read_ns() / granularity_ns) * granularity_ns

    def phc2sys_offset_ns(self) -> float:
        """System clock minus PHC, as a reading of it shows."""
        half_ns = self._rng.uniform(*self._scenario.card.width_ns) / 2
        return self.system.error_ns - self.phc.error_ns + self._rng.uniform(-half_ns, half_ns)


_STAMP, _PROCESS, _DELAY, _ANNOUNCE, _BEGIN, _END, _READ_PHC, _STEER, _LOOK = range(9)


class Driver:
    """The driver ptp4l between its reading of the data sets and the sample: with the real history of Syncs."""

    def __init__(self, chain: HardwareChain) -> None:
        self._chain = chain
        self._history = SyncHistory(PTP)
        self._history.clock = CLOCK
        self._history.granularity_ns = chain.scenario.card.granularity_ns
        self._history.clock_identity = _OWN
        self._before: Moment | None = None
        self._status: TimeStatus | None = None
        self.ingress_ns = 0
        self.responses = 0

    def begin(self, now_ns: float) -> None:
        self._before, self._status = self._chain.moment(), self._time_status()

    def end(self, syncs: int, requests: int) -> ClockSample | NoSample | None:
        """The second half of a snapshot, and what the history makes of it."""
        assert self._before is not None and self._status is not None
        chain, ptp4l = self._chain, self._chain.ptp4l
        log_interval = round(math.log2(chain.scenario.sync_interval_s))
        phc = self.phc_reading(PTP) if chain.scenario.card.read_at_sync else None
        moment = chain.moment()
        follows = ptp4l.gm_present
        stats = (
            PortStats((syncs,) + (0,) * 8 + (self.responses,), (0, requests))
            if chain.scenario.counters_served
            else None
        )
        parent = _GRANDMASTER if follows else _OWN
        snapshot = Ptp4lSnapshot(
            before=self._before,
            status=self._status,
            port=PortDataSet(1, ptp4l.port_state, 0, 0, log_interval, 1, 0),
            parent=ParentDataSet(parent, 1, ptp4l.clock_class, ptp4l.clock_accuracy, parent),
            current=CurrentDataSet(1, ptp4l.path_delay_ns << 16),
            properties=TimeProperties(37, True, True, True, 0x20),
            stats=stats,
            status_again=self._time_status(),
            read_ns=moment.boottime_ns,
            real_minus_boot_ns=moment.real_minus_boot_ns,
            frequency_ppb=phc.frequency_ppb if phc else None,
            max_frequency_ppb=chain.scenario.card.max_adj_ppb if phc else None,
            phc=phc,
        )
        return self._history.take(snapshot)

    def _time_status(self) -> TimeStatus:
        ptp4l = self._chain.ptp4l
        return TimeStatus(ptp4l.offset_ns, self.ingress_ns, _GRANDMASTER if ptp4l.gm_present else _OWN)

    def phc_reading(self, source: str) -> PhcSample:
        """The narrowest of some windows in a row; the card's time may be that of any instant in it."""
        chain, rng = self._chain, self._chain.rng
        card, moment = chain.scenario.card, chain.moment()
        widths_ns = [rng.uniform(*card.width_ns) for _ in range(WINDOWS)]
        number = widths_ns.index(min(widths_ns))
        after_ns, width_ns = rng.uniform(200, 2_000) + sum(widths_ns[:number]), widths_ns[number]
        before, after = _later(chain.system, after_ns), _later(chain.system, after_ns + width_ns)
        card_ns = _later(chain.phc, after_ns + width_ns * rng.choice((0.0, 1.0, rng.random())))
        before_ns, width = REALTIME_EPOCH_NS + math.floor(before), math.ceil(after) - math.floor(before)
        return PhcSample(
            source=source,
            clock=CLOCK,
            as_of_ns=moment.boottime_ns,
            real_minus_boot_ns=moment.real_minus_boot_ns,
            offset_ns=(2 * before_ns + width) // 2 - (REALTIME_EPOCH_NS + TAI_NS + round(card_ns)),
            width_ns=width,
            method="extended",
            frequency_ppb=-round(chain.phc.slowed_ppb) if card.frequency_readable else None,
            system_frequency_ppb=-round(chain.system.slowed_ppb),
            max_frequency_ppb=card.max_adj_ppb,
        )


def _later(clock: LocalClock, by_ns: float) -> float:
    """The clock's time shortly after now."""
    return clock.read_ns() + by_ns * (1 + (clock.oscillator_ppb() - clock.slowed_ppb) / NS_PER_S)


def _discipline(chain: HardwareChain) -> Callable[[float], float]:
    """Acts on the system clock now, and says when it acts again."""
    kinds: dict[Discipline, Callable[[HardwareChain], Callable[[float], float]]] = {
        Discipline.NONE: _Nothing,
        Discipline.PHC2SYS: _Phc2sys,
        Discipline.CHRONYD: _Chronyd,
    }
    return kinds[chain.scenario.discipline](chain)


class _Nothing:
    def __init__(self, chain: HardwareChain) -> None:
        pass

    def __call__(self, now_ns: float) -> float:
        return math.inf


class _Phc2sys:
    """Once a second by the PHC; once, at the start, it steps."""

    def __init__(self, chain: HardwareChain) -> None:
        self._chain = chain
        self._servo = PiServo(1.0, False, PHC2SYS_LIMIT_PPB)

    def __call__(self, now_ns: float) -> float:
        chain = self._chain
        if chain.ptp4l.port_state is PortState.SLAVE:
            offset_ns = chain.phc2sys_offset_ns()
            state = self._servo.sample(offset_ns, chain.system.read_ns())
            if state is not ServoState.UNLOCKED:
                chain.system.slowed_ppb = self._servo.ppb
            if state is ServoState.JUMP:
                chain.system.step(-offset_ns)
        return now_ns + NS_PER_S * chain.rng.uniform(1.0, 1.002)


class _Chronyd:
    """
    It knows the oscillator's rate, and slews away what it takes for its offset, within a second or more. Its server
    may be wrong.
    """

    def __init__(self, chain: HardwareChain) -> None:
        self._chain = chain
        self._server_ns = 0.0
        self._changes_ns = 0.0
        self._update_ns = 0.0

    def __call__(self, now_ns: float) -> float:
        chain, rng = self._chain, self._chain.rng
        chain.system.slowed_ppb = chain.system.oscillator_ppb()
        if now_ns < self._update_ns:
            return self._update_ns
        if now_ns >= self._changes_ns:
            scenario = chain.scenario
            self._server_ns = rng.uniform(-scenario.wrong_ns, scenario.wrong_ns)
            self._changes_ns = now_ns + rng.expovariate(1 / scenario.server_changes_every_s) * NS_PER_S
        self._update_ns = now_ns + CHRONYD_INTERVAL_S * NS_PER_S
        offset_ns = chain.system.error_ns - self._server_ns + rng.gauss(0, 5_000)
        lasts_s = max(rng.choice((1.0, 1.0, rng.uniform(1, 8))), abs(offset_ns) / CHRONYD_LIMIT_PPB)
        chain.system.slowed_ppb += offset_ns / lasts_s
        return now_ns + lasts_s * NS_PER_S
