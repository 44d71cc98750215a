"""Which source to believe, and what its samples make of the node's clock: accept(reading) -> ErrorBound. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from timesyncd.bound import (
    DEFAULT_HOLDOVER_AFTER_NS,
    DEFAULT_VOID_AFTER_NS,
    Bound,
    ClockStatus,
    ErrorBound,
    Reason,
    status_at,
    unbounded,
)
from timesyncd.sample import ClockSample, NoSample, PortState
from timesyncd.source import (
    ParentBound,
    SourceMemory,
    SourceSettings,
    grandmaster_bound,
    utc_bound,
    utc_seconds_removed,
    worse,
)
from timesyncd.verdict import GrandmasterVerdict, Void

#: A unit that two daemons poll is believed to one of them, until that one's last poll is so much older than the other's.
POLLER_LOST_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class EnsembleSettings:
    """One source's assumptions, and when its bound counts as held over and as void."""

    source: SourceSettings = field(default_factory=SourceSettings)
    holdover_after_ns: int = DEFAULT_HOLDOVER_AFTER_NS
    void_after_ns: int = DEFAULT_VOID_AFTER_NS


@dataclass(frozen=True, slots=True)
class Outcome:
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
    void: Void | None


class Ensemble:
    """
    The node's clock as its sources tell it. One source decides: the first configured one that is not void; when it falls
    silent past its void_after, the next one with samples does.
    """

    def __init__(self, settings: Mapping[str, EnsembleSettings]) -> None:
        self._settings = dict(settings)
        self._memories = {name: SourceMemory(each.source) for name, each in settings.items()}
        self._bounds: dict[str, ErrorBound] = {}
        self._measured: dict[str, ClockSample] = {}
        self._units: dict[str, _Unit] = {}

    def accept(self, reading: ClockSample | NoSample) -> Outcome:
        """Take the next reading of a source. The outcome's bound is what readers of the segment shall see from now on."""
        if isinstance(reading, NoSample):
            return self._disrupted(reading)
        memory = self._memories[reading.source]
        units = self._followed(reading)
        if any(unit.void and reading.as_of_ns < unit.void.before_ns for unit in units):
            return Outcome(None)
        if memory.newest and memory.newest.parent_identity != reading.parent_identity:
            # What is known holds against the former parent, and the servo may already follow the new one.
            withdrawn = self._withdraw(reading.source, Reason.PARENT_CHANGED)
            memory.accept(reading)
            return withdrawn
        parent = memory.accept(reading)
        if parent is None:
            return Outcome(None)
        bound = error_bound(reading, parent, self._settings[reading.source], units[0].verdict if units else None)
        self._bounds[reading.source] = bound
        self._measured[reading.source] = reading
        for unit in units[1:]:
            bound = self._against_utc(reading.source, unit) or bound
        decides = self.advance(reading.as_of_ns) is bound
        return Outcome(bound if decides else None, parent.phase_jump_ns, bound)

    @property
    def bounded(self) -> Collection[str]:
        """The sources of which a bound is known, be it old."""
        return self._bounds.keys()

    def advance(self, boottime_ns: int) -> ErrorBound | None:
        """The bound that decides at this moment."""
        alive = [b for name in self._settings if (b := self._bounds.get(name)) and _is_alive(b, boottime_ns)]
        return alive[0] if alive else None

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
        changed = None
        for source in self._settings:
            last = self._bounds.get(source)
            new = self._voided(source, followers, unit.void) or self._against_utc(source, unit)
            changed = new if last is deciding and last is not None else changed
        return changed

    def _followed(self, sample: ClockSample) -> list[_Unit]:
        """More than one where two units show one identity, as after an exchange of modules: then the worse word counts."""
        return [unit for unit in self._units.values() if sample.grandmaster_identity in unit.identities]

    def _voided(self, source: str, followers: Collection[str], void: Void | None) -> ErrorBound | None:
        """Forget what the source measured before, where its grandmaster is among these."""
        known = self._bounds.get(source) or self._memories[source].newest
        if void is None or known is None or known.grandmaster_identity not in followers:
            return None
        return self._withdraw(source, void.reason).bound if known.as_of_ns < void.before_ns else None

    def _against_utc(self, source: str, unit: _Unit) -> ErrorBound | None:
        """The source's bound by what was just heard, where that is worse; nothing of it becomes better thereby."""
        last = self._bounds.get(source)
        if last is None or last.grandmaster_identity not in unit.identities:
            return None
        heard = utc_bound(last.gm_hard, self._measured[source], self._settings[source].source, unit.verdict)
        utc = worse(last.utc_hard, heard)
        if utc == last.utc_hard:
            return None
        bound = self._bounds[source] = replace(last, utc_hard=utc, utc_status=_fed(utc))
        return bound

    def _disrupted(self, reading: NoSample) -> Outcome:
        if reading.stepped:
            outcomes = [self._withdraw(name, Reason.CLOCK_STEPPED) for name in self._settings]
            return next((outcome for outcome in outcomes if outcome.bound), Outcome(None))
        if reading.restarted:
            return self._withdraw(reading.source, Reason.SOURCE_RESTARTED)
        if reading.port_state not in (None, PortState.SLAVE, PortState.UNCALIBRATED):
            # ptp4l empties its delay filter when the port ceases to follow; what is known ages on.
            self._memories[reading.source].clear()
        return Outcome(None)

    def _withdraw(self, source: str, reason: Reason) -> Outcome:
        self._memories[source].clear()
        last = self._bounds.pop(source, None)
        if last is None:
            return Outcome(None)
        nothing = unbounded(reason)
        withdrawn = replace(
            last,
            parent_hard=nothing,
            gm_hard=nothing,
            utc_hard=nothing,
            gm_status=ClockStatus.DISRUPTED,
            utc_status=ClockStatus.DISRUPTED,
            terms={},
        )
        return Outcome(withdrawn)


def _is_alive(bound: ErrorBound, boottime_ns: int) -> bool:
    age_ns = max(0, boottime_ns - bound.as_of_ns)
    written = ClockStatus.SYNCHRONIZED
    return status_at(written, age_ns, bound.holdover_after_ns, bound.void_after_ns) is not ClockStatus.UNKNOWN


def _takes_over(new: GrandmasterVerdict, known: GrandmasterVerdict) -> bool:
    """Two pollers date one event each by their own polls: changing between them would void twice."""
    return new.poller == known.poller or new.as_of_ns - known.as_of_ns > POLLER_LOST_NS


def _newest_void(known: _Unit | None, heard: Void | None, boottime_ns: int) -> Void | None:
    """An event that is told again keeps its first date; none lies in the future."""
    before = known.void if known else None
    if heard is None or (before and before.event == heard.event):
        return before
    heard = replace(heard, before_ns=min(heard.before_ns, boottime_ns))
    return heard if before is None or heard.before_ns > before.before_ns else before


def error_bound(
    sample: ClockSample, parent: ParentBound, settings: EnsembleSettings, verdict: GrandmasterVerdict | None = None
) -> ErrorBound:
    """The three references at one sample. Of a PHC nothing follows for the system clock until their offset is measured."""
    gm = grandmaster_bound(parent.bound, sample, settings.source)
    utc = utc_bound(gm, sample, settings.source, verdict)
    parent_hard = parent.bound
    if sample.clock != "realtime":
        parent_hard = gm = utc = unbounded(Reason.PHC_NOT_MEASURED)
    return ErrorBound(
        as_of_ns=sample.as_of_ns,
        real_minus_boot_ns=sample.real_minus_boot_ns,
        parent_hard=parent_hard,
        gm_hard=gm,
        utc_hard=utc,
        gm_status=_fed(gm),
        utc_status=_fed(utc),
        grandmaster_identity=sample.grandmaster_identity,
        parent_identity=sample.parent_identity,
        utc_seconds_removed=utc_seconds_removed(sample, settings.source),
        clock=sample.clock,
        holdover_after_ns=settings.holdover_after_ns,
        void_after_ns=settings.void_after_ns,
        terms=parent.terms,
    )


def _fed(bound: Bound) -> ClockStatus:
    return ClockStatus.UNKNOWN if bound.bound_ns is None else ClockStatus.SYNCHRONIZED
