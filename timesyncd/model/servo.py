"""
What a servo did to a clock, from the frequencies that were read: how far it moved the clock, and with what uncertainty.
Pure.
"""

from __future__ import annotations

import math

from timesyncd.clocks import NS_PER_S
from timesyncd.model.statistics import OUTLIER_FACTOR, RobustMean

#: No servo moves a clock faster than this: it is beyond the max_adj of any card, and beyond linuxptp's max_frequency.
FASTEST_SERVO_PPB = 10**9

#: linuxptp's limits of a PI servo's gains (pi_proportional_norm_max, pi_integral_norm_max), per Sync interval.
_PROPORTIONAL_GAIN = 1
_INTEGRAL_GAIN = 2

#: Between two readings, a servo that reacts to an offset may have been this many times faster than the change it shows
#: at their ends,
_UNSEEN_FACTOR = 3.0

#: or react this many times more strongly than its usual changes show,
_GAIN_FACTOR = 1.5

#: or have an integral gain of this share of the proportional one (ptp4l's are 0.43 and less),
_INTEGRAL_SHARE = 0.3

#: and leaves at least e to the minus this power of the offset that it corrects.
_MAX_CORRECTION_EXPONENT = 6.0

#: A frequency is applied at a Sync, so it changed at most this long before it was read, if Syncs arrive at all.
_MAX_UNREAD_NS = 2 * NS_PER_S


def in_own_seconds_ppb(frequency_ppb: int) -> int:
    """
    How far a clock that runs by this faster than its oscillator moves in each of its own seconds, in which all ages count. A
    clock that is slowed by 10 % loses 111 ms in each. Below 30 ppm it is the same.
    """
    run_ppb = NS_PER_S + frequency_ppb
    return -FASTEST_SERVO_PPB if run_ppb <= 0 else round(frequency_ppb * NS_PER_S / run_ppb)


class Steering:
    """
    Sums frequency times time. A reading's frequency holds from then on; `frequency_ppb` is how much further the clock is
    made to run in each of its own seconds.

    `steered_ns` is how far the clock was moved since the first reading, right within `uncertainty_ns`. Both are only
    compared with earlier values of their own.
    """

    def __init__(self) -> None:
        self.frequency_ppb: int | None = None
        self.frequency_before_ppb: int | None = None
        self.steered_ns = 0.0
        self.uncertainty_ns = 0.0
        self.phase_uncertainty_ns = 0.0
        self.change_ppb = 0.0
        self._limit_ppb = FASTEST_SERVO_PPB
        self._time_ns: int | None = None
        self._usual_change_ppb = RobustMean()
        self._unread_ns = 0

    def add_reading(self, time_ns: int, frequency_ppb: int | None, limit_ppb: int = FASTEST_SERVO_PPB) -> None:
        """
        The frequency as read at `time_ns` of the steered clock; None = it could not be read.

        `limit_ppb` is the most that the servo may have made of it since the last reading, where that was not read.
        """
        before, last_ns = self.frequency_ppb, self._time_ns
        self.frequency_ppb, self._time_ns, self.frequency_before_ppb = frequency_ppb, time_ns, before
        self._limit_ppb = limit_ppb
        self.change_ppb, self._unread_ns = 0.0, 0
        if last_ns is None:
            return
        if before is None or frequency_ppb is None:
            self.change_ppb = limit_ppb
            self.uncertainty_ns += limit_ppb * abs(time_ns - last_ns) / NS_PER_S
            return
        # A time that goes back is subtracted again: a Sync may be reported late, after a reading of the frequency
        # alone.
        self.steered_ns += before * (time_ns - last_ns) / NS_PER_S
        self.change_ppb = float(abs(frequency_ppb - before))
        self._unread_ns = min(max(0, time_ns - last_ns), _MAX_UNREAD_NS)
        self.phase_uncertainty_ns = 1.5 * self._usual_change_ppb.value * self._unread_ns / NS_PER_S

    def steered_at(self, time_ns: int) -> float:
        """How far the clock had been moved shortly before or after the newest reading."""
        if self._time_ns is None or self.frequency_ppb is None:
            return self.steered_ns
        before_ppb = self.frequency_ppb if self.frequency_before_ppb is None else self.frequency_before_ppb
        later_ns = time_ns - self._time_ns
        return self.steered_ns + (before_ppb if later_ns < 0 else self.frequency_ppb) * later_ns / NS_PER_S

    def add_innovation(self, innovation_ns: float | None, noise_ns: float, offsets_ns: float = 0.0) -> None:
        """
        Widen the uncertainty after a sample that was off by `innovation_ns` from what the steering so far explains,
        beyond its usual `noise_ns`; None: no innovation is known yet.

        The servo may have begun to correct that offset since the last reading, and have done a part of it unread. What
        is left shrinks at the rate at which this servo reacts: its usual change of frequency for the usual noise.
        `offsets_ns` is the size of the newest offset and the last one together, to which the servo visibly reacted. A
        change of frequency beyond that is what a correction left in its integral term, and nothing else may be left of
        that correction.
        """
        unread_s, usual_ppb = self._unread_ns / NS_PER_S, self._usual_change_ppb.value
        if innovation_ns is None:
            self.uncertainty_ns += _UNSEEN_FACTOR * max(0.0, self.change_ppb - OUTLIER_FACTOR * usual_ppb) * unread_s
        elif noise_ns > 0 and usual_ppb > 0:
            gain = usual_ppb / noise_ns
            corrected_ns = innovation_ns * math.expm1(min(_GAIN_FACTOR * gain * unread_s, _MAX_CORRECTION_EXPONENT))
            unexplained_ppb = self.change_ppb - OUTLIER_FACTOR * usual_ppb - _GAIN_FACTOR * gain * offsets_ns
            integrated_ns = max(0.0, unexplained_ppb) / (_INTEGRAL_SHARE * gain)
            self.uncertainty_ns += min(corrected_ns + integrated_ns, self._limit_ppb * unread_s)
        if self._unread_ns and self.change_ppb:
            # A servo that acts less often than its frequency is read, as phc2sys beside 16 Syncs a second, is as strong as
            # its changes are.
            self._usual_change_ppb.add(self.change_ppb)


def steering_ppb(largest_change_ppb: float, limit_ppb: int) -> int:
    """
    The rate at which a servo may move the clock between two readings of its frequency: three times the largest change
    between two readings of the window, and at most the clock's own limit.
    """
    return min(limit_ppb, 3 * int(largest_change_ppb))


def correction_ppb(offset_before_ns: int, offset_ns: int, sync_interval_ns: int) -> int:
    """
    How far a PI servo may change the clock's frequency in response to the newest offset, with linuxptp's largest gains.
    """
    moved_ns = abs(offset_ns - offset_before_ns)
    corrected_ns = _PROPORTIONAL_GAIN * moved_ns + _INTEGRAL_GAIN * abs(offset_ns)
    return min(FASTEST_SERVO_PPB, corrected_ns * NS_PER_S // max(1, sync_interval_ns))


def response_ppb(offset_before_ns: int, offset_ns: int, elapsed_ns: int, delay_ns: int, sync_interval_ns: int) -> int:
    """
    The fastest rate against its master at which a PI servo leaves a clock whose frequency cannot be read.

    The rate up to the newest Sync shows in the two newest offsets, which are `elapsed_ns` apart, within what two path
    delays may hide. The servo's correction by the newest offset comes on top. `delay_ns` is the largest path delay.
    """
    shown_ns = abs(offset_ns - offset_before_ns) + 2 * max(0, delay_ns)
    shown_ppb = shown_ns * NS_PER_S // max(1, elapsed_ns)
    return min(FASTEST_SERVO_PPB, shown_ppb + correction_ppb(offset_before_ns, offset_ns, sync_interval_ns))
