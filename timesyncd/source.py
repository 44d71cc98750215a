"""
One source's recent samples -> the hard terms of its parent bound and the rate at which the bound grows. Pure.

docs/error-bound.md derives the terms. In short: the offset that ptp4l reports is of its last Sync alone, its path delay a
median over its last delay measurements. While the path stands still, the error of one offset is at most the path delay. When
the path has just changed, the error is what the offset moved by on top of that, until the delay filter has forgotten the
former path. So the *spread* of the offsets over the filter's memory is a term, and so is the largest delay in it.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass

from timesyncd.bound import Bound, Reason, unbounded
from timesyncd.clocks import NS_PER_S, STEP_TOLERANCE_NS
from timesyncd.sample import ACCURACY_NS, ClockSample
from timesyncd.verdict import GrandmasterVerdict

#: What a servo or an operator may do to the clock's rate when nobody looks: the kernel's limit.
SLEW_LIMIT_PPB = 500_000

#: A change of frequency above this is no steady steering: assume the limit until the memory has passed.
LARGE_FREQUENCY_CHANGE_PPB = 10_000

#: Clock classes on the PTP timescale: locked to a primary reference, and in holdover within specification.
LOCKED_CLASS = 6
HOLDOVER_CLASS = 7


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """What is assumed of a source, see `[source.bounds]`; every assumption is listed in docs/error-bound.md."""

    local_drift_ppb: int = 50_000
    grandmaster_rate_ppb: int = 100
    delay_filter_length: int = 10
    boundary_clock_error_ns: int | None = None
    asymmetry_uncertainty_ns: int = 0
    grandmaster_holdover_budget_ns: int = 1_500
    utc_offset_s: int = 37


@dataclass(frozen=True, slots=True)
class ParentBound:
    """The bound against the parent at a sample, with its terms; `phase_jump_ns` is what the offset moved by beyond reason."""

    bound: Bound
    terms: dict[str, int]
    phase_jump_ns: int | None = None


class SourceMemory:
    """
    The samples that ptp4l's delay filter may still remember.

    A sample is forgotten once delay requests *and* responses have each advanced by the filter's length plus one since (the
    responses alone also count other nodes'), or, where the counters are not served, after twice as many delay intervals.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._samples: deque[ClockSample] = deque()
        self._first: ClockSample | None = None

    def clear(self) -> None:
        """Forget all: the source restarted, the clock was stepped, or the parent is another one."""
        self._samples.clear()
        self._first = None

    def accept(self, sample: ClockSample) -> ParentBound | None:
        """
        Take the next fresh sample of the same parent. None while the delay filter may hold measurements of before this parent, or when the
        sample cannot be true (a negative path delay).
        """
        if self._started_anew(sample):
            self.clear()
        jump_ns = self._phase_jump_ns(sample)
        first = self._first = self._first or sample
        self._samples.append(sample)
        while self._passed(self._samples[0], sample):
            self._samples.popleft()
        if sample.path_delay_ns < 0 or not self._passed(first, sample):
            return None
        return self._bound(sample, jump_ns)

    @property
    def newest(self) -> ClockSample | None:
        return self._samples[-1] if self._samples else None

    def _started_anew(self, sample: ClockSample) -> bool:
        last = self.newest
        if last is None:
            return False
        return (
            last.clock != sample.clock
            or _went_back(last.delay_requests_sent, sample.delay_requests_sent)
            or _went_back(last.delay_responses_received, sample.delay_responses_received)
        )

    def _passed(self, old: ClockSample, new: ClockSample) -> bool:
        """The filter holds nothing any more that it held when `old` was taken."""
        wanted = self._settings.delay_filter_length + 1
        sent = _advance(old.delay_requests_sent, new.delay_requests_sent)
        received = _advance(old.delay_responses_received, new.delay_responses_received)
        if sent is None or received is None:
            intervals = 2 * self._settings.delay_filter_length
            return new.as_of_ns - old.as_of_ns >= intervals * new.delay_interval_ns
        return sent >= wanted and received >= wanted

    def _bound(self, sample: ClockSample, jump_ns: int | None) -> ParentBound:
        offsets = [old.offset_ns for old in self._samples]
        terms = {
            "offset": abs(sample.offset_ns),
            "offset_spread": max(offsets) - min(offsets),
            "path_delay": max(old.path_delay_ns for old in self._samples),
            "granularity": sample.granularity_ns,
            "step_tolerance": STEP_TOLERANCE_NS,
            "asymmetry_uncertainty": self._settings.asymmetry_uncertainty_ns,
        }
        return ParentBound(Bound(sum(terms.values()), self._growth_ppb()), terms, jump_ns)

    def _growth_ppb(self) -> int:
        fixed = self._settings.local_drift_ppb + self._settings.grandmaster_rate_ppb
        return fixed + steering_ppb([sample.frequency_ppb for sample in self._samples])

    def _phase_jump_ns(self, sample: ClockSample) -> int | None:
        """How far the offset moved, when neither the path delays nor the clocks' rates explain it."""
        last = self.newest
        if last is None:
            return None
        moved_ns = sample.offset_ns - last.offset_ns
        elapsed_ns = sample.as_of_ns - last.as_of_ns + sample.sync_interval_ns
        explained_ns = 2 * max(last.path_delay_ns, sample.path_delay_ns, 0) + 2 * STEP_TOLERANCE_NS
        explained_ns += self._growth_ppb() * elapsed_ns // NS_PER_S
        return moved_ns if abs(moved_ns) > explained_ns else None


def steering_ppb(frequencies_ppb: list[int | None]) -> int:
    """
    What the discipliner may do between two readings: three times the largest change of frequency seen between two within
    the memory; the slew limit while it is unread, or after a large change.
    """
    known = [f for f in frequencies_ppb if f is not None]
    if len(known) < len(frequencies_ppb) or not known:
        return SLEW_LIMIT_PPB
    largest = max((abs(b - a) for a, b in itertools.pairwise(known)), default=0)
    return SLEW_LIMIT_PPB if largest > LARGE_FREQUENCY_CHANGE_PPB else 3 * largest


def grandmaster_bound(parent: Bound, sample: ClockSample, settings: SourceSettings) -> Bound:
    """Against the grandmaster: each boundary clock between it and the parent adds its configured error."""
    hops = max(0, sample.steps_removed - 1)
    if hops == 0:
        return parent
    if settings.boundary_clock_error_ns is None:
        return unbounded(Reason.BOUNDARY_CLOCK_ERROR_UNKNOWN)
    return parent.plus(hops * settings.boundary_clock_error_ns)


def utc_bound(
    gm: Bound, sample: ClockSample, settings: SourceSettings, verdict: GrandmasterVerdict | None = None
) -> Bound:
    """Against UTC: the grandmaster's own error on top, where it is told and the timescale is known. Both growths count."""
    if gm.bound_ns is None:
        return gm
    if not sample.ptp_timescale:
        return unbounded(Reason.ARBITRARY_TIMESCALE)
    if sample.current_utc_offset_s is None or not sample.time_traceable:
        return unbounded(Reason.UTC_OFFSET_UNKNOWN)
    if sample.current_utc_offset_s != settings.utc_offset_s:
        return unbounded(Reason.UTC_OFFSET_DIFFERS)
    own = _grandmaster_error(sample, settings, verdict)
    return own if own.bound_ns is None else gm.plus(own.bound_ns, own.growth_ppb)


def _grandmaster_error(sample: ClockSample, settings: SourceSettings, verdict: GrandmasterVerdict | None) -> Bound:
    """
    The worse of what it announces and what its poller says. Two exceptions: a poller that knows nothing does not count, nor
    one that knew it locked and fell silent; and in a holdover that both tell, its own budget stands in for the flat one.
    """
    announced = _announced_error(sample, settings)
    if verdict is None:
        return announced
    told = verdict.utc_at(sample.as_of_ns)
    silent = told.reason is Reason.GRANDMASTER_UNHEARD and verdict.holdover_left_ns is None
    if silent or told.reason is Reason.GRANDMASTER_UNTOLD:
        return announced
    if verdict.holdover_left_ns is not None and sample.clock_class == HOLDOVER_CLASS:
        announced = Bound(ACCURACY_NS.get(sample.clock_accuracy, 0))
    return worse(told, announced)


def _announced_error(sample: ClockSample, settings: SourceSettings) -> Bound:
    if sample.clock_class not in (LOCKED_CLASS, HOLDOVER_CLASS):
        return unbounded(Reason.GRANDMASTER_NOT_LOCKED)
    accuracy_ns = ACCURACY_NS.get(sample.clock_accuracy)
    if accuracy_ns is None:
        return unbounded(Reason.GRANDMASTER_ACCURACY_UNKNOWN)
    holdover_ns = settings.grandmaster_holdover_budget_ns if sample.clock_class == HOLDOVER_CLASS else 0
    return Bound(accuracy_ns + holdover_ns)


def worse(one: Bound, other: Bound) -> Bound:
    """A bound that holds where either does; unbounded where one is. Both of one moment."""
    if one.bound_ns is None or other.bound_ns is None:
        return one if one.bound_ns is None else other
    return Bound(max(one.bound_ns, other.bound_ns), max(one.growth_ppb, other.growth_ppb))


def utc_seconds_removed(sample: ClockSample, settings: SourceSettings) -> int:
    """The whole seconds that ptp4l takes out: its own utc_offset, on a PTP timescale, whatever Announce says."""
    return settings.utc_offset_s if sample.ptp_timescale else 0


def _advance(old: int | None, new: int | None) -> int | None:
    return None if old is None or new is None else new - old


def _went_back(old: int | None, new: int | None) -> bool:
    advance = _advance(old, new)
    return advance is not None and advance < 0
