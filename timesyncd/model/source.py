"""
One source's recent samples -> the terms of its parent bound and the rate at which the bound grows. Pure.

docs/error-bound.md derives the terms. In short: offset + path delay is the forward difference t2 - t1 = x + f, exactly, with the
true offset x and the forward delay f >= 0, so x is at most that. From below, half of the exchanges in the delay filter were no longer than
the reported delay d, so x was at least the forward difference of *some* Sync in the filter's memory - 2d. What x did since then is
known from the frequency that the servo applied, less the oscillator's own: so what a servo does to a clock whose path has just
changed is in the bound, though the offset that it chases is soon 0.

What is assumed of a clock source.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from timesyncd.bound import UNKNOWN_PAST_PPB, Bound, Rate, Term
from timesyncd.clocks import NS_PER_S, STEP_TOLERANCE_NS
from timesyncd.model.delay_filter import DelayFilterWindow, DelayRefreshClock, FilterEntry
from timesyncd.model.oscillator import Drift, Oscillator
from timesyncd.model.servo import Steering, steering_ppb
from timesyncd.model.statistics import OUTLIER_FACTOR, RobustMean, SlidingMaximum, statistical_terms
from timesyncd.sample import ClockSample, DelayExchange


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """What is assumed of a source, see `[source.bounds]`; every assumption is listed in docs/error-bound.md."""

    local_drift_ppb: int = 50_000
    drift_floor_ppb: int = 1_000
    grandmaster_rate_ppb: int = 100
    delay_filter_length: int = 10
    boundary_clock_error_ns: int | None = None
    asymmetry_uncertainty_ns: int = 0
    path_minimum_ns: int = 0
    step_tolerance_ns: int = STEP_TOLERANCE_NS
    grandmaster_holdover_budget_ns: int = 1_500
    utc_offset_s: int = 37


#: What lies between the measurement and its reading is known; beyond so long, it counts as age.
_LONGEST_READING_NS = 2 * NS_PER_S

#: More are not waited for until the delay filter has forgotten them.
_MOST_SEEN = 4096

#: A gap between two Syncs up to here says as little of the oscillator as the ten seconds over which it was learnt.
_SHORT_GAP_NS = 10 * NS_PER_S


class ParentBound(NamedTuple):
    """
    The bounds against the parent at `as_of_ns` (CLOCK_BOOTTIME). `terms` add up to the hard one, `stat_terms` to the statistical one, `rates`
    to the growth of the former. The true offset, local minus parent, is in [`low_ns`, `high_ns`]. `phase_jump_ns` is what the offset moved by beyond reason.
    `since_sample_ns` is how much later `as_of_ns` is than the sample.
    """

    as_of_ns: int
    bound: Bound
    statistical: Bound
    terms: dict[Term, int]
    stat_terms: dict[Term, int]
    rates: dict[Rate, int]
    low_ns: int
    high_ns: int
    past_growth_ppb: int
    past_span_ns: int
    phase_jump_ns: int | None = None
    since_sample_ns: int = 0


class Coasting(NamedTuple):
    """
    What the last sample says after some time without one: `bound` as of `time_ns` (CLOCK_BOOTTIME), when the true offset is in
    [`low_ns`, `high_ns`]. `rates` add up to its growth.
    """

    bound: Bound
    rates: dict[Rate, int]
    time_ns: int
    low_ns: int
    high_ns: int


@dataclass(slots=True)
class _Held:
    """The true offset was in [low_ns, high_ns] at `time_ns` (CLOCK_BOOTTIME); the sample that says so is of `as_of_ns`."""

    as_of_ns: int
    time_ns: int
    low_ns: float
    high_ns: float
    steered_ns: float
    doubt_ns: float
    growth_ppb: int


class SourceMemory:
    """
    The samples that ptp4l's delay filter may still remember.

    A sample is forgotten once delay requests *and* responses have each advanced by the filter's length plus one since (the
    responses alone also count other nodes'), or, where the counters are not served, after twice as many delay intervals.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._steering = Steering()
        self._oscillator = Oscillator()
        self._origin: ClockSample | None = None
        self._number = 0
        self._noise = RobustMean()
        self._measured_minus_boot_ns = 0
        self._held: _Held | None = None
        self._clock: str | None = None
        self.clear()

    def clear(self) -> None:
        """Forget what the filter may remember: the source restarted, the clock was stepped, or the parent is another one."""
        self._oscillator.interrupt()
        self._levels = DelayFilterWindow()
        self._renewal = DelayRefreshClock()
        self._first: FilterEntry | None = None
        self._is_full = False
        self._disturbance = SlidingMaximum()
        self._change = SlidingMaximum()
        self._fastest = SlidingMaximum()

    def accept(self, sample: ClockSample) -> ParentBound | None:
        """
        Take the next fresh sample of the same parent. None while the delay filter may hold measurements of before this parent, or when the
        sample cannot be true (a path delay that is negative, or below its calibrated minimum).
        """
        if sample.clock != self._clock:
            self._begin(sample.clock)
        elif self._started_anew(sample):
            self.clear()
        elif len(self._levels.seen) >= _MOST_SEEN:
            self.clear()  # the delay was not measured for so long that it says nothing any more
        jump_ns = self._phase_jump_ns(sample)
        newest = self._take(sample)
        first = self._first = self._first or newest
        self._is_full = self._is_full or self._passed(first, newest)
        if sample.path_delay_ns < self._settings.path_minimum_ns or not self._is_full:
            return None
        bound = self._bound(jump_ns)
        # The clock may have been there at any moment up to the reading.
        wider_ns = bound.bound.growth_ppb * max(0, sample.read_ns - bound.as_of_ns) / NS_PER_S
        self._held = _Held(
            as_of_ns=bound.as_of_ns,
            time_ns=max(sample.read_ns, bound.as_of_ns),
            low_ns=bound.low_ns - wider_ns,
            high_ns=bound.high_ns + wider_ns,
            steered_ns=self._steering.steered_ns,
            doubt_ns=self._steering.doubt_ns,
            growth_ppb=bound.bound.growth_ppb,
        )
        return bound

    def hold(self, boottime_ns: int, frequency_ppb: int) -> Coasting | None:
        """
        A reading of the frequency without a valid sample: what the last sample says now, since what was applied meanwhile is known.
        None: no better than its growth.
        """
        self._steering.read(boottime_ns + self._measured_minus_boot_ns, frequency_ppb)
        return self.held(boottime_ns)

    def held(self, boottime_ns: int) -> Coasting | None:
        """The same after a sample that gave no bound."""
        held = self._held
        if held is None or boottime_ns < held.time_ns:
            return None
        rates, elapsed_ns = self._rates_ppb(), boottime_ns - held.time_ns
        growth_ppb = sum(rates.values())
        movement = self._held_movement(boottime_ns - held.as_of_ns)
        if movement is None and growth_ppb <= held.growth_ppb:
            return None
        rate_ppb, doubt_ppb = movement or (0.0, growth_ppb)
        moved_ns = rate_ppb * elapsed_ns / NS_PER_S + self._steering.steered_ns - held.steered_ns
        doubt_ns = doubt_ppb * elapsed_ns / NS_PER_S + self._steering.doubt_ns - held.doubt_ns
        held.low_ns, held.high_ns = held.low_ns + moved_ns - doubt_ns, held.high_ns + moved_ns + doubt_ns
        held.time_ns, held.growth_ppb = boottime_ns, growth_ppb
        held.steered_ns, held.doubt_ns = self._steering.steered_ns, self._steering.doubt_ns
        low_ns, high_ns = math.floor(held.low_ns), math.ceil(held.high_ns)
        return Coasting(Bound(max(abs(low_ns), abs(high_ns)), growth_ppb), rates, boottime_ns, low_ns, high_ns)

    def _held_movement(self, age_ns: int) -> tuple[float, float] | None:
        """How fast the free oscillator runs away, and the doubt about it, in ppb; None: nothing is known but what is allowed for."""
        drift, steering = self._oscillator.drift, self._steering
        if drift is None or steering.frequency_ppb is None or steering.frequency_before_ppb is None:
            return None
        doubt_ppb = drift.wander_ppb if age_ns <= _SHORT_GAP_NS else self._drift_ppb(drift)
        doubt_ppb += self._settings.grandmaster_rate_ppb + steering.change_ppb
        return drift.rate_ppb, doubt_ppb

    @property
    def newest(self) -> ClockSample | None:
        return self._levels.seen[-1].sample if self._levels.seen else None

    @property
    def drift(self) -> Drift | None:
        """What was learnt of the local oscillator; None: too little yet."""
        return self._oscillator.drift

    def _begin(self, clock: str) -> None:
        """Another clock is measured: nothing that was learnt is true of it."""
        self.clear()
        self._clock, self._origin, self._held = clock, None, None
        self._steering, self._oscillator, self._noise = Steering(), Oscillator(), RobustMean()

    def _started_anew(self, sample: ClockSample) -> bool:
        last = self.newest
        if last is None:
            return False
        return _went_back(last.delay_requests_sent, sample.delay_requests_sent) or _went_back(
            last.delay_responses_received, sample.delay_responses_received
        )

    def _passed(self, old: FilterEntry, new: FilterEntry) -> bool:
        """The filter holds nothing any more that it held when `old` was taken."""
        length, interval_ns = self._settings.delay_filter_length, new.sample.delay_interval_ns
        sent, received = new.sample.delay_requests_sent, new.sample.delay_responses_received
        sent_then, received_then = old.sample.delay_requests_sent, old.sample.delay_responses_received
        renewed_ns = new.renewed_ns - old.renewed_ns
        if sent is None or received is None or sent_then is None or received_then is None:
            return renewed_ns >= 2 * length * interval_ns
        # Requests may get lost, and the responses counted be other nodes'.
        return (
            sent - sent_then > length and received - received_then > length and 2 * renewed_ns >= length * interval_ns
        )

    def _take(self, sample: ClockSample) -> FilterEntry:
        last = self._levels.seen[-1] if self._levels.seen else None
        origin = self._origin = self._origin or sample
        self._measured_minus_boot_ns = sample.ingress_time_ns - sample.read_ns
        steering, doubt_ns = self._steering, self._steering.doubt_ns
        steering.read(sample.ingress_time_ns, sample.frequency_ppb)
        # The delay may have been renewed between the Sync and the reading: the offset was computed with either.
        delay_ns = min(sample.path_delay_ns, last.sample.path_delay_ns) if last else sample.path_delay_ns
        unsteered_ns = sample.offset_ns + delay_ns - steering.steered_ns
        gap_ns = sample.ingress_time_ns - last.sample.ingress_time_ns if last else 0
        surprise_ns = self._surprise_ns(unsteered_ns - last.unsteered_ns, gap_ns) if last else None
        answered_ns = abs(sample.offset_ns) + (abs(last.sample.offset_ns) if last else 0)
        steering.surprised(surprise_ns, self._noise.size, answered_ns)
        number = self._number = self._number + 1
        floors = tuple([self._floor(exchange, steering.doubt_ns - doubt_ns) for exchange in sample.exchanges])
        time_ns = sample.ingress_time_ns - origin.ingress_time_ns
        renewed_ns = self._renewal.at(sample.as_of_ns, sample.path_delay_ns, self._noise.size)
        seen = FilterEntry(sample, number, time_ns, renewed_ns, unsteered_ns, steering.doubt_ns, floors)
        learnt = self._learn(seen)
        self._levels.push(seen, self._oscillator.drift, learnt)
        self._change.push(number, steering.change_ppb)
        self._fastest.push(number, self._rate_ppb(sample.frequency_ppb))
        self._disturbance.push(number, self._disturbance_ns(steering.frequency_before_ppb, gap_ns))
        first = self._levels.forget(lambda old: self._passed(old, seen))
        for each in (self._change, self._fastest, self._disturbance):
            each.expire(first)
        return seen

    def _learn(self, seen: FilterEntry) -> bool:
        frequency_ppb = seen.sample.frequency_ppb
        if frequency_ppb is None:
            self._oscillator.interrupt()
            return False
        return self._oscillator.take(seen.time_ns, seen.unsteered_ns, -frequency_ppb)

    def _floor(self, exchange: DelayExchange, doubt_ns: float) -> tuple[int, float]:
        """The true offset at t3 was no less than minus the backward difference. What was steered since is in doubt by `doubt_ns`."""
        assert self._origin is not None
        steered_ns = self._steering.steered_at(exchange.local_ns)
        return exchange.local_ns - self._origin.ingress_time_ns, -exchange.reverse_ns - steered_ns - doubt_ns

    def _surprise_ns(self, moved_ns: float, gap_ns: int) -> float | None:
        """How far the forward difference moved beyond its usual noise, when drift and steering are taken out; None: not learnt yet."""
        drift = self._oscillator.drift
        if drift is None:
            return None
        moved_ns = abs(moved_ns - drift.rate_ppb * gap_ns / NS_PER_S)
        surprise_ns = moved_ns - OUTLIER_FACTOR * self._noise.size - drift.wander_ppb * gap_ns / NS_PER_S
        known = self._noise.known
        self._noise.take(moved_ns)
        return max(0.0, surprise_ns) if known else None

    def _disturbance_ns(self, frequency_before_ppb: int | None, gap_ns: int) -> float:
        """How far the clock may have moved between a Sync and the delay measurement that was held against it."""
        drift = self._oscillator.drift
        if drift is None or frequency_before_ppb is None:
            return 0.0
        rate_ppb = abs(drift.rate_ppb + frequency_before_ppb) + drift.wander_ppb
        if gap_ns > _SHORT_GAP_NS:
            rate_ppb += self._settings.drift_floor_ppb
        return rate_ppb * gap_ns / NS_PER_S

    def _bound(self, jump_ns: int | None) -> ParentBound:
        sample, settings = self._levels.seen[-1].sample, self._settings
        rates = self._rates_ppb()
        growth_ppb = sum(rates.values())
        delay_ns = self._levels.newest_delay_ns()
        late_ns = min(max(0, sample.read_ns - sample.as_of_ns), _LONGEST_READING_NS)
        memory_ns = math.ceil(self._memory_ns(delay_ns))
        offset_ns = abs(sample.offset_ns)
        terms = {
            Term.OFFSET: offset_ns,
            Term.PATH_DELAY: max(0, delay_ns - settings.path_minimum_ns),
            Term.PATH_MEMORY: memory_ns,
            Term.GRANULARITY: sample.granularity_ns,
            Term.STEP_TOLERANCE: settings.step_tolerance_ns,
            Term.ASYMMETRY_UNCERTAINTY: settings.asymmetry_uncertainty_ns,
            Term.READING_AGE: math.ceil(self._short_term_ppb(growth_ppb) * late_ns / NS_PER_S),
        }
        bound_ns = sum(terms.values())
        hard = Bound(bound_ns, growth_ppb)
        statistical, stat_terms = self._statistical(hard, delay_ns, terms)
        return ParentBound(
            as_of_ns=sample.as_of_ns + late_ns,
            bound=hard,
            statistical=statistical,
            terms=terms,
            stat_terms=stat_terms,
            rates=rates,
            low_ns=sample.offset_ns - bound_ns + offset_ns,
            high_ns=sample.offset_ns + bound_ns - offset_ns - memory_ns,
            past_growth_ppb=self._past_growth_ppb(),
            past_span_ns=max(0, sample.as_of_ns - self._levels.seen[0].sample.read_ns),
            phase_jump_ns=jump_ns,
        )

    def _past_growth_ppb(self) -> int:
        """How fast the clock ran at most, within the memory."""
        drift = self._oscillator.drift
        if drift is None:
            return UNKNOWN_PAST_PPB
        fastest_ppb = self._fastest.value + drift.wander_ppb + self._settings.grandmaster_rate_ppb
        return min(UNKNOWN_PAST_PPB, math.ceil(fastest_ppb))

    def _rate_ppb(self, frequency_ppb: int | None) -> float:
        """How fast a clock on which this is applied runs away, at most."""
        drift = self._oscillator.drift
        return UNKNOWN_PAST_PPB if drift is None or frequency_ppb is None else abs(drift.rate_ppb + frequency_ppb)

    def _memory_ns(self, delay_ns: int) -> float:
        """How much further below the offset than one path delay the truth may lie."""
        levels, drift, steering = self._levels, self._oscillator.drift, self._steering
        if drift is None or steering.frequency_ppb is None:
            # A servo that chased a change of the path left an offset behind that was seen.
            return levels.range_ns() + levels.longest_delay_ns() - delay_ns
        newest = levels.seen[-1]
        lowest_ns = levels.lowest_ns(drift, 2 * delay_ns + self._disturbance.value)
        lowest_ns += steering.steered_ns - newest.doubt_ns - steering.phase_doubt_ns
        return max(0.0, newest.sample.offset_ns - delay_ns - lowest_ns)

    def _short_term_ppb(self, growth_ppb: int) -> float:
        """From the measurement to its reading: what was applied then is known."""
        drift, frequency_ppb = self._oscillator.drift, self._steering.frequency_ppb
        if drift is None or frequency_ppb is None:
            return growth_ppb
        rate_ppb = abs(drift.rate_ppb + frequency_ppb) + drift.wander_ppb + self._steering.change_ppb
        return min(rate_ppb + self._settings.grandmaster_rate_ppb, growth_ppb)

    def _rates_ppb(self) -> dict[Rate, int]:
        """
        What makes the bound grow. `frequency_offset` is how far the frequency that is applied is from the one that would keep the clock
        on time: a servo's last kick goes on when it is frozen.
        """
        drift, frequency_ppb = self._oscillator.drift, self._steering.frequency_ppb
        rates = {Rate.STEERING: self._steering_ppb(), Rate.GRANDMASTER_RATE: self._settings.grandmaster_rate_ppb}
        if drift is None or frequency_ppb is None:
            rates[Rate.LOCAL_DRIFT] = self._settings.local_drift_ppb
        else:
            rates[Rate.LOCAL_DRIFT] = math.ceil(self._drift_ppb(drift))
            rates[Rate.FREQUENCY_OFFSET] = math.ceil(abs(drift.rate_ppb + frequency_ppb))
        return rates

    def _steering_ppb(self) -> int:
        if self._steering.frequency_ppb is None:
            return steering_ppb(None)
        return steering_ppb(max(self._change.value if self._levels.seen else 0.0, self._steering.change_ppb))

    def _drift_ppb(self, drift: Drift) -> float:
        """How far the oscillator may come to be from its rate of late: what was seen twice over, within floor and ceiling."""
        seen_ppb = 2 * drift.range_ppb + drift.wander_ppb
        floor, ceiling = self._settings.drift_floor_ppb, self._settings.local_drift_ppb
        return max(seen_ppb, min(floor, ceiling))

    def _statistical(self, hard: Bound, delay_ns: int, terms: dict[Term, int]) -> tuple[Bound, dict[Term, int]]:
        drift, frequency_ppb = self._oscillator.drift, self._steering.frequency_ppb
        if drift is None or frequency_ppb is None:
            return hard, terms
        forward_ns = self._levels.mean_ns(drift) + self._steering.steered_ns
        parts = statistical_terms(forward_ns - delay_ns, self._levels.spread, terms)
        bound_ns = sum(parts.values())
        if not parts or hard.bound_ns is None or bound_ns >= hard.bound_ns:
            return hard, terms
        growth_ppb = math.ceil(abs(drift.rate_ppb + frequency_ppb) + self._drift_ppb(drift))
        return Bound(bound_ns, min(hard.growth_ppb, growth_ppb)), parts

    def _phase_jump_ns(self, sample: ClockSample) -> int | None:
        """How far the offset moved, when neither the path delays nor the clocks' rates explain it."""
        last = self.newest
        if last is None:
            return None
        moved_ns = sample.offset_ns - last.offset_ns
        elapsed_ns = sample.as_of_ns - last.as_of_ns + sample.sync_interval_ns
        explained_ns = 2 * max(last.path_delay_ns, sample.path_delay_ns, 0) + 2 * STEP_TOLERANCE_NS
        if elapsed_ns >= 0 and abs(moved_ns) <= explained_ns:
            return None
        explained_ns += (self._settings.local_drift_ppb + self._settings.grandmaster_rate_ppb) * elapsed_ns // NS_PER_S
        explained_ns += self._steering_ppb() * elapsed_ns // NS_PER_S
        return moved_ns if abs(moved_ns) > explained_ns else None


def _went_back(old: int | None, new: int | None) -> bool:
    return old is not None and new is not None and new < old
