"""
A PTP hardware clock (PHC) and the system clock: from readings of both to a bound on the system clock. Pure.

`SyncCrossing` carries each Sync over to the system clock by the PHC's reading right after it. What a servo does to the PHC
later is then of no interest: only the system clock's own frequency counts, and that is always readable.

`PhcMemory` makes a link from the readings of a source that reads the PHC apart from the Syncs. The link ages by all that
a servo may do to either clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from timesyncd.bound import SYSTEM_CLOCK_LIMIT_PPB, growth_ns
from timesyncd.clocks import NS_PER_S, STEP_TOLERANCE_NS
from timesyncd.model.assumptions import SourceSettings
from timesyncd.model.oscillator import Oscillator
from timesyncd.model.parent_bound import CarriedSync
from timesyncd.model.servo import FASTEST_SERVO_PPB, Steering, correction_ppb, steering_ppb
from timesyncd.model.statistics import SlidingMaximum
from timesyncd.sample import ClockSample, DelayExchange, PhcSample

#: The largest change of frequency is taken over this many readings.
_WINDOW = 20

#: Two readings of the PHC further apart than this many Sync intervals do not show its rate between them.
_MOST_INTERVALS = 2.5

#: Readings of two Syncs in a row are no further apart than this many Sync intervals.
_NEXT_INTERVALS = 1.5

#: A Sync shows in ptp4l's data sets at most so long after it was received.
_MOST_LATE_NS = NS_PER_S


class _Rate(NamedTuple):
    """
    System clock minus PHC moved at `ppb` between two readings, right within `error_ppb`. Meanwhile the system clock's
    frequency changed by `system_change_ppb`, and in response to the later Sync the PHC's by at most `correction_ppb`.
    """

    ppb: float
    error_ppb: float
    system_change_ppb: int
    correction_ppb: int


class SyncCrossing:
    """
    Carries the Syncs of one source over from the PHC to the system clock.

    A PHC keeps its frequency from one Sync to the next, since its servo acts at a Sync. So the rate between two
    readings holds back to the Sync, except for what the servo did in response to that Sync. What moved the clocks
    further than the rate before and the known changes explain may have done so between Sync and reading.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._last: tuple[ClockSample, PhcSample] | None = None
        self._offset_ns: int | None = None
        self._rate: _Rate | None = None
        self._newest: PhcSample | None = None

    def carry_over(self, sample: ClockSample, seconds_removed: int) -> tuple[ClockSample, CarriedSync] | None:
        """
        The same Sync as a sample of the system clock, and what the crossing adds to its error.

        `seconds_removed` is the PHC minus UTC. None: the PHC was not read, or it was stepped between Sync and reading.
        """
        reading, last = sample.phc, self._last
        before_ns, self._offset_ns = self._offset_ns, sample.offset_ns
        self._newest = reading
        self._last = None if reading is None else (sample, reading)
        if reading is None:
            return None
        latest_ns = reading.phc_ns + reading.width_ns - sample.ingress_time_ns
        if not 0 <= latest_ns <= reading.as_of_ns - sample.as_of_ns + _MOST_LATE_NS:
            self._last = None
            return None
        if last is not None and not self._is_next(last[1], reading, sample.sync_interval_ns):
            last = None
        corrected_ppb = self._correction_ppb(sample, before_ns, last)
        rate_ppb, age_ns = self._since_sync(sample, reading, last, latest_ns, corrected_ppb)
        difference_ns = reading.offset_ns - round(rate_ppb * latest_ns / NS_PER_S)
        offset_ns = difference_ns + seconds_removed * NS_PER_S
        half_ns = -(-reading.width_ns // 2)
        carried = CarriedSync(half_ns, age_ns, *_moved_ns(reading, last), corrected_ppb)
        return replace(
            sample,
            offset_ns=sample.offset_ns + offset_ns,
            ingress_time_ns=sample.ingress_time_ns + difference_ns,
            frequency_ppb=reading.system_frequency_ppb,
            max_frequency_ppb=SYSTEM_CLOCK_LIMIT_PPB,
            exchanges=_carried_exchanges(sample, reading, last, seconds_removed, half_ns + age_ns),
        ), carried

    def interrupt(self) -> None:
        """A clock was stepped: the next reading is not comparable with the last one."""
        self._last = self._offset_ns = self._rate = self._newest = None

    def unseen_ns(self, reading: PhcSample | None) -> int:
        """
        How far a reading without a Sync shows that the system clock moved, beyond what the rate up to the last Sync and the
        known changes of frequency explain.
        """
        last, self._newest = self._newest, reading or self._newest
        if last is None or reading is None or self._rate is None or last.clock != reading.clock:
            return 0
        apart_ns = reading.as_of_ns - last.as_of_ns
        return _unexplained_ns(self._rate, _rate_between(last, reading, 0), apart_ns, 0) if apart_ns > 0 else 0

    def _is_next(self, last: PhcSample, reading: PhcSample, sync_interval_ns: int) -> bool:
        """Whether these are readings of one PHC, not long after one another."""
        apart_ns = reading.as_of_ns - last.as_of_ns
        return last.clock == reading.clock and 0 < apart_ns <= _MOST_INTERVALS * max(sync_interval_ns, NS_PER_S)

    def _correction_ppb(
        self, sample: ClockSample, before_ns: int | None, last: tuple[ClockSample, PhcSample] | None
    ) -> int:
        """
        How far the servo may have changed the PHC's rate since the last reading: in response to this Sync, and as much at
        each one since then that was not read. The last offset was `before_ns`.
        """
        last_ns = sample.offset_ns if before_ns is None else before_ns
        corrected_ppb = correction_ppb(last_ns, sample.offset_ns, sample.sync_interval_ns)
        if last is not None and sample.phc is not None:
            corrected_ppb *= max(1, round(_syncs_apart(sample, sample.phc, last[1])))
        return corrected_ppb if sample.max_frequency_ppb is None else min(corrected_ppb, 2 * sample.max_frequency_ppb)

    def _since_sync(
        self,
        sample: ClockSample,
        reading: PhcSample,
        last: tuple[ClockSample, PhcSample] | None,
        latest_ns: int,
        corrected_ppb: int,
    ) -> tuple[float, int]:
        """
        The rate of system clock minus PHC since the Sync, and the error that its age makes at most, at `latest_ns` after
        it.
        """
        limit_ppb = FASTEST_SERVO_PPB if sample.max_frequency_ppb is None else sample.max_frequency_ppb
        if last is None:
            return 0.0, growth_ns(limit_ppb + 2 * self._settings.local_drift_ppb, latest_ns)
        before, new = self._rate, _rate_between(last[1], reading, corrected_ppb)
        self._rate = new
        apart_ns = reading.as_of_ns - last[1].as_of_ns
        unsure_ns = (reading.width_ns + last[1].width_ns) * latest_ns // (2 * apart_ns) + 1
        unseen_ns = 0 if before is None else _unexplained_ns(before, new, apart_ns, latest_ns)
        return new.ppb, growth_ns(corrected_ppb + new.system_change_ppb, latest_ns) + unsure_ns + unseen_ns


def _syncs_apart(sample: ClockSample, reading: PhcSample, last: PhcSample) -> float:
    """How many Sync intervals lie between two readings."""
    return (reading.as_of_ns - last.as_of_ns) / max(1, sample.sync_interval_ns)


def _rate_between(last: PhcSample, reading: PhcSample, corrected_ppb: int) -> _Rate:
    apart_ns = reading.as_of_ns - last.as_of_ns
    changed_ppb = SYSTEM_CLOCK_LIMIT_PPB
    if reading.system_frequency_ppb is not None and last.system_frequency_ppb is not None:
        changed_ppb = abs(reading.system_frequency_ppb - last.system_frequency_ppb)
    rate_ppb = (reading.offset_ns - last.offset_ns) * NS_PER_S / apart_ns
    error_ppb = (reading.width_ns + last.width_ns) * NS_PER_S / (2 * apart_ns)
    return _Rate(rate_ppb, error_ppb, changed_ppb, corrected_ppb)


def _unexplained_ns(before: _Rate, new: _Rate, apart_ns: int, latest_ns: int) -> int:
    """
    How far the clocks moved apart between two readings beyond what the rate before and the changes of frequency explain.
    """
    explained_ppb = before.error_ppb + new.error_ppb + before.system_change_ppb + new.system_change_ppb
    explained_ppb += before.correction_ppb + new.correction_ppb * latest_ns / apart_ns
    return math.ceil(max(0.0, abs(new.ppb - before.ppb) - explained_ppb) * apart_ns / NS_PER_S)


def _moved_ns(reading: PhcSample, last: tuple[ClockSample, PhcSample] | None) -> tuple[int | None, int]:
    """How far system clock minus PHC moved since the last Sync's reading (None: not known), and the error of that."""
    if last is None:
        return None, 0
    return reading.offset_ns - last[1].offset_ns, -(-(reading.width_ns + last[1].width_ns) // 2)


def _carried_exchanges(
    sample: ClockSample,
    reading: PhcSample,
    last: tuple[ClockSample, PhcSample] | None,
    seconds_removed: int,
    error_ns: int,
) -> tuple[DelayExchange, ...]:
    """
    The exchanges since the last reading, on the system clock: its difference to the PHC lay between those of the two
    readings, and moved further only by what was done to the system clock. None where a Sync between the readings was not
    read: at that one the PHC's servo may have turned.
    """
    if last is None or not sample.exchanges or _syncs_apart(sample, reading, last[1]) > _NEXT_INTERVALS:
        return ()
    since = last[1]
    error_ns += growth_ns(_rate_between(since, reading, 0).system_change_ppb, reading.as_of_ns - since.as_of_ns)
    lowest_ns = min(since.offset_ns, reading.offset_ns) + seconds_removed * NS_PER_S
    lowest_ns -= error_ns + -(-since.width_ns // 2)
    return tuple(
        DelayExchange(exchange.local_ns + reading.offset_ns, exchange.reverse_ns - lowest_ns)
        for exchange in sample.exchanges
        if since.phc_ns <= exchange.local_ns <= reading.phc_ns
    )


@dataclass(frozen=True, slots=True)
class PhcLink:
    """
    CLOCK_REALTIME minus PHC was `offset_ns` +- `error_ns` at `as_of_ns` (CLOCK_BOOTTIME), and that error grows by
    `growth_ppb`; None: by an unknown rate, since neither the PHC's frequency nor its limit can be read.

    `stepped`: the difference moved by more than that since the last reading, so one of the two clocks was stepped.
    `system_frequency_ppb` is CLOCK_REALTIME's frequency as of then (None: not known).
    """

    as_of_ns: int
    offset_ns: int
    error_ns: int
    growth_ppb: int | None
    stepped: bool = False
    system_frequency_ppb: int | None = None

    def age_ns(self, boottime_ns: int) -> int | None:
        """How far the two clocks may have moved apart unread until this moment, rounded up; None: by anything."""
        return None if self.growth_ppb is None else growth_ns(self.growth_ppb, max(0, boottime_ns - self.as_of_ns))


class PhcMemory:
    """Learns the rate of the two clocks' oscillators against each other, apart from what servos do to either clock."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._steering = Steering()
        self._oscillator = Oscillator()
        self._changes = SlidingMaximum()
        self._number = 0
        self._last: PhcLink | None = None
        self._first: tuple[int, float] | None = None
        self._sample: PhcSample | None = None

    def accept(self, sample: PhcSample) -> PhcLink:
        steering, limit_ppb = self._steering, _limit_ppb(sample)
        self._sample = sample
        self._add_frequency(sample.as_of_ns, sample)
        if steering.frequency_ppb is None:
            self._oscillator.interrupt()
            self._first = None
        else:
            unsteered_ns = sample.offset_ns - steering.steered_ns
            self._oscillator.add(sample.as_of_ns, unsteered_ns, -steering.frequency_ppb)
            self._first = self._first or (sample.as_of_ns, unsteered_ns)
        growth_ppb = self._growth_ppb(sample, limit_ppb)
        error_ns, frequency_ppb = -(-sample.width_ns // 2), sample.system_frequency_ppb
        link = PhcLink(sample.as_of_ns, sample.offset_ns, error_ns, growth_ppb, system_frequency_ppb=frequency_ppb)
        last, self._last = self._last, link
        if last is not None and self._stepped(last, link):
            self._oscillator.interrupt()
            self._first = None
            return replace(link, stepped=True)
        return link

    def accept_frequency(self, boottime_ns: int, frequency_ppb: int) -> PhcLink | None:
        """
        The PHC's frequency as a Sync shows it: the last link ages by it, from its reading on. None: there is no link.
        """
        if self._last is None or self._sample is None:
            return None
        sample = replace(self._sample, frequency_ppb=frequency_ppb)
        self._add_frequency(boottime_ns, sample)
        growth_ppb = self._growth_ppb(sample, _limit_ppb(sample))
        if growth_ppb is not None and self._last.growth_ppb is not None:
            growth_ppb = max(growth_ppb, self._last.growth_ppb)
        self._last = replace(self._last, growth_ppb=growth_ppb)
        return self._last

    def interrupt(self) -> None:
        """A clock was stepped, or may have been: the next reading is not comparable with the last one."""
        self._oscillator.interrupt()
        self._last = self._first = self._sample = None

    def _add_frequency(self, boottime_ns: int, sample: PhcSample) -> None:
        self._steering.add_reading(boottime_ns, _difference(sample), _limit_ppb(sample) or FASTEST_SERVO_PPB)
        self._steering.add_innovation(0.0, 0.0)
        self._number += 1
        self._changes.push(self._number, self._steering.change_ppb)
        self._changes.expire(self._number - _WINDOW + 1)

    def _stepped(self, last: PhcLink, new: PhcLink) -> bool:
        if last.growth_ppb is None or new.growth_ppb is None:
            return False  # whatever moved may have been slewed
        growth_ppb = max(last.growth_ppb, new.growth_ppb)
        if self._oscillator.drift is None:
            growth_ppb += 2 * self._settings.local_drift_ppb
        explained_ns = last.error_ns + new.error_ns + growth_ppb * (new.as_of_ns - last.as_of_ns) // NS_PER_S
        return abs(new.offset_ns - last.offset_ns) > explained_ns + STEP_TOLERANCE_NS

    def _growth_ppb(self, sample: PhcSample, limit_ppb: int | None) -> int | None:
        drift, frequency_ppb, settings = self._oscillator.drift, self._steering.frequency_ppb, self._settings
        if frequency_ppb is None:
            return None if limit_ppb is None else 2 * settings.local_drift_ppb + limit_ppb
        steered_ppb = steering_ppb(self._changes.value, limit_ppb or FASTEST_SERVO_PPB)
        if drift is None:
            return self._unlearned_ppb(sample) + abs(frequency_ppb) + steered_ppb
        wander_ppb = max(drift.wander_ppb + 2 * drift.range_ppb, settings.drift_floor_ppb)
        return math.ceil(abs(drift.rate_ppb + frequency_ppb) + wander_ppb) + steered_ppb

    def _unlearned_ppb(self, sample: PhcSample) -> int:
        """
        Either oscillator may be off by the assumed drift; and the two run apart at least as the readings in hand show.
        """
        assumed_ppb = 2 * self._settings.local_drift_ppb
        if self._first is None or self._first[0] == sample.as_of_ns:
            return assumed_ppb
        elapsed_ns = sample.as_of_ns - self._first[0]
        moved_ns = abs(sample.offset_ns - self._steering.steered_ns - self._first[1])
        if moved_ns * NS_PER_S <= assumed_ppb * elapsed_ns:
            return assumed_ppb
        return math.ceil((moved_ns + sample.width_ns) * NS_PER_S / elapsed_ns)


def _limit_ppb(sample: PhcSample) -> int | None:
    """
    How far servos can make the two clocks run apart, in ppb: by the limit of each clock whose frequency cannot be read,
    or else its frequency. None: the PHC's limit is not known either.
    """
    phc_ppb = sample.frequency_ppb if sample.max_frequency_ppb is None else sample.max_frequency_ppb
    return None if phc_ppb is None else abs(phc_ppb) + SYSTEM_CLOCK_LIMIT_PPB


def _difference(sample: PhcSample) -> int | None:
    """
    How much faster the system clock is made to run than the PHC, each relative to its own oscillator; None: not known.
    """
    if sample.system_frequency_ppb is None or sample.frequency_ppb is None:
        return None
    return sample.system_frequency_ppb - sample.frequency_ppb
