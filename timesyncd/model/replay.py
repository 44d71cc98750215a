"""A recorded trace of what ptp4l told, run through the model: the bound at each row, decided from the rows up to it. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from timesyncd.bound import ClockStatus, ErrorBound, status_at
from timesyncd.clocks import NS_PER_S, STEP_TOLERANCE_NS
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.model.references import added, utc_error, worse
from timesyncd.model.source_settings import SourceSettings
from timesyncd.sample import ClockSample, NoSample, PortState

_SOURCE = "trace"

#: Nothing reads the clocks of a trace, so no reader could take a small step for none; and what steps a clock shows in the offset.
SETTINGS = EnsembleSettings(SourceSettings(step_tolerance_ns=0))

_GRANDMASTER = "000000.0000.000001"
_GNSS = 0x20
_CLASS_UNTOLD = 248
_ACCURACY_UNTOLD = 0xFE

_FOLLOWING = (None, PortState.SLAVE, PortState.UNCALIBRATED)


class TraceRow(NamedTuple):
    """
    What a management client of ptp4l was told at `t_ns`; None = absent. `offset_ns` is local minus master; `freq_ppb` as ptp4l
    logs it: positive = the local clock runs fast and is slowed by so much.
    """

    t_ns: int
    offset_ns: int | None
    path_delay_ns: int | None = None
    freq_ppb: int | None = None
    port_state: PortState | None = None
    gm_present: bool | None = None
    clock_class: int | None = None
    clock_accuracy: int | None = None


class ReplayedRow(NamedTuple):
    """The bounds on |local clock error| at `t_ns`; None = unbounded. `status` is that against the grandmaster."""

    t_ns: int
    status: ClockStatus
    gm_hard_ns: int | None
    gm_stat_ns: int | None
    utc_hard_ns: int | None
    utc_stat_ns: int | None


class Replay:
    """Takes row after row; time must not go back."""

    def __init__(self, settings: EnsembleSettings = SETTINGS) -> None:
        self._ensemble = Ensemble({_SOURCE: settings})
        self._last: TraceRow | None = None
        """With an offset: a row without one says nothing of when the next Sync came."""
        self._sample: ClockSample | None = None
        self._known: tuple[int | None, int | None] | None = None
        """Class and accuracy of the grandmaster that the bound is made with."""

    def take(self, row: TraceRow) -> ReplayedRow:
        last, ensemble, frequency_ppb = self._last, self._ensemble, _frequency_ppb(row)
        if row.offset_ns is not None:
            self._last = row
        if row.port_state in _FOLLOWING and row.gm_present is not False and last is not None and _is_fresh(row, last):
            self._sample = _sample(row, last.t_ns)
            if ensemble.accept(self._sample).source_bound is not None:
                self._known = row.clock_class, row.clock_accuracy
        else:
            ensemble.accept(NoSample(_SOURCE, row.t_ns, "", port_state=row.port_state, frequency_ppb=frequency_ppb))
        return bounds_at(self._as_told(row), row.t_ns)

    def _as_told(self, row: TraceRow) -> ErrorBound | None:
        """What is told of the grandmaster counts at once where it is worse, also without a fresh Sync."""
        bound, sample = self._ensemble.known(_SOURCE), self._sample
        if bound is None or sample is None or row.clock_class is None:
            return bound
        if (row.clock_class, row.clock_accuracy) == self._known:
            return bound
        accuracy = _ACCURACY_UNTOLD if row.clock_accuracy is None else row.clock_accuracy
        told = utc_error(replace(sample, clock_class=row.clock_class, clock_accuracy=accuracy), SETTINGS.source, None)
        return replace(
            bound,
            utc_hard=worse(bound.utc_hard, added(bound.gm_hard, told)),
            utc_stat=worse(bound.utc_stat, added(bound.gm_stat, told)),
        )


class StoredReplay:
    """
    Takes what a daemon once read of its clock source `source`, in that order. With hardware stamps the bounds are those of the
    clock that was measured: what the system clock was against it is not in these readings.
    """

    def __init__(self, source: str, settings: EnsembleSettings) -> None:
        self._source = source
        self._ensemble = Ensemble({source: settings})
        self._last: ClockSample | None = None
        self._bound: ErrorBound | None = None

    def take(self, reading: ClockSample | NoSample) -> ReplayedRow:
        """The bounds when it was read."""
        if isinstance(reading, NoSample):
            self._accept(reading)
            return bounds_at(self._bound, reading.boottime_ns)
        if self._last is not None and (broken := _broken(self._last, reading)):
            self._accept(broken)
        self._last = reading
        self._accept(replace(reading, clock="realtime"))
        return bounds_at(self._bound, reading.read_ns)

    def _accept(self, reading: ClockSample | NoSample) -> None:
        """As the daemon's readers see it: what was published stands until something else is."""
        self._bound = self._ensemble.accept(reading).bound or self._bound


def bounds_at(bound: ErrorBound | None, t_ns: int) -> ReplayedRow:
    """What this bound says at `t_ns`."""
    if bound is None:
        return ReplayedRow(t_ns, ClockStatus.UNKNOWN, None, None, None, None)
    age_ns = max(0, t_ns - bound.as_of_ns)
    status = status_at(bound.gm_status, age_ns, bound.holdover_after_ns, bound.void_after_ns)
    if status in (ClockStatus.UNKNOWN, ClockStatus.DISRUPTED):
        return ReplayedRow(t_ns, status, None, None, None, None)
    gm_hard, gm_stat, utc_hard, utc_stat = bound.gm_hard, bound.gm_stat, bound.utc_hard, bound.utc_stat
    return ReplayedRow(t_ns, status, gm_hard.at(age_ns), gm_stat.at(age_ns), utc_hard.at(age_ns), utc_stat.at(age_ns))


def _broken(last: ClockSample, new: ClockSample) -> NoSample | None:
    """What the daemon saw between the two and stored no more of than what follows."""
    if new.clock != last.clock or new.read_ns < last.read_ns:
        return NoSample(new.source, new.as_of_ns, "another clock, or another boot", restarted=True)
    stepped_ns = abs(new.real_minus_boot_ns - last.real_minus_boot_ns)
    if new.clock == "realtime" and stepped_ns > STEP_TOLERANCE_NS:
        return NoSample(new.source, new.as_of_ns, "the clock was stepped", stepped=True)
    return None


def _is_fresh(row: TraceRow, last: TraceRow) -> bool:
    return row.offset_ns is not None and row.path_delay_ns is not None and row.offset_ns != last.offset_ns


def _sample(row: TraceRow, last_ns: int) -> ClockSample:
    assert row.offset_ns is not None and row.path_delay_ns is not None
    return ClockSample(
        source=_SOURCE,
        clock="realtime",
        as_of_ns=last_ns,
        read_ns=row.t_ns,
        real_minus_boot_ns=0,
        offset_ns=row.offset_ns,
        path_delay_ns=row.path_delay_ns,
        granularity_ns=1,
        ingress_time_ns=row.t_ns,
        port_state=row.port_state or PortState.SLAVE,
        grandmaster_identity=_GRANDMASTER,
        parent_identity=_GRANDMASTER,
        steps_removed=1,
        clock_class=_CLASS_UNTOLD if row.clock_class is None else row.clock_class,
        clock_accuracy=_ACCURACY_UNTOLD if row.clock_accuracy is None else row.clock_accuracy,
        ptp_timescale=True,
        time_traceable=True,
        current_utc_offset_s=SETTINGS.source.utc_offset_s,
        time_source=_GNSS,
        sync_interval_ns=NS_PER_S,
        delay_interval_ns=NS_PER_S,
        frequency_ppb=_frequency_ppb(row),
    )


def _frequency_ppb(row: TraceRow) -> int | None:
    return None if row.freq_ppb is None else -row.freq_ppb
