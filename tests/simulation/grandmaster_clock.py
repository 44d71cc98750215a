"""A grandmaster with a known error: its phase against UTC, and what it announces of itself, which need not be true."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from local_clock import NS_PER_S

NEVER = math.inf


@dataclass(frozen=True, slots=True)
class GrandmasterSpec:
    """
    While locked the phase swings by `swing_ns`. From `loses_reference_s` it drifts by `drift_ppb`, either way, and announces
    class 7 unless it lies. At `steps_s` it steps by `step_ns`, either way unless it is whole seconds. At `dies_s` it sends no more.
    """

    swing_ns: float = 20.0
    swing_period_s: float = 900.0
    accuracy: int = 0x21
    loses_reference_s: float = NEVER
    drift_ppb: float = 0.0
    lies: bool = False
    steps_s: tuple[float, ...] = ()
    step_ns: float = 0.0
    dies_s: float = NEVER


class GrandmasterClock:
    """`error_ns` is grandmaster minus UTC, the whole seconds between the scales taken out."""

    def __init__(self, spec: GrandmasterSpec, rng: Random) -> None:
        self._spec = spec
        self._swing_phase = rng.uniform(0, 2 * math.pi)
        self._sign = rng.choice((-1, 1)) if spec.step_ns % NS_PER_S else 1
        self.step_moments_ns = [at_s * NS_PER_S for at_s in spec.steps_s]

    def error_ns(self, true_ns: float) -> float:
        spec = self._spec
        now_s = true_ns / NS_PER_S
        error_ns = spec.swing_ns * math.sin(self._swing_phase + 2 * math.pi * now_s / spec.swing_period_s)
        if now_s > spec.loses_reference_s:
            error_ns += self._sign * spec.drift_ppb * (now_s - spec.loses_reference_s)
        if spec.steps_s:
            error_ns += self._sign * spec.step_ns * sum(now_s >= at_s for at_s in spec.steps_s)
        return error_ns

    def clock_class(self, true_ns: float) -> int:
        return 7 if true_ns > self._spec.loses_reference_s * NS_PER_S and not self._spec.lies else 6

    @property
    def accuracy(self) -> int:
        return self._spec.accuracy

    def lives(self, true_ns: float) -> bool:
        return true_ns < self._spec.dies_s * NS_PER_S
