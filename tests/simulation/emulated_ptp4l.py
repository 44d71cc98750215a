"""What ptp4l 3.1.1 does with its timestamps: the delay filter, the PI servo, and the port's state. Times in float nanoseconds."""

from __future__ import annotations

import math
from collections import deque
from enum import Enum, auto

from local_clock import NS_PER_S, LocalClock

from timesyncd.sample import PortState

FIRST_STEP_THRESHOLD_NS = 20_000
MAX_FREQUENCY_PPB = 100_000_000.0
DELAY_FILTER_LENGTH = 10

#: What a clock reports of itself that may become master, and one that may not.
DEFAULT_CLASS = 248
SLAVE_ONLY_CLASS = 255
UNKNOWN_ACCURACY = 0xFE


class ServoState(Enum):
    UNLOCKED = auto()
    JUMP = auto()
    LOCKED = auto()


class PiServo:
    """
    ptp4l's proportional-integral servo. Its first two samples estimate the frequency, and the first update may step the clock.

    An offset beyond `step_threshold_ns` starts it over (linuxptp's default: never). The card's limit is `limit_ppb`.
    """

    def __init__(
        self,
        interval_s: float,
        software: bool,
        limit_ppb: float = MAX_FREQUENCY_PPB,
        step_threshold_ns: float = math.inf,
    ) -> None:
        self._limit_ppb = limit_ppb
        self._step_threshold_ns = step_threshold_ns
        self._kp, self._ki = 0.1, 0.001
        if not software:
            self._kp = min(0.7 * interval_s**-0.3, 0.7 / interval_s)
            self._ki = min(0.3 * interval_s**0.4, 0.3 / interval_s)
        self._first: tuple[float, float] | None = None
        self._estimated = False
        self._drift_ppb = 0.0
        self.ppb = 0.0

    def sample(self, offset_ns: float, local_ns: float) -> ServoState:
        """Take an offset (local minus master) and its time; `ppb` is then what the clock is to be slowed by."""
        if self._estimated and abs(offset_ns) > self._step_threshold_ns:
            self._first, self._estimated = None, False
            return ServoState.UNLOCKED
        if self._estimated:
            self._steer(offset_ns)
            return ServoState.LOCKED
        if self._first is None:
            self._first = offset_ns, local_ns
            return ServoState.UNLOCKED
        elapsed_ns = local_ns - self._first[1]
        if elapsed_ns * 1.001 < min(0.016 / self._ki, 1000.0) * NS_PER_S:
            return ServoState.UNLOCKED
        self._drift_ppb += NS_PER_S * (offset_ns - self._first[0]) / elapsed_ns
        self._drift_ppb = self.ppb = self._clamped(self._drift_ppb)
        self._estimated = True
        return ServoState.JUMP if abs(offset_ns) > FIRST_STEP_THRESHOLD_NS else ServoState.LOCKED

    def _steer(self, offset_ns: float) -> None:
        integral_ppb = self._ki * offset_ns
        wanted_ppb = self._kp * offset_ns + self._drift_ppb + integral_ppb
        self.ppb = self._clamped(wanted_ppb)
        if self.ppb == wanted_ppb:
            self._drift_ppb += integral_ppb

    def _clamped(self, ppb: float) -> float:
        return max(-self._limit_ppb, min(self._limit_ppb, ppb))


class DelayFilter:
    """The moving median; of an even number it is the mean of the middle two."""

    def __init__(self, length: int = DELAY_FILTER_LENGTH) -> None:
        self._delays: deque[float] = deque(maxlen=length)

    def add(self, delay_ns: float) -> float:
        self._delays.append(delay_ns)
        ordered = sorted(self._delays)
        middle, odd = divmod(len(ordered), 2)
        return ordered[middle] if odd else (ordered[middle - 1] + ordered[middle]) / 2


class EmulatedPtp4l:
    """
    A clock that follows one grandmaster, end to end.

    What management reports stays as it was after a loss: offset, path delay, grandmaster and class. `ingress_ns` is the time of
    the newest Sync, also of one that gives no offset; None after a step (clock.c: clock_synchronize). One that may become master
    reports itself instead, with path delay 0 and the old offset.
    """

    def __init__(
        self, clock: LocalClock, servo: PiServo, filter_length: int = DELAY_FILTER_LENGTH, may_master: bool = False
    ) -> None:
        self._clock = clock
        self._servo = servo
        self._filter_length = filter_length
        self._alone = PortState.MASTER if may_master else PortState.LISTENING
        self.port_state = PortState.LISTENING
        self.offset_ns = 0
        self.path_delay_ns = 0
        self.gm_present = False
        self.clock_class = DEFAULT_CLASS if may_master else SLAVE_ONLY_CLASS
        self.clock_accuracy = UNKNOWN_ACCURACY
        self.ingress_ns: float | None = None
        self._announces = 0
        self._reset()

    def _reset(self) -> None:
        self._filter = DelayFilter(self._filter_length)
        self._delay_ns: float | None = None
        self._sync: tuple[float, float] | None = None

    @property
    def follows(self) -> bool:
        return self.port_state in (PortState.UNCALIBRATED, PortState.SLAVE)

    def announce(self, clock_class: int, accuracy: int) -> None:
        """A grandmaster is believed from its second Announce on."""
        self._announces += 1
        if not self.follows and self._announces >= 2:
            self._reset()
            self.port_state = PortState.UNCALIBRATED
        if self.follows:
            self.gm_present, self.clock_class, self.clock_accuracy = True, clock_class, accuracy

    def announce_timeout(self) -> None:
        if not self.follows:
            return
        self._announces = 0
        self._reset()
        self.port_state = self._alone
        if self._alone is PortState.MASTER:
            self.gm_present, self.clock_class, self.clock_accuracy = False, DEFAULT_CLASS, UNKNOWN_ACCURACY
            self.path_delay_ns = 0

    def sync(self, sent_ns: float, received_ns: float) -> None:
        """Take t1 (on the grandmaster's clock) and t2 (on ours), and steer."""
        if not self.follows:
            return
        self._sync = sent_ns, received_ns
        self.ingress_ns = received_ns
        if self._delay_ns is None:
            return
        offset_ns = received_ns - sent_ns - self._delay_ns
        self.offset_ns = round(offset_ns)
        state = self._servo.sample(offset_ns, received_ns)
        if state is ServoState.UNLOCKED:
            self.port_state = PortState.UNCALIBRATED
            return
        self._clock.slowed_ppb = self._servo.ppb
        if state is ServoState.JUMP:
            self._clock.step(-offset_ns)
            self._sync = self.ingress_ns = None
            self.port_state = PortState.UNCALIBRATED
        else:
            self.port_state = PortState.SLAVE

    def delay_response(self, sent_ns: float, received_ns: float) -> None:
        """Take t3 (on our clock) and t4 (on the grandmaster's). The last Sync serves, however old; the rate ratio is 1."""
        if not self.follows or self._sync is None:
            return
        t1_ns, t2_ns = self._sync
        self._delay_ns = self._filter.add(((t2_ns - sent_ns) + (received_ns - t1_ns)) / 2)
        self.path_delay_ns = round(self._delay_ns)
