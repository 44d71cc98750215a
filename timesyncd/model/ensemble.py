"""
Selects the sources to believe, and computes the node's bound from their samples: accept(reading) -> ErrorBound. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from timesyncd.bound import ClockStatus, ErrorBound, Reason, growth_ns
from timesyncd.model.assumptions import Assumption, Refutation
from timesyncd.model.boundary_clocks import (
    RATE_CONFIRMED_AFTER_NS,
    BoundaryClockWatch,
    Confirmations,
    GrandmasterView,
    observed_rate_ppb,
)
from timesyncd.model.error_bound import (
    EnsembleSettings,
    coasted,
    error_bound,
    invalidated,
    status_of,
    system_clock_bound,
    utc_bound,
    utc_only_bound,
    utc_seconds_removed,
    wider,
    with_agreement,
    without_implausible,
    without_utc,
)
from timesyncd.model.grandmaster import GrandmasterVerdict, Invalidation
from timesyncd.model.independence import SharedCause, grouped, may_share_reference, shared_ptp_cause
from timesyncd.model.leap import LeapTable, LeapWatch, announced_leap
from timesyncd.model.oscillator import Drift
from timesyncd.model.parent_bound import CarriedSync, Coasting, ParentBound
from timesyncd.model.phc import PhcLink, PhcMemory, SyncCrossing
from timesyncd.model.polled_grandmasters import PolledGrandmaster, PolledGrandmasters
from timesyncd.model.selection import Agreement, Claim, agree
from timesyncd.model.source import SourceMemory
from timesyncd.sample import ClockSample, KernelSample, NoSample, NoSampleCause, PhcSample, PortState, UtcSample

#: The programs that steer CLOCK_REALTIME and never slew an NTP daemon's offset away, as the kernel driver names them.
PTP_STEERERS = frozenset({"phc2sys", "ptp4l"})


class EnsembleUpdate(NamedTuple):
    """
    What follows from a reading: the bound to publish (None: the last one remains, and ages), and the phase jump if
    there was one.

    `source_bound` is the bound by the reading's source alone, whether the ensemble believes that source or not.
    """

    bound: ErrorBound | None
    phase_jump_ns: int | None = None
    source_bound: ErrorBound | None = None


class Ensemble:
    """
    The node's clock by all its sources.

    One PTP source decides the bounds against parent and grandmaster: the first configured one whose bound has not
    expired. The bound against UTC comes from the intersection of all sources that know UTC. `leaps` limits what the
    bounds claim around a leap second.
    """

    def __init__(self, settings: Mapping[str, EnsembleSettings], leap_table: LeapTable | None = None) -> None:
        self.agreement: Agreement | None = None
        self.leaps = LeapWatch(leap_table)
        self._stale_offsets: set[str] = set()
        self._settings = dict(settings)
        self._memories = {name: SourceMemory(each.source) for name, each in settings.items()}
        self._crossings = {name: SyncCrossing(each.source) for name, each in settings.items()}
        self._phc_links: dict[str, PhcLink] = {}
        self._phc_memories: dict[str, PhcMemory] = {}
        self._bounds: dict[str, ErrorBound] = {}
        self._samples: dict[str, ClockSample] = {}
        self._parents: dict[str, ParentBound] = {}
        self._claims: dict[str, Claim] = {}
        self._ntp: dict[str, UtcSample] = {}
        self._apart: dict[str, set[frozenset[str]]] = {}
        self._grandmasters = PolledGrandmasters()
        self._boundary_clocks = BoundaryClockWatch()
        self._rates_apart = Confirmations()
        self._vm_disruptions: int | None = None
        self._may_slew = True

    def accept(self, reading: ClockSample | PhcSample | UtcSample | KernelSample | NoSample) -> EnsembleUpdate:
        """Add the next reading of a source, and return the bound that the segment must contain from now on."""
        if (leap := announced_leap(reading)) is not None:
            self.leaps.update(reading.source, leap)
        match reading:
            case ClockSample():
                return self._accept_clock_sample(reading)
            case PhcSample():
                return self._accept_phc_sample(reading)
            case UtcSample():
                return self._accept_utc_sample(reading)
            case KernelSample():
                return self._accept_kernel_sample(reading)
        return self._accept_no_sample(reading)

    def _accept_clock_sample(self, reading: ClockSample) -> EnsembleUpdate:
        memory, known = self._memories[reading.source], self._bounds.get(reading.source)
        if any(reading.as_of_ns < each.invalid_before_ns for each in self._grandmasters.followed_by(reading)):
            return EnsembleUpdate(None)
        last = memory.newest or known
        if last and _change(last, reading):
            self._stale_offsets.discard(reading.source)
        if self._may_keep_offset(reading):
            self._stale_offsets.add(reading.source)
        if last and (change := _change(last, reading)):
            # The bound is against the former clock, and the servo may already follow the new one.
            update = self._invalidate_source(reading.source, change, reading.read_ns)
            memory.accept(*self._on_system_clock(reading))
            return update
        measured = self._on_system_clock(reading)
        if measured[1] is None and reading.phc is not None:
            return self._invalidate_source(reading.source, Reason.CLOCK_STEPPED, reading.read_ns)
        parent = memory.accept(*measured)
        if parent is None:
            return EnsembleUpdate(self._coasted(reading.source, memory.coasting(reading.read_ns), reading.read_ns))
        self._samples[reading.source], self._parents[reading.source] = reading, parent
        others = self._compare_references(reading)
        bound = self._source_bound(reading.source)
        published = (self._published(each, reading.read_ns) for each in (bound, *map(self._source_bound, others)))
        return EnsembleUpdate(next(filter(None, published), None), parent.phase_jump_ns, bound)

    def _compare_references(self, reading: ClockSample) -> list[str]:
        """
        Compare this source with those that follow another parent: what one of them shows may refute what is assumed of
        the clocks behind both. Returns the other sources whose bounds change thereby.
        """
        changed = []
        for other, sample in self._samples.items():
            parents = {reading.parent_identity, sample.parent_identity}
            if other == reading.source or len(parents) < 2 or None in parents or other not in self._bounds:
                continue
            if not _is_valid(self._bounds[other], reading.read_ns):
                continue
            self._compare_rates(reading, sample)
            if reading.grandmaster_identity == sample.grandmaster_identity is not None:
                before_ns = self._boundary_clocks.error_ns(other)
                self._compare_boundary_clocks(reading, sample)
                changed += [other] if self._boundary_clocks.error_ns(other) != before_ns else []
        return changed

    def second_view(self, source: str, boottime_ns: int) -> str | None:
        """A source with a bound that sees the same grandmaster through another parent; it checks the boundary clocks."""
        sample = self._samples.get(source)
        if sample is None or sample.grandmaster_identity is None:
            return None
        for name, other in self._samples.items():
            is_same = other.grandmaster_identity == sample.grandmaster_identity
            parents = {other.parent_identity, sample.parent_identity}
            if is_same and len(parents) == 2 and None not in parents and _is_known(self._bounds[name], boottime_ns):
                return name
        return None

    def _compare_boundary_clocks(self, reading: ClockSample, other: ClockSample) -> None:
        views = {each.source: self._grandmaster_view(each, reading.read_ns) for each in (reading, other)}
        known = {name: view for name, view in views.items() if view is not None}
        if len(known) == 2:
            for name, error_ns in self._boundary_clocks.compare(known, reading.read_ns).items():
                self._memories[name].refute(Assumption.BOUNDARY_CLOCK_ERROR, error_ns)

    def _grandmaster_view(self, sample: ClockSample, boottime_ns: int) -> GrandmasterView | None:
        """As the file assumes it; None: the system clock has no bound."""
        settings, link = self._settings_of(sample).source, self._phc_links.get(sample.clock)
        parent = system_clock_bound(self._parents[sample.source], sample, settings, link)
        if parent.bound.bound_ns is None:
            return None
        wider_ns = growth_ns(parent.bound.growth_ppb, max(0, boottime_ns - parent.as_of_ns))
        assumed_ns = self._settings[sample.source].source.boundary_clock_error_ns
        hops = max(0, sample.steps_removed - 1)
        return GrandmasterView(parent.low_ns - wider_ns, parent.high_ns + wider_ns, hops, assumed_ns)

    def _compare_rates(self, reading: ClockSample, other: ClockSample) -> None:
        """The rates that both have learned of one clock."""
        names = (reading.source, other.source)
        one, two = (self._memories[name].drift for name in names)
        clocks = {"realtime" if self._parents[each.source].of_system_clock else each.clock for each in (reading, other)}
        assumed_ppb = sum(self._settings[name].source.grandmaster_rate_ppb for name in names)
        observed = observed_rate_ppb(one, two, assumed_ppb) if one and two and len(clocks) == 1 else None
        has_lasted = self._rates_apart.update(
            frozenset(names), observed is not None, reading.read_ns, RATE_CONFIRMED_AFTER_NS
        )
        if has_lasted and observed is not None:
            for name in names:
                self._memories[name].refute(Assumption.GRANDMASTER_RATE, observed)

    def _on_system_clock(self, reading: ClockSample) -> tuple[ClockSample, CarriedSync | None]:
        """
        The sample carried over to the system clock where the PHC was read at the Sync. Otherwise as it is, on the PHC,
        whose link to the system clock ages by the frequency that this Sync shows.
        """
        settings = self._settings_of(reading).source
        carried = self._crossings[reading.source].carry_over(reading, utc_seconds_removed(reading, settings))
        if carried is not None:
            return carried
        if reading.clock in self._phc_links and reading.frequency_ppb is not None:
            link = self._phc_memories[reading.clock].accept_frequency(reading.read_ns, reading.frequency_ppb)
            self._phc_links[reading.clock] = link or self._phc_links[reading.clock]
        return reading, None

    def _source_bound(self, source: str) -> ErrorBound:
        """The bound by the newest sample of this source alone."""
        sample, settings = self._samples[source], self._settings_of(self._samples[source])
        grandmasters = self._grandmasters.followed_by(sample)
        parent = system_clock_bound(self._parents[source], sample, settings.source, self._phc_links.get(sample.clock))
        verdict = grandmasters[0].verdict if grandmasters else None
        boundary_clock = self._grandmasters.boundary_clock_of(sample)
        parent_verdict = boundary_clock[1].verdict if boundary_clock else None
        bound = without_implausible(error_bound(sample, parent, settings, verdict, parent_verdict))
        if source in self._stale_offsets:
            bound = without_utc(bound, Reason.UTC_OFFSET_DIFFERS)
        bound = self._bounds[source] = self.leaps.limit(bound)
        for grandmaster in grandmasters[1:]:
            bound = self._widened_against_utc(source, grandmaster) or bound
        return bound

    def _may_keep_offset(self, sample: ClockSample) -> bool:
        """
        Whether a ptp4l with software timestamps may from now on remove another UTC offset than the configured one. 3.1.1
        takes over the announced offset only where it selects a parent (clock.c: clock_update_slave), and keeps it when
        the announced one is right again.
        """
        announced_s, configured_s = sample.current_utc_offset_s, self._settings[sample.source].source.utc_offset_s
        return sample.clock == "realtime" and sample.ptp_timescale and announced_s not in (None, configured_s)

    def _settings_of(self, sample: ClockSample) -> EnsembleSettings:
        """
        As configured, but of a PHC with the announced UTC offset, where that is the configured one after a leap second
        that is known to have passed; and with the boundary clocks' error that another source shows. With software timestamps the offset contains what ptp4l removes: 4.x removes the
        announced offset, 3.1.1 the old one until it selects a grandmaster again (clock.c: clock_update_slave).
        """
        settings, error_ns = self._settings[sample.source], self._boundary_clocks.error_ns(sample.source)
        if error_ns is not None:
            settings = replace(settings, source=replace(settings.source, boundary_clock_error_ns=error_ns))
        before_s, after_s = settings.source.utc_offset_s, sample.current_utc_offset_s
        realtime_ns = sample.as_of_ns + sample.real_minus_boot_ns
        if self.leaps.table is None or after_s is None or not sample.time_traceable or sample.clock == "realtime":
            return settings
        if not self.leaps.table.has_changed(before_s, after_s, realtime_ns):
            return settings
        return replace(settings, source=replace(settings.source, utc_offset_s=after_s))

    def _accept_phc_sample(self, reading: PhcSample) -> EnsembleUpdate:
        """The link carries the bound on the PHC over to the system clock."""
        if reading.clock not in self._phc_memories:
            self._phc_memories[reading.clock] = PhcMemory(self._settings[reading.source].source)
        link = self._phc_links[reading.clock] = self._phc_memories[reading.clock].accept(reading)
        followers = [source for source, sample in self._samples.items() if sample.clock == reading.clock]
        if link.stepped:
            # ptp4l may have stepped the PHC: its earlier samples no longer apply, and neither do the bounds on the
            # system clock.
            updates = [self._invalidate_source(source, Reason.CLOCK_STEPPED, reading.as_of_ns) for source in followers]
            self._phc_links[reading.clock] = link
            return next((update for update in updates if update.bound), EnsembleUpdate(None))
        published = [self._published(self._source_bound(source), reading.as_of_ns) for source in followers]
        return EnsembleUpdate(next((bound for bound in published if bound), None))

    def _accept_utc_sample(self, reading: UtcSample) -> EnsembleUpdate:
        """
        A source that knows UTC and no grandmaster.

        An NTP daemon may begin to slew its offset away at any moment. So the claim spans that offset and 0, unless the
        kernel driver reports that the daemon steers nothing.
        """
        least_ns, most_ns = sorted((reading.offset_ns, 0 if self._may_slew else reading.offset_ns))
        low_ns, high_ns = least_ns - reading.error_ns, most_ns + reading.error_ns
        own = without_implausible(utc_only_bound(reading, self._settings[reading.source]))
        bound = self._bounds[reading.source] = self.leaps.limit(own)
        around_leap_ns = (bound.utc_hard.bound_ns or 0) - (own.utc_hard.bound_ns or 0)
        low_ns, high_ns = low_ns - around_leap_ns, high_ns + around_leap_ns
        self._ntp[reading.source] = reading
        self._claims.pop(reading.source, None)
        if bound.utc_hard.bound_ns is not None:
            self._claims[reading.source] = Claim(reading.as_of_ns, low_ns, high_ns, reading.growth_ppb)
        self._apart[reading.source] = self._contradicted_by(reading)
        deciding = self.deciding_bound(reading.as_of_ns)
        return EnsembleUpdate(deciding and self._published(deciding, reading.as_of_ns), None, bound)

    def _accept_kernel_sample(self, reading: KernelSample) -> EnsembleUpdate:
        """
        A virtual machine that was migrated runs on another host's clocks, which were not compared with any source yet.
        """
        programs = reading.disciplines + reading.undecided_disciplines
        all_known = reading.programs_visible and reading.unexplained_movement is None
        self._may_slew = not (all_known and PTP_STEERERS.issuperset(programs))
        if reading.vm_disruptions is None:
            return EnsembleUpdate(None)
        before, self._vm_disruptions = self._vm_disruptions, reading.vm_disruptions
        if before in (None, reading.vm_disruptions):
            return EnsembleUpdate(None)
        return self._invalidate_all(Reason.VM_MIGRATED)

    def invalidate_after_suspend(self) -> EnsembleUpdate:
        """
        The machine was suspended. The kernel then set CLOCK_REALTIME and CLOCK_BOOTTIME forward alike, by a clock that
        was not compared with any source, so no step shows.
        """
        return self._invalidate_all(Reason.SUSPENDED)

    def _published(self, bound: ErrorBound, boottime_ns: int) -> ErrorBound | None:
        """This bound with the UTC bound of all sources together, if it is the one that decides; else None."""
        boottime_ns = max(boottime_ns, bound.as_of_ns)
        if self.deciding_bound(boottime_ns) is not bound:
            return None
        # The deciding source first: it speaks for the sources that may share a cause of error with it.
        names = sorted(self._bounds, key=lambda name: self._bounds[name] is not bound) if len(self._bounds) > 1 else ()
        claims = {name: claim for name in names if (claim := self._claim_of(name, boottime_ns))}
        if all(self._bounds[name] is bound for name in claims):
            self.agreement = None
            return bound
        groups = grouped(list(claims), self.shared_cause)
        apart = [pair for pairs in self._apart.values() for pair in pairs if pair <= claims.keys()]
        agreement = agree(claims, boottime_ns, groups, apart)
        dependent = tuple(groups[0][1:]) if self._bounds[groups[0][0]] is bound else ()
        self.agreement = agreement = agreement._replace(dependent=dependent)
        if len(groups) == 1 and not agreement.contradiction and self._bounds[groups[0][0]] is bound:
            return bound
        published = with_agreement(bound, agreement, boottime_ns, self._is_contradicted(bound))
        own_ns = bound.utc_hard.at(max(0, published.as_of_ns - bound.as_of_ns))
        if published is not bound and (own_ns is None or (published.utc_hard.bound_ns or 0) < own_ns):
            others = tuple(name for name in agreement.ends if self._bounds[name] is not bound)
            self.agreement = agreement._replace(narrowed_by=others)
        return published

    def shared_cause(self, one: str, other: str) -> SharedCause | None:
        """
        Why an error of the one source may be the other's, too; None: they are independent, by the configuration, and
        nothing that they report refutes it.
        """
        if other not in self._settings[one].independent_of and one not in self._settings[other].independent_of:
            return SharedCause.NOT_DECLARED
        both_ptp, both_ntp = self._samples.keys() >= {one, other}, self._ntp.keys() >= {one, other}
        if both_ptp:
            return shared_ptp_cause(self._samples[one], self._samples[other])
        if both_ntp and may_share_reference(self._ntp[one], self._ntp[other]):
            return SharedCause.SAME_REFERENCE
        return None

    @property
    def refuted_independence(self) -> dict[str, tuple[str, SharedCause]]:
        """By source: a source of which it is declared independent, and the cause that the two share all the same."""
        found: dict[str, tuple[str, SharedCause]] = {}
        for name, settings in self._settings.items():
            for other in sorted(settings.independent_of & self._bounds.keys()):
                cause = self.shared_cause(name, other) if name in self._bounds else None
                if cause is not None:
                    found.setdefault(name, (other, cause))
        return found

    def _contradicted_by(self, reading: UtcSample) -> set[frozenset[str]]:
        """
        The PTP sources whose claims exclude what the NTP daemon knew at its reading. A later claim of it spans all
        that the daemon may slew, and hides that.
        """
        if reading.source not in self._claims:
            return set()
        low_ns, high_ns = reading.offset_ns - reading.error_ns, reading.offset_ns + reading.error_ns
        found = set()
        for name in self._samples:
            claim = self._claim_of(name, reading.as_of_ns)
            if claim is not None and name not in self._ntp:
                then = claim.at(reading.as_of_ns)
                if high_ns < then.low_ns or then.high_ns < low_ns:
                    found.add(frozenset((reading.source, name)))
        return found

    def _is_contradicted(self, bound: ErrorBound) -> bool:
        """Whether the source of this bound is a falseticker, or no majority exists."""
        agreement = self.agreement
        if agreement is None:
            return False
        names = (*agreement.contradicting, *agreement.falsetickers)
        return any(name in self._bounds and self._bounds[name] is bound for name in names)

    def _claim_of(self, source: str, boottime_ns: int) -> Claim | None:
        bound = self._bounds[source]
        if not _is_valid(bound, boottime_ns):
            return None
        if source in self._claims:
            return self._claims[source]
        if bound.utc_hard.bound_ns is None or bound.parent_hard.bound_ns is None:
            return None
        # The parent bound is symmetric around the local clock. The UTC bound's excess over it widens the parent's
        # interval at both ends.
        excess_ns = bound.utc_hard.bound_ns - bound.parent_hard.bound_ns
        parent = system_clock_bound(
            self._parents[source],
            self._samples[source],
            self._settings_of(self._samples[source]).source,
            self._phc_links.get(self._samples[source].clock),
        )
        return Claim(parent.as_of_ns, parent.low_ns - excess_ns, parent.high_ns + excess_ns, bound.utc_hard.growth_ppb)

    def coast(self, source: str, boottime_ns: int, frequency_ppb: int) -> ErrorBound | None:
        """
        The source gave no valid sample, but its frequency was read, so how the clock was steered since the last sample
        is known.

        Returns the bound that the segment must contain from now on, where this source's is the one that decides.
        """
        return self._coasted(source, self._memories[source].coast(boottime_ns, frequency_ppb), boottime_ns)

    def _coasted(self, source: str, coasting: Coasting | None, boottime_ns: int) -> ErrorBound | None:
        if coasting is None or source not in self._bounds or coasting.time_ns < self._parents[source].as_of_ns:
            return None
        self._parents[source] = coasted(self._parents[source], coasting)
        return self._published(self._source_bound(source), boottime_ns)

    def source_bound(self, source: str) -> ErrorBound | None:
        """The bound by this source alone, of whatever age."""
        return self._bounds.get(source)

    def refutations(self, source: str) -> tuple[Refutation, ...]:
        """The assumptions about this source that its samples have refuted."""
        return self._memories[source].refutations

    def drift(self, source: str) -> Drift | None:
        """The local oscillator's learned drift against this source."""
        return self._memories[source].drift

    @property
    def bounded_sources(self) -> Collection[str]:
        """The sources with a bound, of whatever age."""
        return self._bounds.keys()

    def deciding_bound(self, boottime_ns: int) -> ErrorBound | None:
        """The valid bound of the first source that knows a grandmaster; without one, of the first that knows UTC."""
        ntp = None
        for name in self._settings:
            bound = self._bounds.get(name)
            if bound is None or not _is_valid(bound, boottime_ns):
                continue
            if name not in self._ntp:
                return bound
            if ntp is None or ntp.utc_hard.bound_ns is None:
                ntp = bound
        return ntp

    def update_grandmaster(
        self, name: str, identities: Collection[str], verdict: GrandmasterVerdict, boottime_ns: int
    ) -> ErrorBound | None:
        """
        Replace the verdict of the grandmaster `name`, which announces these `identities`.

        Returns the bound that the segment must contain from now on: where the deciding source follows this grandmaster,
        and its bound is no longer valid, or was too narrow against UTC.
        """
        taken = self._grandmasters.take(name, identities, verdict, boottime_ns)
        if taken is None:
            return None
        grandmaster, affected = taken
        deciding = self.deciding_bound(boottime_ns)
        changed, others = None, False
        for source in self._settings:
            last = self._bounds.get(source)
            new = self._invalidated(source, affected, grandmaster.invalidation) or self._widened(source, grandmaster)
            if last is deciding and last is not None:
                changed = new
            else:
                others = others or new is not None
        if changed is not None and changed.gm_status is ClockStatus.DISRUPTED:
            return changed
        # A source that does not decide may have narrowed the published bound.
        affected_bound = changed or (deciding if others and self.agreement is not None else None)
        return None if affected_bound is None else self._published(affected_bound, boottime_ns)

    def locked_boundary_clock(self, source: str, boottime_ns: int) -> str | None:
        """The only boundary clock between this source and its grandmaster, where its poller knows that it is locked."""
        sample = self._samples.get(source)
        polled = None
        if sample is not None and sample.steps_removed == 2:
            polled = self._grandmasters.boundary_clock_of(sample)
        if polled is None or polled[1].verdict.holdover_left_ns is not None:
            return None
        return None if polled[1].verdict.utc_at(boottime_ns).bound_ns is None else polled[0]

    def _invalidated(
        self, source: str, identities: Collection[str], invalidation: Invalidation | None
    ) -> ErrorBound | None:
        """Drop the source's earlier samples, where its grandmaster has one of these identities."""
        newest = self._samples.get(source) or self._memories[source].newest
        if invalidation is None or newest is None or newest.grandmaster_identity not in identities:
            return None
        return self._drop(source, invalidation.reason).bound if newest.as_of_ns < invalidation.before_ns else None

    def _widened(self, source: str, polled: PolledGrandmaster) -> ErrorBound | None:
        """
        The source's bound with the newest verdict of its grandmaster or boundary clock, where that is wider. A boundary clock
        that is locked again was off when the sample in hand was measured.
        """
        last, sample = self._bounds.get(source), self._samples.get(source)
        if last is None or sample is None or sample.parent_identity not in polled.identities:
            return self._widened_against_utc(source, polled)
        if sample.parent_identity == sample.grandmaster_identity:
            return self._widened_against_utc(source, polled)
        judged = self._source_bound(source)
        gm, utc = wider(last.gm_hard, judged.gm_hard), wider(last.utc_hard, judged.utc_hard)
        if (gm, utc) == (last.gm_hard, last.utc_hard):
            self._bounds[source] = last
            return None
        bound = self._bounds[source] = replace(
            judged,
            gm_hard=gm,
            utc_hard=utc,
            gm_status=status_of(gm),
            utc_status=status_of(utc),
            steering_ppb=0,
            utc_steering_ppb=0,
        )
        return bound

    def _widened_against_utc(self, source: str, grandmaster: PolledGrandmaster) -> ErrorBound | None:
        """
        The source's bound with this grandmaster's newest verdict, where that is wider; a verdict alone never narrows a
        bound.
        """
        last = self._bounds.get(source)
        if last is None or last.grandmaster_identity not in grandmaster.identities:
            return None
        sample = replace(self._samples[source], read_ns=last.as_of_ns)
        judged = utc_bound(last.gm_hard, sample, self._settings_of(self._samples[source]).source, grandmaster.verdict)
        utc = wider(last.utc_hard, judged)
        if utc == last.utc_hard:
            return None
        bound = self._bounds[source] = replace(last, utc_hard=utc, utc_status=status_of(utc), utc_steering_ppb=0)
        return bound

    def _accept_no_sample(self, reading: NoSample) -> EnsembleUpdate:
        if reading.stepped:
            return self._invalidate_all(Reason.CLOCK_STEPPED)
        if reading.restarted:
            self._stale_offsets.discard(reading.source)
            return self._invalidate_source(reading.source, Reason.SOURCE_RESTARTED, reading.boottime_ns)
        if reading.change is NoSampleCause.VM_MIGRATED:
            return self._invalidate_all(Reason.VM_MIGRATED)
        if reading.change is not None:
            reason = Reason.of_code(reading.change, Reason.PARENT_CHANGED)
            return self._invalidate_source(reading.source, reason, reading.boottime_ns)
        if reading.sync_forgotten and self._rests_on_a_link(reading.source):
            # A reading of the PHC after its step carries no sample of before over to the system clock.
            return self._invalidate_source(reading.source, Reason.CLOCK_STEPPED, reading.boottime_ns)
        if reading.delay_unmeasured or reading.port_state not in (None, PortState.SLAVE, PortState.UNCALIBRATED):
            # ptp4l empties its delay filter when the port stops following; the bound continues to age.
            self._memories[reading.source].clear()
        memory, frequency_ppb, unseen_ns = self._memories[reading.source], reading.frequency_ppb, 0
        if memory.of_system_clock:
            frequency_ppb = reading.phc.system_frequency_ppb if reading.phc else None
            unseen_ns = self._crossings[reading.source].unseen_ns(reading.phc)
        if frequency_ppb is None:
            return EnsembleUpdate(None)
        coasting = memory.coast(reading.boottime_ns, frequency_ppb, unseen_ns)
        return EnsembleUpdate(self._coasted(reading.source, coasting, reading.boottime_ns))

    def _rests_on_a_link(self, source: str) -> bool:
        """Whether the source's sample was measured on a PHC that another source reads."""
        sample = self._samples.get(source)
        return sample is not None and sample.clock in self._phc_links and not self._parents[source].of_system_clock

    def _invalidate_all(self, reason: Reason) -> EnsembleUpdate:
        for memory in self._phc_memories.values():
            memory.interrupt()
        self._phc_links.clear()
        self.agreement = None
        updates = [self._drop(name, reason) for name in self._settings]
        return next((update for update in updates if update.bound), EnsembleUpdate(None))

    def _invalidate_source(self, source: str, reason: Reason, boottime_ns: int) -> EnsembleUpdate:
        """
        Invalidate one source. The update publishes that where this source decides; else it publishes the deciding
        source's bound.
        """
        deciding, own = self.deciding_bound(boottime_ns), self._bounds.get(source)
        update = self._drop(source, reason)
        if deciding is None or deciding is own:
            return update
        narrowed = own is not None and self.agreement is not None
        return EnsembleUpdate(self._published(deciding, boottime_ns) if narrowed else None, None, update.bound)

    def _drop(self, source: str, reason: Reason) -> EnsembleUpdate:
        """Drop all that is known by this source, and its link to the PHC."""
        self._memories[source].clear()
        self._crossings[source].interrupt()
        self.leaps.drop(source)
        sample = self._samples.pop(source, None)
        if sample is not None and sample.clock in self._phc_memories:
            self._phc_links.pop(sample.clock, None)
            self._phc_memories[sample.clock].interrupt()
        self._claims.pop(source, None)
        self._apart.pop(source, None)
        last = self._bounds.pop(source, None)
        if last is None:
            return EnsembleUpdate(None)
        return EnsembleUpdate(invalidated(last, reason, ClockStatus.DISRUPTED))


def _change(last: ClockSample | ErrorBound, new: ClockSample) -> Reason | None:
    """What the source follows now that it did not follow before."""
    if last.parent_identity != new.parent_identity:
        return Reason.PARENT_CHANGED
    return Reason.GRANDMASTER_CHANGED if last.grandmaster_identity != new.grandmaster_identity else None


def _is_known(bound: ErrorBound, boottime_ns: int) -> bool:
    return bound.gm_hard.bound_ns is not None and _is_valid(bound, boottime_ns)


def _is_valid(bound: ErrorBound, boottime_ns: int) -> bool:
    return boottime_ns - bound.as_of_ns < bound.void_after_ns
