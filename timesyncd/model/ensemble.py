"""Which sources to believe, and what their samples make of the node's clock: accept(reading) -> ErrorBound. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from timesyncd.bound import ClockStatus, ErrorBound, Reason
from timesyncd.model.error_bound import (
    EnsembleSettings,
    coasted,
    error_bound,
    invalidated,
    status_of,
    system_clock_bound,
    utc_bound,
    utc_only_bound,
    wider,
    with_agreement,
    without_implausible,
)
from timesyncd.model.grandmaster import GrandmasterVerdict, Invalidation
from timesyncd.model.oscillator import Drift
from timesyncd.model.phc import PhcLink, PhcMemory
from timesyncd.model.selection import Agreement, Claim, agree
from timesyncd.model.source import Coasting, ParentBound, SourceMemory
from timesyncd.sample import ClockSample, KernelSample, NoSample, PhcSample, PortState, UtcSample

#: As the kernel's source names them.
NTP_DAEMONS = frozenset({"chronyd", "ntpd", "openntpd", "systemd-timesyncd"})

#: A unit that two daemons poll is believed to one of them, until that one's last poll is so much older than the other's.
POLLER_LOST_NS = 60_000_000_000


class EnsembleUpdate(NamedTuple):
    """
    What a reading led to: the bound to publish (None: nothing new; the last one ages), and a phase jump if there was.
    `source_bound` is what the sample's source by itself says, be it believed or not.
    """

    bound: ErrorBound | None
    phase_jump_ns: int | None = None
    source_bound: ErrorBound | None = None


@dataclass(frozen=True, slots=True)
class _Unit:
    """A grandmaster of which is heard: the clock identities that it shows, and its newest event that voids."""

    identities: frozenset[str]
    verdict: GrandmasterVerdict
    void: Invalidation | None


class Ensemble:
    """
    The node's clock as its sources tell it. Against parent and grandmaster one PTP source decides: the first configured one that is
    not void; when it falls silent past its void_after, the next one with samples does. Against UTC all that know it are held against each other.
    """

    def __init__(self, settings: Mapping[str, EnsembleSettings]) -> None:
        self.agreement: Agreement | None = None
        self._settings = dict(settings)
        self._memories = {name: SourceMemory(each.source) for name, each in settings.items()}
        self._links: dict[str, PhcLink] = {}
        self._link_memories: dict[str, PhcMemory] = {}
        self._bounds: dict[str, ErrorBound] = {}
        self._measured: dict[str, ClockSample] = {}
        self._parents: dict[str, ParentBound] = {}
        self._claims: dict[str, Claim] = {}
        self._units: dict[str, _Unit] = {}
        self._vm_disruptions: int | None = None
        self._may_slew = True

    def accept(self, reading: ClockSample | PhcSample | UtcSample | KernelSample | NoSample) -> EnsembleUpdate:
        """Take the next reading of a source. The outcome's bound is what readers of the segment shall see from now on."""
        match reading:
            case ClockSample():
                return self._measure(reading)
            case PhcSample():
                return self._link(reading)
            case UtcSample():
                return self._claim(reading)
            case KernelSample():
                return self._migrated(reading)
        return self._disrupted(reading)

    def _measure(self, reading: ClockSample) -> EnsembleUpdate:
        memory, known = self._memories[reading.source], self._bounds.get(reading.source)
        units = self._followed(reading)
        if units and any(unit.void and reading.as_of_ns < unit.void.before_ns for unit in units):
            return EnsembleUpdate(None)
        last = memory.newest or known
        if last and last.parent_identity != reading.parent_identity:
            # What is known holds against the former parent, and the servo may already follow the new one.
            outcome = self._withdrawn(reading.source, Reason.PARENT_CHANGED, reading.read_ns)
            memory.accept(reading)
            return outcome
        parent = memory.accept(reading)
        if parent is None:
            return EnsembleUpdate(self._held(reading.source, memory.held(reading.read_ns), reading.read_ns))
        self._measured[reading.source], self._parents[reading.source] = reading, parent
        bound = self._bound(reading.source)
        return EnsembleUpdate(self._published(bound, reading.read_ns), parent.phase_jump_ns, bound)

    def _bound(self, source: str) -> ErrorBound:
        """What the newest sample of this source says, by itself."""
        sample, settings = self._measured[source], self._settings[source]
        units = self._followed(sample)
        parent = system_clock_bound(self._parents[source], sample, settings.source, self._links.get(sample.clock))
        bound = without_implausible(error_bound(sample, parent, settings, units[0].verdict if units else None))
        self._bounds[source] = bound
        for unit in units[1:]:
            bound = self._against_utc(source, unit) or bound
        return bound

    def _link(self, reading: PhcSample) -> EnsembleUpdate:
        """What is known of the PHC is known of the system clock thereby."""
        if reading.clock not in self._link_memories:
            self._link_memories[reading.clock] = PhcMemory(self._settings[reading.source].source)
        link = self._links[reading.clock] = self._link_memories[reading.clock].accept(reading)
        followers = [source for source, sample in self._measured.items() if sample.clock == reading.clock]
        if link.stepped:
            # ptp4l may have set the PHC: what it measured before is of another clock, and so is what is known of the system clock.
            voided = [self._withdrawn(source, Reason.CLOCK_STEPPED, reading.as_of_ns) for source in followers]
            self._links[reading.clock] = link
            return next((outcome for outcome in voided if outcome.bound), EnsembleUpdate(None))
        published = [self._published(self._bound(source), reading.as_of_ns) for source in followers]
        return EnsembleUpdate(next((bound for bound in published if bound), None))

    def _claim(self, reading: UtcSample) -> EnsembleUpdate:
        """
        A source that knows UTC and no grandmaster. An NTP daemon may begin to take its offset out at any moment, so all between that
        and 0 counts, unless the kernel's source knows that it steers nothing.
        """
        least_ns, most_ns = sorted((reading.offset_ns, 0 if self._may_slew else reading.offset_ns))
        low_ns, high_ns = least_ns - reading.error_ns, most_ns + reading.error_ns
        self._claims[reading.source] = Claim(reading.as_of_ns, low_ns, high_ns, reading.growth_ppb)
        bound = self._bounds[reading.source] = without_implausible(
            utc_only_bound(reading, self._settings[reading.source])
        )
        deciding = self.advance(reading.as_of_ns)
        return EnsembleUpdate(deciding and self._published(deciding, reading.as_of_ns), None, bound)

    def _migrated(self, reading: KernelSample) -> EnsembleUpdate:
        """A virtual machine that went on elsewhere has clocks that were never compared with anything."""
        self._may_slew = not NTP_DAEMONS.isdisjoint(reading.disciplines + reading.undecided_disciplines)
        if reading.vm_disruptions is None:
            return EnsembleUpdate(None)
        before, self._vm_disruptions = self._vm_disruptions, reading.vm_disruptions
        if before in (None, reading.vm_disruptions):
            return EnsembleUpdate(None)
        return self._withdraw_all(Reason.VM_MIGRATED)

    def suspended(self) -> EnsembleUpdate:
        """The machine slept: CLOCK_REALTIME was set from elsewhere meanwhile, and CLOCK_BOOTTIME along with it, so no step shows."""
        return self._withdraw_all(Reason.SUSPENDED)

    def _published(self, bound: ErrorBound, boottime_ns: int) -> ErrorBound | None:
        """This bound, where it is the one that decides, with what all sources together know of UTC."""
        boottime_ns = max(boottime_ns, bound.as_of_ns)
        if self.advance(boottime_ns) is not bound:
            return None
        names = self._bounds if len(self._bounds) > 1 else ()
        claims = {name: claim for name in names if (claim := self._claim_of(name, boottime_ns))}
        others = [name for name in claims if self._bounds[name] is not bound]
        self.agreement = agree(claims, boottime_ns) if others else None
        if self.agreement is None:
            return bound
        return with_agreement(bound, self.agreement, boottime_ns, self._is_doubted(bound))

    def _is_doubted(self, bound: ErrorBound) -> bool:
        """Whether the source that this bound is of contradicts the others."""
        agreement = self.agreement
        if agreement is None:
            return False
        return agreement.contradiction or any(self._bounds[name] is bound for name in agreement.falsetickers)

    def _claim_of(self, source: str, boottime_ns: int) -> Claim | None:
        bound = self._bounds[source]
        if not _is_alive(bound, boottime_ns):
            return None
        if source in self._claims:
            return self._claims[source]
        if bound.utc_hard.bound_ns is None or bound.parent_hard.bound_ns is None:
            return None
        # The parent bound is around the local clock, so it is the wider of both sides; what is above it counts at both.
        beyond_ns = bound.utc_hard.bound_ns - bound.parent_hard.bound_ns
        parent = system_clock_bound(
            self._parents[source],
            self._measured[source],
            self._settings[source].source,
            self._links.get(self._measured[source].clock),
        )
        return Claim(parent.as_of_ns, parent.low_ns - beyond_ns, parent.high_ns + beyond_ns, bound.utc_hard.growth_ppb)

    def hold(self, source: str, boottime_ns: int, frequency_ppb: int) -> ErrorBound | None:
        """
        No valid sample came, but this frequency was read: what was steered since the last one is known. Gives the bound that readers
        shall see from now on, where it is the one that decides.
        """
        return self._held(source, self._memories[source].hold(boottime_ns, frequency_ppb), boottime_ns)

    def _held(self, source: str, held: Coasting | None, boottime_ns: int) -> ErrorBound | None:
        if held is None or source not in self._bounds or held.time_ns < self._parents[source].as_of_ns:
            return None
        self._parents[source] = coasted(self._parents[source], held)
        return self._published(self._bound(source), boottime_ns)

    def known(self, source: str) -> ErrorBound | None:
        """What this source by itself says, be it old."""
        return self._bounds.get(source)

    def drift(self, source: str) -> Drift | None:
        """What was learnt of the local oscillator against this source."""
        return self._memories[source].drift

    @property
    def bounded(self) -> Collection[str]:
        """The sources of which a bound is known, be it old."""
        return self._bounds.keys()

    def advance(self, boottime_ns: int) -> ErrorBound | None:
        """The bound that decides at this moment: that of a source that knows a grandmaster, where there is one."""
        ntp = None
        for name in self._settings:
            bound = self._bounds.get(name)
            if bound is None or not _is_alive(bound, boottime_ns):
                continue
            if name not in self._claims:
                return bound
            ntp = ntp or bound
        return ntp

    def hear_grandmaster(
        self, name: str, identities: Collection[str], verdict: GrandmasterVerdict, boottime_ns: int
    ) -> ErrorBound | None:
        """
        Take what was heard of the unit `name`, now. Gives the bound that readers shall see from now on where the one that
        decides follows one of its `identities`, and holds no longer, or was told too narrow against UTC.
        """
        known = self._units.get(name)
        if known and not _takes_over(verdict, known.verdict):
            return None
        unit = _Unit(frozenset(identities), verdict, _newest_void(known, verdict.void, boottime_ns))
        self._units[name] = unit
        followers = unit.identities | known.identities if known else unit.identities
        deciding = self.advance(boottime_ns)
        changed, others = None, False
        for source in self._settings:
            last = self._bounds.get(source)
            new = self._voided(source, followers, unit.void) or self._against_utc(source, unit)
            if last is deciding and last is not None:
                changed = new
            else:
                others = others or new is not None
        if changed is not None and changed.gm_status is ClockStatus.DISRUPTED:
            return changed
        # A source that does not decide may have narrowed what is published.
        told = changed or (deciding if others and self.agreement is not None else None)
        return None if told is None else self._published(told, boottime_ns)

    def _followed(self, sample: ClockSample) -> list[_Unit]:
        """More than one where two units show one identity, as after an exchange of modules: then the worse word counts."""
        if not self._units:
            return []
        return [unit for unit in self._units.values() if sample.grandmaster_identity in unit.identities]

    def _voided(self, source: str, followers: Collection[str], void: Invalidation | None) -> ErrorBound | None:
        """Forget what the source measured before, where its grandmaster is among these."""
        known = self._measured.get(source) or self._memories[source].newest
        if void is None or known is None or known.grandmaster_identity not in followers:
            return None
        return self._withdraw(source, void.reason).bound if known.as_of_ns < void.before_ns else None

    def _against_utc(self, source: str, unit: _Unit) -> ErrorBound | None:
        """The source's bound by what was just heard, where that is worse; nothing of it becomes better thereby."""
        last = self._bounds.get(source)
        if last is None or last.grandmaster_identity not in unit.identities:
            return None
        sample = replace(self._measured[source], read_ns=last.as_of_ns)
        heard = utc_bound(last.gm_hard, sample, self._settings[source].source, unit.verdict)
        utc = wider(last.utc_hard, heard)
        if utc == last.utc_hard:
            return None
        bound = self._bounds[source] = replace(last, utc_hard=utc, utc_status=status_of(utc))
        return bound

    def _disrupted(self, reading: NoSample) -> EnsembleUpdate:
        if reading.stepped:
            return self._withdraw_all(Reason.CLOCK_STEPPED)
        if reading.restarted:
            return self._withdrawn(reading.source, Reason.SOURCE_RESTARTED, reading.boottime_ns)
        if reading.port_state not in (None, PortState.SLAVE, PortState.UNCALIBRATED):
            # ptp4l empties its delay filter when the port ceases to follow; what is known ages on.
            self._memories[reading.source].clear()
        if reading.frequency_ppb is None:
            return EnsembleUpdate(None)
        return EnsembleUpdate(self.hold(reading.source, reading.boottime_ns, reading.frequency_ppb))

    def _withdraw_all(self, reason: Reason) -> EnsembleUpdate:
        for memory in self._link_memories.values():
            memory.interrupt()
        self._links.clear()
        self.agreement = None
        outcomes = [self._withdraw(name, reason) for name in self._settings]
        return next((outcome for outcome in outcomes if outcome.bound), EnsembleUpdate(None))

    def _withdrawn(self, source: str, reason: Reason, boottime_ns: int) -> EnsembleUpdate:
        """What one source knew is void. Readers see that, but where another source decides."""
        deciding, own = self.advance(boottime_ns), self._bounds.get(source)
        outcome = self._withdraw(source, reason)
        if deciding is None or deciding is own:
            return outcome
        narrowed = own is not None and self.agreement is not None
        return EnsembleUpdate(self._published(deciding, boottime_ns) if narrowed else None, None, outcome.bound)

    def _withdraw(self, source: str, reason: Reason) -> EnsembleUpdate:
        self._memories[source].clear()
        measured = self._measured.pop(source, None)
        if measured is not None and measured.clock in self._link_memories:
            self._links.pop(measured.clock, None)
            self._link_memories[measured.clock].interrupt()
        self._claims.pop(source, None)
        last = self._bounds.pop(source, None)
        if last is None:
            return EnsembleUpdate(None)
        return EnsembleUpdate(invalidated(last, reason, ClockStatus.DISRUPTED))


def _is_alive(bound: ErrorBound, boottime_ns: int) -> bool:
    return boottime_ns - bound.as_of_ns < bound.void_after_ns


def _takes_over(new: GrandmasterVerdict, known: GrandmasterVerdict) -> bool:
    """Two pollers date one event each by their own polls: changing between them would void twice."""
    return new.poller == known.poller or new.as_of_ns - known.as_of_ns > POLLER_LOST_NS


def _newest_void(known: _Unit | None, heard: Invalidation | None, boottime_ns: int) -> Invalidation | None:
    """An event that is told again keeps its first date; none lies in the future."""
    before = known.void if known else None
    if heard is None or (before and before.event == heard.event):
        return before
    heard = replace(heard, before_ns=min(heard.before_ns, boottime_ns))
    return heard if before is None or heard.before_ns > before.before_ns else before
