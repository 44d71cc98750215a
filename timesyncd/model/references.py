"""From the bound against the parent to those against the grandmaster and UTC. Pure; docs/error-bound.md derives them."""

from __future__ import annotations

from timesyncd.bound import Bound, Reason, unbounded
from timesyncd.model.source_settings import SourceSettings
from timesyncd.model.verdict import GrandmasterVerdict
from timesyncd.sample import ACCURACY_NS, ClockSample

#: Clock classes on the PTP timescale: locked to a primary reference, and in holdover within specification.
LOCKED_CLASS = 6
HOLDOVER_CLASS = 7


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
    return added(gm, utc_error(sample, settings, verdict))


def added(gm: Bound, own: Bound) -> Bound:
    """A clock's bound against its grandmaster, and that one's own against UTC."""
    if gm.bound_ns is None:
        return gm
    return own if own.bound_ns is None else gm.plus(own.bound_ns, own.growth_ppb)


def utc_error(sample: ClockSample, settings: SourceSettings, verdict: GrandmasterVerdict | None) -> Bound:
    """The grandmaster's own error against UTC; unbounded also where its timescale is not known to be that of UTC."""
    if not sample.ptp_timescale:
        return unbounded(Reason.ARBITRARY_TIMESCALE)
    if sample.current_utc_offset_s is None or not sample.time_traceable:
        return unbounded(Reason.UTC_OFFSET_UNKNOWN)
    if sample.current_utc_offset_s != settings.utc_offset_s:
        return unbounded(Reason.UTC_OFFSET_DIFFERS)
    return _grandmaster_error(sample, settings, verdict)


def _grandmaster_error(sample: ClockSample, settings: SourceSettings, verdict: GrandmasterVerdict | None) -> Bound:
    """
    The worse of what it announces and what its poller says. Two exceptions: a poller that knows nothing does not count, nor
    one that knew it locked and fell silent; and in a holdover that both tell, its own budget stands in for the flat one.
    """
    announced = _announced_error(sample, settings)
    if verdict is None:
        return announced
    told = verdict.utc_at(max(sample.as_of_ns, sample.read_ns))
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
