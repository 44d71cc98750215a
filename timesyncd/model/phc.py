"""
The system clock relative to a PTP hardware clock (PHC): from readings of both to a link that carries a bound from one
to the other. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from timesyncd.bound import growth_ns
from timesyncd.clocks import NS_PER_S, STEP_TOLERANCE_NS
from timesyncd.model.oscillator import Oscillator
from timesyncd.model.servo import Steering, steering_ppb
from timesyncd.model.source import SourceSettings
from timesyncd.model.statistics import SlidingMaximum
from timesyncd.sample import PhcSample

#: The largest change of frequency is taken over this many readings.
_WINDOW = 20


@dataclass(frozen=True, slots=True)
class PhcLink:
    """
    CLOCK_REALTIME minus PHC was `offset_ns` +- `error_ns` at `as_of_ns` (CLOCK_BOOTTIME), and that error grows by
    `growth_ppb`.

    `stepped`: the difference moved by more than that since the last reading, so one of the two clocks was stepped.
    """

    as_of_ns: int
    offset_ns: int
    error_ns: int
    growth_ppb: int
    stepped: bool = False

    def error_at(self, boottime_ns: int) -> int:
        """The error at this moment, rounded up."""
        return self.error_ns + growth_ns(self.growth_ppb, max(0, boottime_ns - self.as_of_ns))


class PhcMemory:
    """Learns the rate of the two clocks' oscillators against each other, apart from what servos do to either clock."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._steering = Steering()
        self._oscillator = Oscillator()
        self._changes = SlidingMaximum()
        self._number = 0
        self._last: PhcLink | None = None

    def accept(self, sample: PhcSample) -> PhcLink:
        steering = self._steering
        steering.add_reading(sample.as_of_ns, _difference(sample))
        steering.add_innovation(0.0, 0.0)
        self._number += 1
        self._changes.push(self._number, steering.change_ppb)
        self._changes.expire(self._number - _WINDOW + 1)
        if steering.frequency_ppb is None:
            self._oscillator.interrupt()
        else:
            self._oscillator.add(sample.as_of_ns, sample.offset_ns - steering.steered_ns, -steering.frequency_ppb)
        link = PhcLink(sample.as_of_ns, sample.offset_ns, -(-sample.width_ns // 2), self._growth_ppb())
        last, self._last = self._last, link
        if last is not None and self._stepped(last, link):
            self._oscillator.interrupt()
            return replace(link, stepped=True)
        return link

    def interrupt(self) -> None:
        """A clock was stepped, or may have been: the next reading is not comparable with the last one."""
        self._oscillator.interrupt()
        self._last = None

    def _stepped(self, last: PhcLink, new: PhcLink) -> bool:
        growth_ppb = max(last.growth_ppb, new.growth_ppb)
        if self._oscillator.drift is None:
            growth_ppb += 2 * self._settings.local_drift_ppb
        explained_ns = last.error_ns + new.error_ns + growth_ppb * (new.as_of_ns - last.as_of_ns) // NS_PER_S
        return abs(new.offset_ns - last.offset_ns) > explained_ns + STEP_TOLERANCE_NS

    def _growth_ppb(self) -> int:
        drift, frequency_ppb, settings = self._oscillator.drift, self._steering.frequency_ppb, self._settings
        if frequency_ppb is None:
            return 2 * settings.local_drift_ppb + steering_ppb(None)
        steered_ppb = steering_ppb(self._changes.value)
        if drift is None:  # either oscillator may be off by the assumed drift
            return 2 * settings.local_drift_ppb + abs(frequency_ppb) + steered_ppb
        wander_ppb = max(drift.wander_ppb + 2 * drift.range_ppb, settings.drift_floor_ppb)
        return math.ceil(abs(drift.rate_ppb + frequency_ppb) + wander_ppb) + steered_ppb


def _difference(sample: PhcSample) -> int | None:
    """
    How much faster the system clock is made to run than the PHC, each relative to its own oscillator; None: not known.
    """
    if sample.system_frequency_ppb is None or sample.frequency_ppb is None:
        return None
    return sample.system_frequency_ppb - sample.frequency_ppb
