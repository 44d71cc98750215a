"""
What fbclock, ClockBound and chrony would give for ptp4l's rows: half the width of their windows, written again here.

All three bound UTC, so the accuracy that the grandmaster announces is in each. None receives ptp4l's Sync directly here: a
reading that shows another offset is taken for the Sync's own time, which makes them no wider than they are.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from timesyncd.model.replay import TraceRow
from timesyncd.sample import ACCURACY_NS, PortState

#: In the order of `PeerBounds.take`.
PEERS = ("fbclock", "chrony", "ClockBound 1 ppm", "ClockBound 50 ppm")

_NS_PER_S = 1e9
_PPB_PER_PPM = 1_000.0

#: fbclock: how many measurements are averaged, the steady factor, the confidence while they are fewer, and what a change of frequency counts.
_RING, _SIGMAS, _CONFIDENCE, _DRIFT_FACTOR = 100, 4.0, 0.9999, 1.5

#: chrony: samples kept, the fewest to draw a line through, the fewest that the runs test judges, its level; and what reading a clock errs by.
_MOST_SAMPLES, _FEWEST_SAMPLES, _FEWEST_RUNS, _RUNS_LEVEL, _PRECISION_NS = 64, 3, 8, 0.05, 10.0

#: chrony weighs a sample by how much longer its delay is than the shortest, in multiples of the usual excess over this.
_EXCESS_TO_DEVIATION = 0.7

#: Student's one-sided quantile 0.9995 by degrees of freedom 1, 2, ..., which chrony makes a skew of a deviation with; beyond, 3.5.
_STUDENT = (
    636.6, 31.6, 12.92, 8.61, 6.869, 5.959, 5.408, 5.041, 4.781, 4.587, 4.437, 4.318, 4.221, 4.140, 4.073, 4.015, 3.965, 3.922,
    3.883, 3.850, 3.819, 3.792, 3.768, 3.745, 3.725, 3.707, 3.690, 3.674, 3.659, 3.646, 3.633, 3.622, 3.611, 3.601, 3.591,
)  # fmt: skip

#: ClockBound: how often it asks chronyd, when it takes it for free running (in intervals of updates), and when it knows nothing more.
_POLL_S, _FREE_AFTER_INTERVALS, _EXPIRES_AFTER_S = 1.0, 8, 1_000.0

_FOLLOWING = (None, PortState.SLAVE, PortState.UNCALIBRATED)


class PeerBounds:
    """Takes the rows that were read, and answers at any time from those up to it; time must not go back."""

    def __init__(self) -> None:
        self._fbclock = Fbclock()
        self._chrony = Chrony()
        self._clockbounds = [ClockBound(ppm * _PPB_PER_PPM) for ppm in (1, 50)]
        self._offset_ns: int | None = None

    def take(self, row: TraceRow) -> None:
        fresh = row.offset_ns is not None and row.offset_ns != self._offset_ns
        self._offset_ns = row.offset_ns
        now_s = row.t_ns / _NS_PER_S
        self._fbclock.take(row, now_s, fresh)
        self._chrony.take(row, now_s, fresh)

    def at(self, t_ns: int) -> tuple[float | None, ...]:
        """The bounds on |local clock error| at that time, by `PEERS`; None = none."""
        now_s = t_ns / _NS_PER_S
        for clockbound in self._clockbounds:
            clockbound.poll(now_s, self._chrony)
        chrony_ns = self._chrony.distance_ns(now_s, 1 * _PPB_PER_PPM)
        return (self._fbclock.window_ns(now_s), chrony_ns, *(each.bound_ns(now_s) for each in self._clockbounds))


class Fbclock:
    """
    github.com/facebook/time, fbclock/daemon: each second M = mean accuracy + |mean offset| + deviation of the offset, over the last 100
    samples; W = mean(M) + k x deviation(M), with k from the size of the ring (`-gradualwindow`); h = 1.5 x the mean |change of frequency| of 99.
    Client: W + h x (now - ingress). The reading of the PHC is free here.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int, int]] = deque(maxlen=_RING)
        self._measures: deque[float] = deque(maxlen=_RING)
        self._taken_s = -math.inf
        self._ingress_s = 0.0
        self._window_ns: float | None = None
        self._drift_ppb = 0.0

    def take(self, row: TraceRow, now_s: float, fresh: bool) -> None:
        """Once a second; a sample of which anything is 0 or unknown is dropped, and ptp4l's ingress time is 0 while it follows no port."""
        if fresh:
            self._ingress_s = now_s
        if now_s - self._taken_s < 0.99:
            return
        self._taken_s = now_s
        accuracy_ns = accuracy(row)
        sane = row.port_state in _FOLLOWING and row.offset_ns and row.path_delay_ns and row.freq_ppb
        if not sane or accuracy_ns is None or row.gm_present is False:
            return
        self._samples.append((accuracy_ns, row.offset_ns or 0, row.freq_ppb or 0))
        self._publish()

    def _publish(self) -> None:
        accuracies, offsets, frequencies = zip(*self._samples, strict=True)
        self._measures.append(statistics.fmean(accuracies) + abs(statistics.fmean(offsets)) + deviation(offsets))
        count = len(self._measures)
        if count < 2:
            return
        self._window_ns = statistics.fmean(self._measures) + warm_up_factor(count) * deviation(self._measures)
        changes = [abs(new - old) for old, new in pairwise(frequencies)]
        self._drift_ppb = _DRIFT_FACTOR * statistics.fmean(changes)

    def window_ns(self, now_s: float) -> float | None:
        return None if self._window_ns is None else self._window_ns + self._drift_ppb * (now_s - self._ingress_s)


class Line(NamedTuple):
    """Weighted least squares: the value at x = 0 and the slope, each with its deviation, and the residuals."""

    value: float
    slope: float
    value_deviation: float
    slope_deviation: float
    residuals: list[float]


class _ChronySample(NamedTuple):
    """A sample of chrony: what the offset would be had nothing steered since the first one, the one-way delay, and the dispersion."""

    time_s: float
    unsteered_ns: float
    delay_ns: float
    dispersion_ns: float


class Chrony:
    """
    chronyd's tracking (sourcestats.c, reference.c): a weighted line through its last 64 samples, of which the oldest go until the signs of the
    residuals change often enough; skew = Student's quantile x deviation of the slope; root delay and dispersion of the sample with the
    smallest root distance. chronyd moves old samples by what it steered since; so is done here with the frequency that ptp4l reports.
    Left out: its correction of asymmetry, and that residuals of samples dropped also count in the runs test.
    """

    def __init__(self) -> None:
        self._samples: deque[_ChronySample] = deque(maxlen=_MOST_SAMPLES)
        self._steered_ns = 0.0
        self._row_s: float | None = None
        self._applied_ppb = 0.0
        self.updated_s: float | None = None
        self.update_interval_s = 1.0
        self._offset_ns = self._delay_ns = self._dispersion_ns = self._uncertain_ppb = 0.0

    def take(self, row: TraceRow, now_s: float, fresh: bool) -> None:
        if self._row_s is not None:
            self._steered_ns += self._applied_ppb * (now_s - self._row_s)
        self._row_s, self._applied_ppb = now_s, -float(row.freq_ppb or 0)
        accuracy_ns = accuracy(row)
        if not fresh or row.offset_ns is None or row.path_delay_ns is None or row.port_state not in _FOLLOWING:
            return
        if accuracy_ns is not None:
            dispersion_ns = accuracy_ns + _PRECISION_NS
            self._samples.append(
                _ChronySample(now_s, row.offset_ns - self._steered_ns, abs(row.path_delay_ns), dispersion_ns)
            )
            if len(self._samples) >= _FEWEST_SAMPLES:
                self._track(now_s)

    def _track(self, now_s: float) -> None:
        line = self._best_line(now_s)
        degrees = len(self._samples) - 2
        skew_ppb = line.slope_deviation * (_STUDENT[degrees - 1] if degrees <= len(_STUDENT) else 3.5)

        def distance_ns(sample: _ChronySample) -> float:
            return sample.delay_ns + sample.dispersion_ns + skew_ppb * (now_s - sample.time_s)

        best = min(self._samples, key=distance_ns)
        self._offset_ns = line.value + self._steered_ns
        self._delay_ns = best.delay_ns
        self._dispersion_ns = best.dispersion_ns + skew_ppb * (now_s - best.time_s) + line.value_deviation
        self._uncertain_ppb = skew_ppb + abs(line.slope + self._applied_ppb)
        self.update_interval_s = now_s - self.updated_s if self.updated_s is not None else 1.0
        self.updated_s = now_s

    def _best_line(self, now_s: float) -> Line:
        while True:
            samples = self._samples
            line = fitted(
                [each.time_s - now_s for each in samples], [each.unsteered_ns for each in samples], self._weights()
            )
            if len(samples) == _FEWEST_SAMPLES or runs(line.residuals) > critical_runs(len(samples)):
                return line
            samples.popleft()

    def _weights(self) -> list[float]:
        distances = [each.delay_ns + _PRECISION_NS for each in self._samples]
        shortest = min(distances)
        excess = (statistics.median(distances) - shortest) / _EXCESS_TO_DEVIATION
        scale = max(_PRECISION_NS, min(excess, shortest))
        return [(1 + max(0.0, each - shortest - _PRECISION_NS) / scale) ** -2 for each in distances]

    def dispersion_ns(self, now_s: float, clock_error_ppb: float) -> float:
        """Only where there was an update."""
        assert self.updated_s is not None
        return self._dispersion_ns + (now_s - self.updated_s) * (self._uncertain_ppb + clock_error_ppb)

    def distance_ns(self, now_s: float, clock_error_ppb: float) -> float | None:
        """|offset| + root delay / 2 + root dispersion. PTP's path delay is one way: half of the round trip that NTP's is."""
        if self.updated_s is None:
            return None
        return abs(self._offset_ns) + self._delay_ns + self.dispersion_ns(now_s, clock_error_ppb)


class ClockBound:
    """
    github.com/aws/clock-bound: what chronyd reports once a second (root delay / 2 + root dispersion + |correction|, with chronyd's maxclockerror
    as advised: the same drift), frozen when chronyd receives nothing for 8 intervals; growing at the drift from there; 1000 s later unknown.
    """

    def __init__(self, drift_ppb: float) -> None:
        self._drift_ppb = drift_ppb
        self._as_of_s = -math.inf
        self._bound_ns: float | None = None

    def poll(self, now_s: float, chrony: Chrony) -> None:
        if chrony.updated_s is None or now_s - self._as_of_s < _POLL_S:
            return
        if now_s - chrony.updated_s <= _FREE_AFTER_INTERVALS * chrony.update_interval_s:
            self._bound_ns = chrony.distance_ns(now_s, self._drift_ppb)
            self._as_of_s = now_s

    def bound_ns(self, now_s: float) -> float | None:
        age_s = now_s - self._as_of_s
        return None if self._bound_ns is None or age_s > _EXPIRES_AFTER_S else self._bound_ns + self._drift_ppb * age_s


def accuracy(row: TraceRow) -> int | None:
    """What the grandmaster announces of itself, in ns; None = unknown."""
    return None if row.clock_accuracy is None else ACCURACY_NS.get(row.clock_accuracy)


def deviation(values: Sequence[float]) -> float:
    """With n - 1 in the denominator; 0 of a single value."""
    if len(values) < 2:
        return 0.0
    mean = statistics.fmean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def fitted(xs: list[float], ys: list[float], weights: list[float]) -> Line:
    total = sum(weights)
    middle = sum(map(float.__mul__, weights, xs)) / total
    mean = sum(map(float.__mul__, weights, ys)) / total
    spread = sum(weight * (x - middle) ** 2 for x, weight in zip(xs, weights, strict=True))
    slope = sum(weight * (x - middle) * y for x, y, weight in zip(xs, ys, weights, strict=True)) / spread
    value = mean - slope * middle
    residuals = [y - value - slope * x for x, y in zip(xs, ys, strict=True)]
    squares = sum(weight * residual**2 for weight, residual in zip(weights, residuals, strict=True)) / (len(xs) - 2)
    slope_deviation = math.sqrt(squares / spread)
    return Line(value, slope, math.sqrt(squares / total + (middle * slope_deviation) ** 2), slope_deviation, residuals)


def runs(residuals: list[float]) -> int:
    """How often the sign changes, and one."""
    return 1 + sum(old * new <= 0 for old, new in pairwise(residuals))


@cache
def critical_runs(count: int) -> int:
    """The most runs that are too few by chance (Wald and Wolfowitz, half of the signs either way)."""
    if count < _FEWEST_RUNS:
        return 0
    up, down = count // 2, count - count // 2
    most, share = 1, 0.0
    while True:
        share += _runs_probability(most + 1, up, down)
        if share > _RUNS_LEVEL:
            return most
        most += 1


def _runs_probability(number: int, up: int, down: int) -> float:
    half, odd = divmod(number, 2)
    ways = math.comb(up - 1, half - 1) * math.comb(down - 1, half - 1) * 2
    if odd:
        ways = math.comb(up - 1, half) * math.comb(down - 1, half - 1)
        ways += math.comb(up - 1, half - 1) * math.comb(down - 1, half)
    return ways / math.comb(up + down, up)


@cache
def warm_up_factor(count: int) -> float:
    """fbclock's k(n): the factor that covers 4 sigma with a confidence of 0.9999, scaled so that a full ring has 4."""
    return _SIGMAS if count >= _RING else _SIGMAS * tolerance_factor(count) / tolerance_factor(_RING)


@cache
def tolerance_factor(count: int) -> float:
    """
    The one-sided normal tolerance factor f(n): the noncentral t quantile (0.9999; n - 1 degrees, noncentrality 4 sqrt n) / sqrt n. By
    bisection of E[Phi(sqrt n (f s - 4))] = 0.9999 over the deviation s of n values, whose logarithm is the variable of integration.
    """
    nodes = _deviation_nodes(count - 1)
    low, high = _SIGMAS, 1e6
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low * high)
        covered = sum(weight * _normal(math.sqrt(count) * (middle * s - _SIGMAS)) for s, weight in nodes)
        low, high = (low, middle) if covered > _CONFIDENCE else (middle, high)
    return high


def _deviation_nodes(degrees: int, panels: int = 400) -> list[tuple[float, float]]:
    """The deviation of degrees + 1 standard normal values, with the probabilities of Simpson's rule."""
    low, high = -1 - 16 / degrees, math.log(1 + 7 / math.sqrt(degrees))
    logs = [low + (high - low) * index / panels for index in range(panels + 1)]
    simpson = [1, *(4, 2) * (panels // 2 - 1), 4, 1]
    densities = [math.exp(degrees * (log - math.expm1(2 * log) / 2)) for log in logs]
    masses = list(map(float.__mul__, map(float, simpson), densities))
    total = sum(masses)
    return [(math.exp(log), mass / total) for log, mass in zip(logs, masses, strict=True)]


def _normal(z: float) -> float:
    return math.erfc(-z / math.sqrt(2)) / 2
