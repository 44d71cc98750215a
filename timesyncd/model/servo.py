"""What a servo did to the clock, from the frequencies that were read: how far it moved it, and with how much doubt. Pure."""

from __future__ import annotations

import math

from timesyncd.clocks import NS_PER_S
from timesyncd.model.statistics import OUTLIER_FACTOR, RobustMean

#: What a servo or an operator may do to the clock's rate when nobody looks: the kernel's limit.
SLEW_LIMIT_PPB = 500_000

#: A servo that chases something may have been so many times faster between two readings than it changed from one to the other,
_UNSEEN = 3.0

#: or follow so much faster than its usual changes tell,
_FASTER = 1.5

#: or have an integral part that is this share of how strongly it follows (ptp4l's are 0.43 and less of the proportional one),
_INTEGRAL_SHARE = 0.3

#: and leaves at least e to the minus that of what it chases.
_MOST_CHASED = 6.0

#: A frequency is applied at a Sync, so it may have changed for so long at most before it was read, if Syncs come at all.
_LONGEST_UNREAD_NS = 2 * NS_PER_S


class Steering:
    """
    Adds up frequency x time. A reading's frequency holds from then on; `frequency_ppb` is how much faster the clock is made to
    run. `steered_ns`, how far the clock was moved since the first reading, and `doubt_ns`, what may be wrong about it, are only ever
    compared with earlier ones.
    """

    def __init__(self) -> None:
        self.frequency_ppb: int | None = None
        self.frequency_before_ppb: int | None = None
        self.steered_ns = 0.0
        self.doubt_ns = 0.0
        self.phase_doubt_ns = 0.0
        self.change_ppb = 0.0
        self._time_ns: int | None = None
        self._usual = RobustMean()
        self._unread_ns = 0

    def read(self, time_ns: int, frequency_ppb: int | None) -> None:
        before, last_ns = self.frequency_ppb, self._time_ns
        self.frequency_ppb, self._time_ns, self.frequency_before_ppb = frequency_ppb, time_ns, before
        self.change_ppb, self._unread_ns = 0.0, 0
        if last_ns is None:
            return
        if before is None or frequency_ppb is None:
            self.change_ppb = SLEW_LIMIT_PPB
            self.doubt_ns += SLEW_LIMIT_PPB * abs(time_ns - last_ns) / NS_PER_S
            return
        # A time that goes back is taken back: a Sync may be told late, after a reading of the frequency alone.
        self.steered_ns += before * (time_ns - last_ns) / NS_PER_S
        self.change_ppb = float(abs(frequency_ppb - before))
        self._unread_ns = min(max(0, time_ns - last_ns), _LONGEST_UNREAD_NS)
        self.phase_doubt_ns = 1.5 * self._usual.size * self._unread_ns / NS_PER_S

    def steered_at(self, time_ns: int) -> float:
        """How far the clock had been moved a little before or after the newest reading."""
        if self._time_ns is None or self.frequency_ppb is None:
            return self.steered_ns
        before_ppb = self.frequency_ppb if self.frequency_before_ppb is None else self.frequency_before_ppb
        later_ns = time_ns - self._time_ns
        return self.steered_ns + (before_ppb if later_ns < 0 else self.frequency_ppb) * later_ns / NS_PER_S

    def surprised(self, surprise_ns: float | None, noise_ns: float, answered_ns: float = 0.0) -> None:
        """
        After a reading with a sample that was off by `surprise_ns` from what the steering so far explains, beyond its usual `noise_ns`; None:
        that is not known. A servo may have begun to chase that since the last reading, and have done part of it unread: what is
        left shrinks at the rate at which this servo follows, its usual change of frequency for the usual noise.

        `answered_ns` is the size of the offsets, this one's and the last one's, that the servo openly answered. A change of frequency
        beyond that is what a chase left in its integral, of which nothing else may be left.
        """
        unread_s = self._unread_ns / NS_PER_S
        if surprise_ns is None:
            self.doubt_ns += _UNSEEN * max(0.0, self.change_ppb - OUTLIER_FACTOR * self._usual.size) * unread_s
        elif noise_ns > 0 and self._usual.size > 0:
            gain = self._usual.size / noise_ns
            chased_ns = surprise_ns * math.expm1(min(_FASTER * gain * unread_s, _MOST_CHASED))
            unanswered_ppb = self.change_ppb - OUTLIER_FACTOR * self._usual.size - _FASTER * gain * answered_ns
            done_ns = max(0.0, unanswered_ppb) / (_INTEGRAL_SHARE * gain)
            self.doubt_ns += min(chased_ns + done_ns, SLEW_LIMIT_PPB * unread_s)
        if self._unread_ns:
            self._usual.take(self.change_ppb)


def steering_ppb(largest_change_ppb: float | None) -> int:
    """
    What the discipliner may do between two readings: three times the largest change of frequency seen between two within
    the memory, at most the kernel's slew limit, which is also what there is while it is unread (None).
    """
    if largest_change_ppb is None:
        return SLEW_LIMIT_PPB
    return min(SLEW_LIMIT_PPB, 3 * int(largest_change_ppb))
