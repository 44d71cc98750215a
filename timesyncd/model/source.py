"""
From one source's recent samples to the bound against its PTP parent: terms, and rates of growth. Pure.

docs/error-bound.md derives the terms. In short: offset + path delay is the forward difference t2 - t1 = x + f, exactly,
with the true offset x and the forward delay f >= 0, so x is at most that. From below: half of the exchanges in ptp4l's
delay filter took no longer than the reported delay d, so x was at least the forward difference of *some* Sync in the
filter's window minus 2d. How x moved since is known from the frequency that the servo applied, minus the oscillator's
own rate. So the bound includes what a servo does to a clock whose path has just changed, although the offset that it
corrects is soon 0.
"""

from __future__ import annotations

import math

from timesyncd.bound import UNKNOWN_PAST_PPB, Bound, Rate, Term, growth_ns
from timesyncd.clocks import NS_PER_S, STEP_TOLERANCE_NS
from timesyncd.model.assumptions import Assumption, Refutation, SourceSettings, assumed
from timesyncd.model.delay_filter import DelayFilterWindow, DelayGap, DelayRefreshClock, FilterEntry
from timesyncd.model.oscillator import Drift, Oscillator, RateChange
from timesyncd.model.parent_bound import CarriedSync, Coasting, CoastingState, ParentBound
from timesyncd.model.servo import FASTEST_SERVO_PPB, Steering, in_own_seconds_ppb, response_ppb, steering_ppb
from timesyncd.model.statistics import OUTLIER_FACTOR, RobustMean, SlidingMaximum, statistical_terms
from timesyncd.sample import ClockSample, DelayExchange

#: The growth from a measurement to its reading is a term of the bound up to this long, beyond it is age.
_MAX_READING_NS = 2 * NS_PER_S

#: With so many entries that have not expired the path delay is not being measured, and the window starts again.
_MAX_ENTRIES = 4096

#: A servo reacts to the rare long queue at once and unread. So its largest change is remembered for so many times the window:
#: with 30 % of the Syncs in an exponential queue a change beyond three times the largest of ten windows is 270 times rarer
#: than one beyond that of one window.
_CHANGE_WINDOWS = 10

#: Up to this gap between two Syncs the oscillator's wander applies, which was learned over ten seconds; beyond it more
#: may have changed.
_SHORT_GAP_NS = 10 * NS_PER_S


#: Each slope of so long a time must exceed an assumption to refute it.
_STEEP_FOR_NS = 10 * NS_PER_S


class SourceMemory:
    """
    The samples that ptp4l's delay filter may still use.

    A sample expires once delay requests *and* responses have each advanced by more than the filter's length since (the
    responses alone also count those of other nodes). Where ptp4l does not serve the counters, it expires after twice as
    many delay intervals.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._steering = Steering()
        self._oscillator = Oscillator()
        self._origin: ClockSample | None = None
        self._number = 0
        self._noise = RobustMean()
        self._measured_minus_boot_ns = 0
        self._coasting: CoastingState | None = None
        self._clock: tuple[str, bool] | None = None
        self._limit_ppb = FASTEST_SERVO_PPB
        self._frequency_ppb: int | None = None
        self._carried: CarriedSync | None = None
        self._assumed = assumed(settings)
        self.clear()

    def clear(self) -> None:
        """Drop the window: the source restarted, the clock was stepped, or the parent changed."""
        self._oscillator.interrupt()
        self._window = DelayFilterWindow()
        self._refresh_clock = DelayRefreshClock()
        self._first: FilterEntry | None = None
        self._is_full = False
        self._gap: DelayGap | None = None
        self._steep_since_ns: int | None = None
        self._rate_change = RateChange()
        self._departure_ppb = 0.0
        self._disturbance = SlidingMaximum()
        self._change = SlidingMaximum()
        self._fastest = SlidingMaximum()
        self._corrections = SlidingMaximum()

    def accept(self, sample: ClockSample, carried: CarriedSync | None = None) -> ParentBound | None:
        """
        Add the next fresh sample of the same parent, and return the bound at it.

        `carried`: the sample was measured on a PHC and carried over to the system clock.

        None while the delay filter may contain measurements from before this parent, or when the sample cannot be true:
        its path delay is negative.
        """
        measured = sample.clock, carried is not None
        if measured != self._clock:
            self._start_over(measured)
        elif self._source_restarted(sample):
            self.clear()
        elif len(self._window.entries) >= _MAX_ENTRIES:
            self.clear()  # the path delay was not measured for so long that it is no longer valid
        jump_ns = self._phase_jump_ns(sample, carried)
        self._carried = carried
        newest = self._add(sample)
        first = self._first = self._first or newest
        self._is_full = self._is_full or self._has_expired(first, newest)
        if sample.path_delay_ns < 0 or not self._is_full:
            if self._coasting is not None:
                self._coasting.seen = newest
            return None
        self._check_path_minimum(sample)
        self._check_drift(newest)
        self._check_gap(newest)
        bound = self._bound(jump_ns)
        # The clock may have been there at any moment up to the reading.
        wider_ns = bound.bound.growth_ppb * max(0, sample.read_ns - bound.as_of_ns) / NS_PER_S
        self._coasting = CoastingState(
            as_of_ns=bound.as_of_ns,
            time_ns=max(sample.read_ns, bound.as_of_ns),
            low_ns=bound.low_ns - wider_ns,
            high_ns=bound.high_ns + wider_ns,
            steered_ns=self._steering.steered_ns,
            uncertainty_ns=self._steering.uncertainty_ns,
            growth_ppb=bound.bound.growth_ppb,
        )
        return bound

    def coast(self, boottime_ns: int, frequency_ppb: int, unseen_ns: int = 0) -> Coasting | None:
        """
        Add a reading of the frequency without a valid sample, and return the bound now: how the clock was steered since
        is known, but for `unseen_ns` that another clock shows.

        None: this bound is no narrower than the growth of the last one.
        """
        time_ns = boottime_ns + self._measured_minus_boot_ns
        self._steering.add_reading(time_ns, in_own_seconds_ppb(frequency_ppb), self._limit_ppb)
        self._frequency_ppb = frequency_ppb
        if self._coasting is not None:
            self._coasting.unseen_ns += unseen_ns
        return self.coasting(boottime_ns)

    def coasting(self, boottime_ns: int) -> Coasting | None:
        """The same after a sample that gave no bound."""
        state = self._coasting
        if state is None or boottime_ns < state.time_ns:
            return None
        rates, elapsed_ns = self._rates_ppb(), boottime_ns - state.time_ns
        growth_ppb = sum(rates.values())
        movement = self._coasting_movement(boottime_ns - state.as_of_ns)
        if movement is None and growth_ppb <= state.growth_ppb and not self._is_refuted(state, boottime_ns):
            return None
        rate_ppb, uncertainty_ppb = movement or (0.0, growth_ppb)
        moved_ns = rate_ppb * elapsed_ns / NS_PER_S + self._steering.steered_ns - state.steered_ns
        uncertainty_ns = uncertainty_ppb * elapsed_ns / NS_PER_S + self._steering.uncertainty_ns - state.uncertainty_ns
        uncertainty_ns, state.unseen_ns = uncertainty_ns + state.unseen_ns, 0
        state.low_ns, state.high_ns = (
            state.low_ns + moved_ns - uncertainty_ns,
            state.high_ns + moved_ns + uncertainty_ns,
        )
        if state.seen is not None:
            low_ns, high_ns = self._shown_by(state.seen, growth_ppb)
            state.low_ns, state.high_ns = min(state.low_ns, low_ns), max(state.high_ns, high_ns)
        state.time_ns, state.growth_ppb, state.seen = boottime_ns, growth_ppb, None
        state.steered_ns, state.uncertainty_ns = self._steering.steered_ns, self._steering.uncertainty_ns
        low_ns, high_ns = math.floor(state.low_ns), math.ceil(state.high_ns)
        bound = Bound(max(abs(low_ns), abs(high_ns)), growth_ppb)
        return Coasting(bound, rates, boottime_ns, low_ns, high_ns, self._frequency_ppb)

    def _is_refuted(self, state: CoastingState, boottime_ns: int) -> bool:
        """Whether what was read since shows the clock outside the bound, as it has grown until now."""
        if state.seen is None:
            return state.unseen_ns > 0
        grown_ns = growth_ns(state.growth_ppb, boottime_ns - state.time_ns)
        low_ns, high_ns = self._shown_by(state.seen, state.growth_ppb)
        return state.unseen_ns > 0 or low_ns < state.low_ns - grown_ns or high_ns > state.high_ns + grown_ns

    def _shown_by(self, entry: FilterEntry, growth_ppb: int) -> tuple[float, float]:
        """
        Where a sample shows the clock that gives no bound, since the delay filter may hold delays of before. It may have
        been steered while nothing was read.
        """
        sample = entry.sample
        aged_ns = growth_ns(growth_ppb, max(0, sample.read_ns - sample.as_of_ns))
        error_ns = abs(sample.path_delay_ns) + sample.granularity_ns + entry.error_ns + aged_ns
        return sample.offset_ns - error_ns, sample.offset_ns + error_ns

    def _coasting_movement(self, age_ns: int) -> tuple[float, float] | None:
        """The free oscillator's rate and its uncertainty in ppb; None: not learned, or the frequency is not known."""
        drift, steering = self._oscillator.drift, self._steering
        if drift is None or steering.frequency_ppb is None or steering.frequency_before_ppb is None:
            return None
        uncertainty_ppb = drift.wander_ppb if age_ns <= _SHORT_GAP_NS else self._drift_ppb(drift)
        uncertainty_ppb = max(uncertainty_ppb, self._shown_change_ppb(drift))
        uncertainty_ppb += self._assumed[Assumption.GRANDMASTER_RATE] + steering.change_ppb
        return drift.rate_ppb, uncertainty_ppb

    @property
    def of_system_clock(self) -> bool:
        """Whether the Syncs are carried over from a PHC to the system clock."""
        return self._carried is not None

    @property
    def newest(self) -> ClockSample | None:
        return self._window.entries[-1].sample if self._window.entries else None

    @property
    def drift(self) -> Drift | None:
        """The learned drift of the local oscillator; None: not learned yet."""
        return self._oscillator.drift

    @property
    def refutations(self) -> tuple[Refutation, ...]:
        """The assumptions that the samples have refuted so far."""
        return tuple(
            Refutation(which, value, self._assumed[which])
            for which, value in assumed(self._settings).items()
            if self._assumed[which] != value
        )

    def refute(self, assumption: Assumption, observed: int) -> None:
        """Samples of several sources together show this value, and it counts from now on."""
        self._assumed[assumption] = max(self._assumed[assumption], observed)

    def _check_path_minimum(self, sample: ClockSample) -> None:
        """A path delay below the calibrated minimum, beyond what the clock's own movement explains."""
        explained_ns = sample.granularity_ns + math.ceil(self._disturbance.value / 2)
        least_ns = sample.path_delay_ns + explained_ns
        if least_ns < self._assumed[Assumption.PATH_MINIMUM]:
            self._assumed[Assumption.PATH_MINIMUM] = 0

    def _check_drift(self, newest: FilterEntry) -> None:
        """
        An oscillator that is further off than assumed: by its learned rate, or by the window's slope. Noise makes steep
        slopes, too, so each slope of a while must show it.
        """
        drift = self._oscillator.drift
        rate_ppb, error_ppb = self._window.slope_ppb() if drift is None else (drift.rate_ppb, drift.wander_ppb)
        if self._has_been_steep(newest.time_ns, abs(rate_ppb) - error_ppb):
            self.refute(Assumption.LOCAL_DRIFT, math.ceil(abs(rate_ppb) + error_ppb))

    def _has_been_steep(self, time_ns: int, least_ppb: float) -> bool:
        if self._steering.frequency_ppb is None or least_ppb <= self._assumed[Assumption.LOCAL_DRIFT]:
            self._steep_since_ns = None
            return False
        self._steep_since_ns = self._steep_since_ns or time_ns
        return time_ns - self._steep_since_ns >= _STEEP_FOR_NS

    def _check_gap(self, newest: FilterEntry) -> None:
        """
        Whether the clock moved further in the last gap than was assumed of the oscillator. The answer waits until the
        delay filter has forgotten the gap: a path that changed meanwhile shows in the delay then.
        """
        gap = self._gap
        if gap is None or not self._has_expired(gap.after, newest):
            return
        self._gap = None
        error_ns = gap.delay_ns + self._window.largest_delay_ns() + 2 * self._window.largest_error_ns()
        if (gap.beyond_ns - error_ns) * NS_PER_S > gap.assumed_ppb * gap.length_ns:
            observed_ppb = (gap.beyond_ns + error_ns) * NS_PER_S / gap.length_ns
            self.refute(Assumption.DRIFT_FLOOR, math.ceil(observed_ppb))

    def _start_over(self, clock: tuple[str, bool]) -> None:
        """Another clock is measured: what was learned does not apply to it."""
        self.clear()
        self._clock, self._origin, self._coasting = clock, None, None
        self._assumed = assumed(self._settings)
        self._steering, self._oscillator, self._noise = Steering(), Oscillator(), RobustMean()

    def _source_restarted(self, sample: ClockSample) -> bool:
        last = self.newest
        if last is None:
            return False
        return _went_back(last.delay_requests_sent, sample.delay_requests_sent) or _went_back(
            last.delay_responses_received, sample.delay_responses_received
        )

    def _has_expired(self, old: FilterEntry, new: FilterEntry) -> bool:
        """ptp4l's filter no longer contains any delay that it contained at `old`."""
        length = self._settings.delay_filter_length
        # The grandmaster may change the interval (logMinDelayReqInterval): the filter was filled at the longer one.
        interval_ns = max(old.sample.delay_interval_ns, new.sample.delay_interval_ns)
        sent, received = new.sample.delay_requests_sent, new.sample.delay_responses_received
        sent_then, received_then = old.sample.delay_requests_sent, old.sample.delay_responses_received
        refreshed_ns = new.refreshed_ns - old.refreshed_ns
        if sent is None or received is None or sent_then is None or received_then is None:
            return refreshed_ns >= 2 * length * interval_ns
        # Requests may be lost, and the counted responses may be those of other nodes.
        return (
            sent - sent_then > length and received - received_then > length and 2 * refreshed_ns >= length * interval_ns
        )

    def _add(self, sample: ClockSample) -> FilterEntry:
        last = self._window.entries[-1] if self._window.entries else None
        origin = self._origin = self._origin or sample
        self._measured_minus_boot_ns = sample.ingress_time_ns - sample.read_ns
        steering, uncertainty_ns = self._steering, self._steering.uncertainty_ns
        gap_ns = sample.ingress_time_ns - last.sample.ingress_time_ns if last else 0
        self._limit_ppb = self._servo_limit_ppb(sample, last.sample if last else None, gap_ns)
        steering.add_reading(sample.ingress_time_ns, _own_frequency_ppb(sample), self._limit_ppb)
        self._frequency_ppb = sample.frequency_ppb
        # The delay may have been measured again between the Sync and the reading: the offset was computed with one of
        # the two.
        delay_ns = min(sample.path_delay_ns, last.sample.path_delay_ns) if last else sample.path_delay_ns
        unsteered_ns = sample.offset_ns + delay_ns - steering.steered_ns
        innovation_ns = self._innovation_ns(unsteered_ns - last.unsteered_ns, gap_ns) if last else None
        offsets_ns = abs(sample.offset_ns) + (abs(last.sample.offset_ns) if last else 0)
        steering.add_innovation(innovation_ns, self._noise.value, offsets_ns)
        number = self._number = self._number + 1
        added_ns = steering.uncertainty_ns - uncertainty_ns
        lower_bounds = tuple([self._lower_bound(exchange, added_ns) for exchange in sample.exchanges])
        time_ns = sample.ingress_time_ns - origin.ingress_time_ns
        refreshed_ns = self._refresh_clock.advance(sample.as_of_ns, sample.path_delay_ns, self._noise.value)
        error_ns = self._carried.error_ns if self._carried else 0
        entry = FilterEntry(
            sample, number, time_ns, refreshed_ns, unsteered_ns, steering.uncertainty_ns, lower_bounds, error_ns
        )
        if last is not None and gap_ns > _SHORT_GAP_NS:
            self._gap = self._gap_before(entry, last, gap_ns)
            self._steep_since_ns = None  # no slope of the gap shows it
        is_new_drift = self._learn(entry)
        drift = self._oscillator.drift
        self._window.push(entry, drift, is_new_drift)
        self._change.push(number, max(steering.change_ppb, self._unusual_correction_ppb()))
        self._corrections.push(number, self._carried.correction_ppb if self._carried else 0)
        self._fastest.push(number, self._rate_ppb(_own_frequency_ppb(sample)))
        self._disturbance.push(number, self._disturbance_ns(steering.frequency_before_ppb, gap_ns))
        first = self._window.expire(lambda old: self._has_expired(old, entry))
        self._departure_ppb = self._window.departure_ppb(drift.rate_ppb) if drift else 0.0
        for each in (self._fastest, self._disturbance, self._corrections):
            each.expire(first)
        self._change.expire(number - _CHANGE_WINDOWS * (number - first))
        return entry

    def _gap_before(self, entry: FilterEntry, last: FilterEntry, gap_ns: int) -> DelayGap | None:
        """None where the oscillator's rate, or what the servo did in the gap, is not known."""
        drift = self._oscillator.drift
        if drift is None or entry.sample.frequency_ppb is None or last.sample.frequency_ppb is None:
            return None
        moved_ns = entry.unsteered_ns - last.unsteered_ns - drift.rate_ppb * gap_ns / NS_PER_S
        unsure_ns = entry.uncertainty_ns - last.uncertainty_ns
        return DelayGap(entry, gap_ns, abs(moved_ns) - unsure_ns, self._drift_ppb(drift), last.sample.path_delay_ns)

    def _learn(self, entry: FilterEntry) -> bool:
        """Whether the drift is new."""
        frequency_ppb = _own_frequency_ppb(entry.sample)
        if frequency_ppb is None:
            self._oscillator.interrupt()
            return False
        return self._oscillator.add(entry.time_ns, entry.unsteered_ns, -frequency_ppb)

    def _lower_bound(self, exchange: DelayExchange, uncertainty_ns: float) -> tuple[int, float]:
        """
        The true offset at t3 was at least minus the backward difference; how far it was steered since is uncertain by
        `uncertainty_ns`.
        """
        assert self._origin is not None
        steered_ns = self._steering.steered_at(exchange.local_ns)
        return exchange.local_ns - self._origin.ingress_time_ns, -exchange.reverse_ns - steered_ns - uncertainty_ns

    def _innovation_ns(self, moved_ns: float, gap_ns: int) -> float | None:
        """
        How far the forward difference moved beyond its usual noise, drift and steering removed; None: not learned yet.
        """
        drift = self._oscillator.drift
        if drift is None:
            return None
        moved_ns -= drift.rate_ppb * gap_ns / NS_PER_S
        usual_ns = OUTLIER_FACTOR * self._noise.value + drift.wander_ppb * gap_ns / NS_PER_S
        innovation_ns = abs(moved_ns) - usual_ns
        is_known = self._noise.is_known
        self._rate_change.add(moved_ns, usual_ns if is_known else math.inf, gap_ns)
        self._noise.add(abs(moved_ns))
        return max(0.0, innovation_ns) if is_known else None

    def _disturbance_ns(self, frequency_before_ppb: int | None, gap_ns: int) -> float:
        """
        How far the measured clock may have moved between a Sync and the delay measurement that its offset was computed
        with.
        """
        drift, carried = self._oscillator.drift, self._carried
        if drift is None or frequency_before_ppb is None:
            return 0.0
        moved_ns = (drift.rate_ppb + frequency_before_ppb) * gap_ns / NS_PER_S
        wander_ppb = drift.wander_ppb
        if gap_ns > _SHORT_GAP_NS:
            wander_ppb += self._assumed[Assumption.DRIFT_FLOOR]
        unsure_ns = wander_ppb * gap_ns / NS_PER_S
        if carried is not None and carried.moved_ns is not None:
            # ptp4l measured the delay on the PHC, which moved apart from the system clock.
            moved_ns, unsure_ns = moved_ns - carried.moved_ns, unsure_ns + carried.moved_error_ns
        return abs(moved_ns) + unsure_ns

    def _unusual_correction_ppb(self) -> int:
        """
        How far the servo may have changed the PHC's rate in response to the newest Sync, where that is more than at any
        other Sync of the window: what steers the system clock by the PHC may follow, before it is read again.
        """
        correction_ppb = self._carried.correction_ppb if self._carried else 0
        return correction_ppb if self._corrections and correction_ppb > self._corrections.value else 0

    def _servo_limit_ppb(self, sample: ClockSample, last: ClockSample | None, gap_ns: int) -> int:
        """
        The most that the servo may do unread: the measured clock's own limit; where the frequency cannot be read, also
        its response to the newest offset.
        """
        limit_ppb = FASTEST_SERVO_PPB if sample.max_frequency_ppb is None else sample.max_frequency_ppb
        if sample.frequency_ppb is not None or last is None:
            return limit_ppb
        delay_ns = max(self._window.largest_delay_ns(), sample.path_delay_ns)
        responded_ppb = response_ppb(last.offset_ns, sample.offset_ns, gap_ns, delay_ns, sample.sync_interval_ns)
        return min(limit_ppb, responded_ppb)

    def _bound(self, jump_ns: int | None) -> ParentBound:
        sample, settings, carried = self._window.entries[-1].sample, self._settings, self._carried
        rates = self._rates_ppb()
        growth_ppb = sum(rates.values())
        delay_ns = self._window.newest_delay_ns()
        reading_ns = min(max(0, sample.read_ns - sample.as_of_ns), _MAX_READING_NS)
        memory_ns = math.ceil(self._memory_ns(delay_ns))
        offset_ns = abs(sample.offset_ns)
        terms = {
            Term.OFFSET: offset_ns,
            Term.PATH_DELAY: max(0, delay_ns - self._assumed[Assumption.PATH_MINIMUM]),
            Term.PATH_MEMORY: memory_ns,
            Term.GRANULARITY: sample.granularity_ns,
            Term.STEP_TOLERANCE: settings.step_tolerance_ns,
            Term.ASYMMETRY_UNCERTAINTY: settings.asymmetry_uncertainty_ns,
            Term.READING_AGE: math.ceil(self._short_term_ppb(growth_ppb) * reading_ns / NS_PER_S),
        }
        if carried is not None:
            terms |= {Term.PHC_READING: carried.reading_ns, Term.PHC_AGE: carried.age_ns}
        bound_ns = sum(terms.values())
        hard = Bound(bound_ns, growth_ppb)
        statistical, stat_terms = self._statistical(hard, delay_ns, terms)
        return ParentBound(
            as_of_ns=sample.as_of_ns + reading_ns,
            bound=hard,
            statistical=statistical,
            terms=terms,
            stat_terms=stat_terms,
            rates=rates,
            low_ns=sample.offset_ns - bound_ns + offset_ns,
            high_ns=sample.offset_ns + bound_ns - offset_ns - memory_ns,
            past_growth_ppb=self._past_growth_ppb(),
            past_span_ns=max(0, sample.as_of_ns - self._window.entries[0].sample.read_ns),
            phase_jump_ns=jump_ns,
            of_system_clock=carried is not None,
            frequency_ppb=sample.frequency_ppb,
            frequency_at_ns=sample.read_ns,
        )

    def _past_growth_ppb(self) -> int:
        """The largest rate of the clock within the window."""
        wander_ppb = self._oscillator.drift.wander_ppb if self._oscillator.drift else 0.0
        fastest_ppb = self._fastest.value + wander_ppb + self._assumed[Assumption.GRANDMASTER_RATE]
        return min(UNKNOWN_PAST_PPB, math.ceil(fastest_ppb))

    def _rate_ppb(self, frequency_ppb: int | None) -> float:
        """The largest rate of a clock on which this frequency is applied."""
        drift = self._oscillator.drift
        if frequency_ppb is None:
            return UNKNOWN_PAST_PPB
        return abs(drift.rate_ppb + frequency_ppb) if drift else abs(frequency_ppb) + self._local_drift_ppb()

    def _memory_ns(self, delay_ns: int) -> float:
        """How much further than one path delay the true offset may lie below the measured one."""
        window, drift, steering = self._window, self._oscillator.drift, self._steering
        newest = window.entries[-1]
        if drift is None or steering.frequency_ppb is None:
            # A servo that corrected for a change of the path showed an offset while it did, less what the clock moved
            # from one Sync to the next. A path that grows slowly shows none, but its delay grows, and the median comes
            # late: twice the growth may not be in it yet.
            shown_ns = window.offset_range_ns() + 2 * window.usual_movement_ns()
            risen_ns = 2 * max(0, newest.sample.path_delay_ns - window.smallest_delay_ns())
            late_ns = window.largest_delay_ns() - delay_ns + risen_ns
            return shown_ns + late_ns + window.largest_error_ns()
        lowest_ns = window.lower_bound_ns(drift, 2 * delay_ns + self._disturbance.value)
        lowest_ns += steering.steered_ns - newest.uncertainty_ns - steering.phase_uncertainty_ns
        return max(0.0, newest.sample.offset_ns - newest.error_ns - delay_ns - lowest_ns)

    def _short_term_ppb(self, growth_ppb: int) -> float:
        """The growth from the measurement to its reading: the frequency that was applied then is known."""
        drift, frequency_ppb = self._oscillator.drift, self._steering.frequency_ppb
        if drift is None or frequency_ppb is None:
            return growth_ppb
        rate_ppb = abs(drift.rate_ppb + frequency_ppb) + drift.wander_ppb + self._steering.change_ppb
        return min(rate_ppb + self._assumed[Assumption.GRANDMASTER_RATE], growth_ppb)

    def _rates_ppb(self) -> dict[Rate, int]:
        """
        The parts of the bound's growth.

        FREQUENCY_OFFSET is the applied frequency minus the one that would keep the clock on time: a frozen servo leaves
        its last correction applied. Before the rate is learned, a frequency counts that no oscillator within its assumed
        drift cancels: a program slews the clock.
        """
        drift, frequency_ppb = self._oscillator.drift, self._steering.frequency_ppb
        rates = {Rate.STEERING: self._steering_ppb(), Rate.GRANDMASTER_RATE: self._assumed[Assumption.GRANDMASTER_RATE]}
        if drift is None or frequency_ppb is None:
            rates[Rate.LOCAL_DRIFT] = self._local_drift_ppb()
            if slewed_ppb := self._slewed_ppb(frequency_ppb or 0):
                rates[Rate.FREQUENCY_OFFSET] = slewed_ppb
        else:
            rates[Rate.LOCAL_DRIFT] = math.ceil(self._drift_ppb(drift))
            rates[Rate.FREQUENCY_OFFSET] = math.ceil(abs(drift.rate_ppb + frequency_ppb))
        return rates

    def _steering_ppb(self) -> int:
        if self._steering.frequency_ppb is None:
            return self._limit_ppb
        change_ppb = max(self._change.value if self._window.entries else 0.0, self._steering.change_ppb)
        return steering_ppb(change_ppb, self._limit_ppb)

    def _local_drift_ppb(self) -> int:
        """
        How far off an oscillator may be whose rate is not learned: by what is assumed, and at least by the slope that
        the samples in hand show, with its error.
        """
        assumed_ppb = self._assumed[Assumption.LOCAL_DRIFT]
        if not self._window.entries:
            return assumed_ppb
        slope_ppb, error_ppb = self._window.slope_ppb()
        shown_ppb = abs(slope_ppb) + error_ppb if abs(slope_ppb) > assumed_ppb else 0.0
        return max(assumed_ppb, math.ceil(max(shown_ppb, self._window.departure_ppb(0.0, assumed_ppb))))

    def _slewed_ppb(self, frequency_ppb: int) -> int:
        """The rate of a clock with this frequency, by the slope in hand, where it exceeds the assumed drift; else 0."""
        slope_ppb, error_ppb = self._window.slope_ppb() if self._window.entries else (0.0, 0.0)
        rate_ppb = abs(slope_ppb + frequency_ppb)
        return math.ceil(rate_ppb) if rate_ppb - error_ppb > self._assumed[Assumption.LOCAL_DRIFT] else 0

    def _drift_ppb(self, drift: Drift) -> float:
        """
        How far the oscillator may drift from its recent rate: twice the measured range plus the wander, and at least
        the floor.
        """
        measured_ppb = 2 * drift.range_ppb + drift.wander_ppb
        return max(measured_ppb, self._assumed[Assumption.DRIFT_FLOOR], self._shown_change_ppb(drift))

    def _shown_change_ppb(self, drift: Drift) -> float:
        """How far the newest samples show the oscillator's rate from the learned one, wander included; 0: they do not."""
        changed_ppb = max(self._rate_change.rate_ppb, self._departure_ppb)
        return changed_ppb + drift.wander_ppb if changed_ppb else 0.0

    def _statistical(self, hard: Bound, delay_ns: int, terms: dict[Term, int]) -> tuple[Bound, dict[Term, int]]:
        drift, frequency_ppb = self._oscillator.drift, self._steering.frequency_ppb
        if drift is None or frequency_ppb is None:
            return hard, terms
        forward_ns = self._window.mean_ns(drift) + self._steering.steered_ns
        parts = statistical_terms(forward_ns - delay_ns, self._window.spread, terms)
        if parts and self._carried is not None:
            parts |= {Term.PHC_READING: self._carried.reading_ns, Term.PHC_AGE: self._carried.age_ns}
        bound_ns = sum(parts.values())
        if not parts or hard.bound_ns is None or bound_ns >= hard.bound_ns:
            return hard, terms
        growth_ppb = math.ceil(abs(drift.rate_ppb + frequency_ppb) + self._drift_ppb(drift))
        return Bound(bound_ns, min(hard.growth_ppb, growth_ppb)), parts

    def _phase_jump_ns(self, sample: ClockSample, carried: CarriedSync | None) -> int | None:
        """
        How far the offset moved, where neither the path delays nor the clocks' rates explain it; None where they do.
        """
        last = self.newest
        if last is None:
            return None
        moved_ns = sample.offset_ns - last.offset_ns
        elapsed_ns = sample.as_of_ns - last.as_of_ns + sample.sync_interval_ns
        explained_ns = 2 * max(last.path_delay_ns, sample.path_delay_ns, 0) + 2 * STEP_TOLERANCE_NS
        if carried is not None:
            explained_ns += carried.error_ns + self._window.entries[-1].error_ns
        if elapsed_ns >= 0 and abs(moved_ns) <= explained_ns:
            return None
        rate_ppb = self._local_drift_ppb() + self._assumed[Assumption.GRANDMASTER_RATE]
        explained_ns += rate_ppb * elapsed_ns // NS_PER_S
        explained_ns += self._steering_ppb() * elapsed_ns // NS_PER_S
        return moved_ns if abs(moved_ns) > explained_ns else None


def _went_back(old: int | None, new: int | None) -> bool:
    return old is not None and new is not None and new < old


def _own_frequency_ppb(sample: ClockSample) -> int | None:
    return None if sample.frequency_ppb is None else in_own_seconds_ppb(sample.frequency_ppb)
