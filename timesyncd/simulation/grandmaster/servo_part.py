"""The state of a unit's clock, and what moves it from one to the next. Pure: time is an argument."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Servo(Enum):
    """
    The state of the clock: the name, then clockClass and clockAccuracy that such a unit announces (G.8275.1), and the
    number that the TimeProvider 5000E's MIB gives it.
    """

    WARMUP = (248, 0xFE, 1)
    FREERUN = (248, 0xFE, 2)
    FAST_TRACK = (248, 0xFE, 3)
    LOCKED = (6, 0x21, 4)
    HOLDOVER = (7, 0x21, 5)
    BRIDGING = (6, 0x21, 6)
    FAILED = (248, 0xFE, 7)
    EXTENDED_HOLDOVER = (140, 0x23, 9)

    @property
    def clock_class(self) -> int:
        return self.value[0]

    @property
    def clock_accuracy(self) -> int:
        return self.value[1]

    @property
    def number(self) -> int:
        return self.value[2]

    @property
    def follows(self) -> bool:
        """Whether the oscillator is steered by a reference."""
        return self in (Servo.LOCKED, Servo.FAST_TRACK)

    @property
    def held(self) -> bool:
        """Whether the time is still that of a reference that was followed before."""
        return self in (Servo.LOCKED, Servo.BRIDGING, Servo.HOLDOVER, Servo.EXTENDED_HOLDOVER)


@dataclass
class Dwell:
    """
    How long a unit stays in a state that ends by itself, in simulated seconds. `recovery_s` is the fast track that follows
    holdover; `holdover_s` how long the oscillator keeps its specification without a reference.
    """

    warmup_s: float = 600.0
    fast_track_s: float = 1_200.0
    recovery_s: float = 300.0
    bridging_s: float = 900.0
    holdover_s: float = 86_400.0


def next_servo(servo: Servo, in_state_s: float, reference: bool, recovering: bool, dwell: Dwell) -> Servo:
    """The state that follows now, the same one when nothing moves it. `recovering`: the fast track came from holdover."""
    over = in_state_s >= (stays_s(servo, recovering, dwell) or 0.0) - 1e-6
    match servo:
        case Servo.WARMUP if over:
            return Servo.FAST_TRACK if reference else Servo.FREERUN
        case Servo.FREERUN | Servo.HOLDOVER | Servo.EXTENDED_HOLDOVER if reference:
            return Servo.FAST_TRACK
        case Servo.FAST_TRACK if not reference:
            return Servo.HOLDOVER if recovering else Servo.FREERUN
        case Servo.FAST_TRACK if over:
            return Servo.LOCKED
        case Servo.LOCKED if not reference:
            return Servo.BRIDGING if dwell.bridging_s > 0 else Servo.HOLDOVER
        case Servo.BRIDGING if reference:
            return Servo.LOCKED
        case Servo.BRIDGING if over:
            return Servo.HOLDOVER
        case Servo.HOLDOVER if over:
            return Servo.EXTENDED_HOLDOVER
    return servo


def stays_s(servo: Servo, recovering: bool, dwell: Dwell) -> float | None:
    """After how long the state ends by itself; None: only an input ends it."""
    return {
        Servo.WARMUP: dwell.warmup_s,
        Servo.FAST_TRACK: dwell.recovery_s if recovering else dwell.fast_track_s,
        Servo.BRIDGING: dwell.bridging_s,
        Servo.HOLDOVER: dwell.holdover_s,
    }.get(servo)
