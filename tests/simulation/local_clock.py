"""A local clock: a free oscillator that errs, and the frequency correction that a servo gives it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from timesyncd.clocks import RawReading

NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class OscillatorSpec:
    """
    How a free oscillator errs; positive = fast. The constant part is drawn within +-`offset_ppb`. The wander is a random walk of
    the frequency, its deviation given after 1 s. The temperature adds a ramp between two instants and a sine.
    """

    offset_ppb: float = 20_000.0
    wander_ppb: float = 0.5
    ramp_ppb_per_s: float = 0.0
    ramp_from_s: float = 0.0
    ramp_until_s: float = math.inf
    sine_ppb: float = 0.0
    sine_period_s: float = 600.0


class LocalClock:
    """
    `error_ns` is local minus true time. Times are true time in float nanoseconds since the start: an hour resolves to 0.001 ns.

    `slowed_ppb` is the correction in force: positive = slowed by so much. `stepped_ns` is the sum of all steps, `steered_ns` what all
    corrections together moved the clock by.
    """

    __slots__ = (
        "_base_ppb",
        "_rng",
        "_spec",
        "_wander_ppb",
        "error_ns",
        "slowed_ppb",
        "steered_ns",
        "stepped_ns",
        "true_ns",
    )

    def __init__(self, spec: OscillatorSpec, rng: Random, error_ns: float) -> None:
        self._spec = spec
        self._rng = rng
        self._base_ppb = rng.uniform(-spec.offset_ppb, spec.offset_ppb)
        self._wander_ppb = 0.0
        self.error_ns = error_ns
        self.slowed_ppb = 0.0
        self.stepped_ns = 0.0
        self.steered_ns = 0.0
        self.true_ns = 0.0

    def advance(self, true_ns: float) -> None:
        """Run until then; a time of before now is now."""
        elapsed_s = (true_ns - self.true_ns) / NS_PER_S
        if elapsed_s <= 0:
            return
        self.true_ns = true_ns
        if self._spec.wander_ppb:
            self._wander_ppb += self._rng.gauss(0.0, self._spec.wander_ppb * math.sqrt(elapsed_s))
        self.error_ns += (self.oscillator_ppb() - self.slowed_ppb) * elapsed_s
        self.steered_ns -= self.slowed_ppb * elapsed_s

    def oscillator_ppb(self) -> float:
        """How fast the oscillator alone runs now."""
        spec = self._spec
        ppb = self._base_ppb + self._wander_ppb
        now_s = self.true_ns / NS_PER_S
        if spec.ramp_ppb_per_s and now_s > spec.ramp_from_s:
            ppb += spec.ramp_ppb_per_s * (min(now_s, spec.ramp_until_s) - spec.ramp_from_s)
        if spec.sine_ppb:
            ppb += spec.sine_ppb * math.sin(2 * math.pi * now_s / spec.sine_period_s)
        return ppb

    def step(self, by_ns: float) -> None:
        self.error_ns += by_ns
        self.stepped_ns += by_ns

    def read_ns(self) -> float:
        """The clock's time now, unrounded."""
        return self.true_ns + self.error_ns

    def boottime_ns(self) -> int:
        """The same clock without its steps, as a program reads it."""
        return round(self.true_ns + self.error_ns - self.stepped_ns)

    def raw_reading(self) -> RawReading:
        """The same clock between two readings of its oscillator, which nothing steers; they hold the rounding."""
        raw_ns = self.true_ns + self.error_ns - self.stepped_ns - self.steered_ns
        return RawReading(math.floor(raw_ns - 0.5), self.boottime_ns(), math.ceil(raw_ns + 0.5))
