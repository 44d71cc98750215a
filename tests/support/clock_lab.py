"""A clock with a known true error, as a ptp4l that follows it second by second reports it. Exact: nothing is random."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from samples import HEALTHY

from timesyncd.bound import Bound
from timesyncd.clocks import NS_PER_S
from timesyncd.model.assumptions import SourceSettings
from timesyncd.model.parent_bound import ParentBound
from timesyncd.model.servo import in_own_seconds_ppb
from timesyncd.model.source import SourceMemory
from timesyncd.sample import ClockSample

#: From an offset, local minus reference, to how much faster the clock is to run in ppb, beside what keeps it on time.
Servo = Callable[[int], int]

DELAY_NS = 10_000

#: After so many seconds the oscillator's rate, and what is usual, are known.
LEARNT_S = 65

WITHOUT_COUNTERS: dict[str, Any] = {"delay_requests_sent": None, "delay_responses_received": None}


def deadbeat(offset_ns: int) -> int:
    """All of the offset is gone a second later."""
    return -offset_ns


def gentle(offset_ns: int) -> int:
    return -round(0.3 * offset_ns)


class Lab:
    """
    Once a second a Sync, its reading, and half a second later a delay measurement. `true_ns` is local minus reference,
    at the reading; `rate_ppb` the free oscillator's rate, positive = fast; `frequency_ppb` what the servo applies,
    positive = faster. With `renewed_before_read` the delay is measured between the Sync and its reading, so that the
    offset was not computed with the reported delay.
    """

    def __init__(
        self, rate_ppb: float = 20_000, servo: Servo = gentle, renewed_before_read: bool = False, **fields: Any
    ) -> None:
        self.true_ns = 0.0
        self.rate_ppb = rate_ppb
        self.frequency_ppb = -in_own_seconds_ppb(round(rate_ppb))
        self.forward_ns = self.reverse_ns = float(DELAY_NS)
        self.seconds = 0
        self._synced_ns = 0.0
        self._servo = servo
        self._renewed_before_read = renewed_before_read
        self._fields = fields
        self._delays = deque([float(DELAY_NS)], maxlen=10)

    @property
    def boottime_ns(self) -> int:
        return HEALTHY.as_of_ns + self.seconds * NS_PER_S

    def sync(self) -> ClockSample:
        """A second later."""
        self._run(0.5)
        if not self._renewed_before_read:
            self._measure_delay()
        self._run(0.5)
        return self._sample()

    def lost_sync(self) -> None:
        """A second later, with a delay measurement against the last Sync that came."""
        self._run(0.5)
        self._measure_delay()
        self._run(0.5)
        self.seconds += 1

    def _measure_delay(self) -> None:
        self._delays.append((self._synced_ns + self.forward_ns + self.reverse_ns - self.true_ns) / 2)

    def silence(self, seconds: int = 1) -> None:
        """Nothing comes, and the frequency stays."""
        self._run(seconds)
        self.seconds += seconds

    def _run(self, seconds: float) -> None:
        self.true_ns += (self.rate_ppb + in_own_seconds_ppb(self.frequency_ppb)) * seconds

    def _sample(self) -> ClockSample:
        self.seconds += 1
        self._synced_ns = self.true_ns
        delay_ns = round(statistics.median(self._delays))
        offset_ns = round(self.true_ns + self.forward_ns) - delay_ns
        if self._renewed_before_read:
            self._measure_delay()
        self.frequency_ppb = -in_own_seconds_ppb(round(self.rate_ppb)) + self._servo(offset_ns)
        sample = replace(
            HEALTHY,
            as_of_ns=self.boottime_ns - NS_PER_S,
            read_ns=self.boottime_ns,
            offset_ns=offset_ns,
            path_delay_ns=round(statistics.median(self._delays)),
            ingress_time_ns=HEALTHY.ingress_time_ns + self.seconds * NS_PER_S,
            sync_interval_ns=NS_PER_S,
            delay_interval_ns=NS_PER_S,
            delay_requests_sent=self.seconds,
            delay_responses_received=self.seconds,
            frequency_ppb=self.frequency_ppb,
        )
        return replace(sample, **self._fields)


def assert_holds(bound: ParentBound, offset_ns: int, true_ns: float) -> None:
    """Both ways: around the local clock, and around the reported offset."""
    bound_ns = bound.bound.bound_ns
    assert bound_ns is not None
    assert bound.low_ns <= true_ns <= bound.high_ns
    assert abs(true_ns) <= bound_ns
    assert abs(true_ns - offset_ns) <= bound_ns - abs(offset_ns)


def settled(lab: Lab, seconds: int = LEARNT_S) -> SourceMemory:
    memory = SourceMemory(SourceSettings())
    for _ in range(seconds):
        memory.accept(lab.sync())
    return memory


def assert_adds_up(bound: ParentBound) -> None:
    """Each bound to its terms, which are whole and, of the hard one, never below 0; the growth to its rates."""
    assert bound.bound == Bound(sum(bound.terms.values()), sum(bound.rates.values()))
    assert bound.statistical.bound_ns == sum(bound.stat_terms.values())
    assert {type(each) for parts in (bound.terms, bound.stat_terms, bound.rates) for each in parts.values()} == {int}
    assert min(*bound.terms.values(), *bound.stat_terms.values(), *bound.rates.values()) >= 0
    assert (bound.statistical.bound_ns or 0) <= (bound.bound.bound_ns or 0)
    assert bound.statistical.growth_ppb <= bound.bound.growth_ppb
