"""
The oscillator: its phase against UTC while it is steered, and as it wanders when it is not.

The state of a grandmaster's clock, and what moves it from one to the next. Pure: time is an argument.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

_GRID_S = 60.0
_DAY_S = 86_400.0


@dataclass(frozen=True)
class OscillatorKind:
    """
    How well it keeps time alone: the error of its frequency when holdover begins (1 sigma), its ageing, the random walk of
    its phase (ns at one second) and of its frequency (ppb at one second), and for how long that meets its specification.
    """

    name: str
    entry_ppb: float
    ageing_ppb_a_day: float
    phase_walk_ns: float
    frequency_walk_ppb: float
    warmup_s: float
    holdover_s: float


OSCILLATORS = {
    "mini-ocxo": OscillatorKind("mini-OCXO", 0.08, 0.5, 0.1, 1e-5, 300.0, 4 * 3_600.0),
    "ocxo": OscillatorKind("OCXO", 0.01, 0.02, 0.03, 1e-6, 600.0, _DAY_S),
    "rb": OscillatorKind("Rb", 0.001, 0.001, 0.03, 1e-7, 900.0, 3 * _DAY_S),
}
#: The frequency error of one that has never been steered.
_COLD_PPB = 20.0


@dataclass(frozen=True)
class _Steered:
    """A span in which a reference was followed: `excess_ns` of phase decays with `tau_s` toward the reference."""

    since_s: float
    excess_ns: float
    tau_s: float
    reference_ns: float
    until_s: float = math.inf


@dataclass
class SimulatedOscillator:
    """
    `phase_ns` is local minus UTC: positive = ahead; it is that of `at_s`, the last time it was carried to. What it does in
    between depends on the seed alone and not on how often it is looked at.
    """

    kind: OscillatorKind
    seed: int = 0
    bias_ns: float = -3.2
    phase_ns: float = field(init=False)
    frequency_ppb: float = 0.0
    at_s: float = 0.0
    _spans: list[_Steered] = field(init=False, repr=False)
    _periods_s: tuple[float, ...] = field(init=False, repr=False)
    _began_s: float = 0.0
    _edges: int = 1
    _track: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=2_880), repr=False)

    def __post_init__(self) -> None:
        draw = random.Random(f"oscillator {self.seed}")
        self._periods_s = tuple(draw.uniform(low, 2 * low) for low in (37.0, 210.0, 1_300.0, 9_000.0))
        self._spans = [_Steered(-math.inf, 0.0, 1.0, 0.0)]
        self.phase_ns = self.bias_ns

    @property
    def steered(self) -> bool:
        return self._spans[-1].until_s == math.inf

    def follow(self, reference_ns: float, tau_s: float) -> None:
        """From now on it is steered to a reference that is itself `reference_ns` off UTC."""
        self.release()
        excess_ns = self.phase_ns - self._noise_ns(self.at_s) - reference_ns
        kept = [span for span in self._spans if span.until_s > self.at_s - 2 * _DAY_S]
        self._spans = [*kept, _Steered(self.at_s, excess_ns, tau_s, reference_ns)]

    def release(self, cold: bool = False) -> None:
        """From now on nothing steers it. Does nothing to one that runs free already, unless it starts cold."""
        if not self.steered and not cold:
            return
        if self.steered:
            last = self._spans[-1]
            self._spans[-1] = _Steered(last.since_s, last.excess_ns, last.tau_s, last.reference_ns, self.at_s)
        self._began_s, self._edges = self.at_s, 1
        self._track.append((self.at_s, self.phase_ns))
        draw = random.Random(f"release {self.seed} {self.at_s}")
        self.frequency_ppb = draw.gauss(0.0, _COLD_PPB if cold else self.kind.entry_ppb)

    def carry(self, to_s: float) -> None:
        """On to a later time."""
        if self.steered:
            self.phase_ns = self._steered_ns(self._spans[-1], to_s)
        else:
            while (edge_s := self._next_edge_s()) <= to_s:
                self._drift(edge_s)
                self._wander(edge_s)
                self._edges += 1
            self._drift(to_s)
        self.at_s = to_s

    def _next_edge_s(self) -> float:
        return self._began_s + self._edges * _GRID_S

    def _drift(self, to_s: float) -> None:
        ageing_ppb_s = self.kind.ageing_ppb_a_day / _DAY_S
        seconds = to_s - self.at_s
        self.phase_ns += self.frequency_ppb * seconds + ageing_ppb_s * seconds**2 / 2
        self.frequency_ppb += ageing_ppb_s * seconds
        self.at_s = to_s

    def _wander(self, edge_s: float) -> None:
        draw = random.Random(f"wander {self.seed} {edge_s:.3f}")
        self.phase_ns += draw.gauss(0.0, self.kind.phase_walk_ns * math.sqrt(_GRID_S))
        self.frequency_ppb += draw.gauss(0.0, self.kind.frequency_walk_ppb * math.sqrt(_GRID_S))
        self._track.append((edge_s, self.phase_ns))

    def true_ns(self, at_s: float) -> float:
        """Now or in the past: local minus UTC."""
        span = self._span(at_s)
        if span is not None:
            return self._steered_ns(span, at_s)
        points = [*self._track, (self.at_s, self.phase_ns)]
        place = bisect_right(points, (at_s, math.inf))
        if place in (0, len(points)):
            return points[max(0, place - 1)][1]
        (before_s, before_ns), (after_s, after_ns) = points[place - 1], points[place]
        return before_ns + (after_ns - before_ns) * (at_s - before_s) / (after_s - before_s)

    def measured_ns(self, at_s: float) -> float | None:
        """Now or in the past: its phase against the reference that was followed then; None when there was none."""
        span = self._span(at_s)
        return None if span is None else self._steered_ns(span, at_s) - span.reference_ns

    def _span(self, at_s: float) -> _Steered | None:
        within = (span for span in reversed(self._spans) if span.since_s <= at_s < span.until_s)
        return next(within, None)

    def _steered_ns(self, span: _Steered, at_s: float) -> float:
        gone = (at_s - span.since_s) / span.tau_s
        excess_ns = span.excess_ns * math.exp(-gone) if span.excess_ns else 0.0
        return span.reference_ns + self._noise_ns(at_s) + excess_ns

    def _noise_ns(self, at_s: float) -> float:
        """What steering leaves: a few nanoseconds that come and go."""
        swings = (1.2, 1.8, 2.2, 1.5)
        return self.bias_ns + sum(
            swing * math.sin(2 * math.pi * at_s / period) for swing, period in zip(swings, self._periods_s, strict=True)
        )


class Servo(Enum):
    """
    The state of the clock: the name, then clockClass and clockAccuracy that such a grandmaster announces (G.8275.1), and the
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
    How long a grandmaster stays in a state that ends by itself, in simulated seconds. `recovery_s` is the fast track that follows
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
