"""Which source to believe, and what its samples make of the node's clock: accept(reading) -> ErrorBound. Pure."""

from __future__ import annotations

from collections.abc import Mapping
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
)


@dataclass(frozen=True, slots=True)
class EnsembleSettings:
    """One source's assumptions, and when its bound counts as held over and as void."""

    source: SourceSettings = field(default_factory=SourceSettings)
    holdover_after_ns: int = DEFAULT_HOLDOVER_AFTER_NS
    void_after_ns: int = DEFAULT_VOID_AFTER_NS


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a reading led to: the bound to publish (None: nothing new; the last one ages), and a phase jump if there was."""

    bound: ErrorBound | None
    phase_jump_ns: int | None = None


class Ensemble:
    """
    The node's clock as its sources tell it. One source decides: the first configured one that is not void; when it falls
    silent past its void_after, the next one with samples does.
    """

    def __init__(self, settings: Mapping[str, EnsembleSettings]) -> None:
        self._settings = dict(settings)
        self._memories = {name: SourceMemory(each.source) for name, each in settings.items()}
        self._bounds: dict[str, ErrorBound] = {}

    def accept(self, reading: ClockSample | NoSample) -> Outcome:
        """Take the next reading of a source. The outcome's bound is what readers of the segment shall see from now on."""
        if isinstance(reading, NoSample):
            return self._disrupted(reading)
        memory = self._memories[reading.source]
        if memory.newest and memory.newest.parent_identity != reading.parent_identity:
            # What is known holds against the former parent, and the servo may already follow the new one.
            withdrawn = self._withdraw(reading.source, Reason.PARENT_CHANGED)
            memory.accept(reading)
            return withdrawn
        parent = memory.accept(reading)
        if parent is None:
            return Outcome(None)
        bound = error_bound(reading, parent, self._settings[reading.source])
        self._bounds[reading.source] = bound
        decides = self.advance(reading.as_of_ns) is bound
        return Outcome(bound if decides else None, parent.phase_jump_ns)

    def advance(self, boottime_ns: int) -> ErrorBound | None:
        """The bound that decides at this moment."""
        alive = [b for name in self._settings if (b := self._bounds.get(name)) and _is_alive(b, boottime_ns)]
        return alive[0] if alive else None

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


def error_bound(sample: ClockSample, parent: ParentBound, settings: EnsembleSettings) -> ErrorBound:
    """The three references at one sample. Of a PHC nothing follows for the system clock until their offset is measured."""
    gm = grandmaster_bound(parent.bound, sample, settings.source)
    utc = utc_bound(gm, sample, settings.source)
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
