"""What the daemon hands over -> rows of the store's tables. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from sqlalchemy import Table

from timesyncd.bound import Bound, ErrorBound, Reason
from timesyncd.feed import Observation
from timesyncd.messages import FindingMessage, status_name
from timesyncd.sample import ClockSample, GrandmasterSample, NoSample, PortState, Reading
from timesyncd.store import tables

Row = dict[str, Any]

_CLOCK_FIELDS = tuple(field.name for field in fields(ClockSample))


@dataclass(frozen=True, slots=True)
class Entry:
    """A row on its way; `queued_ns` is CLOCK_BOOTTIME when it was handed over, `source` names whom its loss concerns."""

    table: Table
    row: Row
    source: str
    realtime_ns: int
    queued_ns: int


@dataclass(frozen=True, slots=True)
class SourceState:
    """What a source's readings were last: samples (`reason` None), or none, and why. Only its changes are stored."""

    reason: str | None = None
    restarted: bool = False
    port_state: PortState | None = None


def state_of(reading: Reading) -> SourceState:
    if isinstance(reading, NoSample):
        return SourceState(reading.reason, reading.restarted, reading.port_state)
    return SourceState()


def sample_entry(observation: Observation, real_minus_boot_ns: int, now_ns: int) -> Entry | None:
    """None for a reading that gave no sample."""
    reading = observation.reading
    match reading:
        case ClockSample():
            row = clock_row(reading, observation.bound)
            return Entry(tables.clock_sample, row, reading.source, row["realtime_ns"], now_ns)
        case GrandmasterSample():
            row = grandmaster_row(reading, real_minus_boot_ns)
            return Entry(tables.grandmaster_sample, row, reading.source, row["realtime_ns"], now_ns)
        case NoSample():
            return None


def event_entry(source: str, state: SourceState, real_minus_boot_ns: int, now_ns: int) -> Entry:
    realtime_ns = now_ns + real_minus_boot_ns
    row = {
        "source": source,
        "realtime_ns": realtime_ns,
        "boottime_ns": now_ns,
        "reason": state.reason,
        "restarted": state.restarted,
        "port_state": None if state.port_state is None else state.port_state.name,
    }
    return Entry(tables.source_event, row, source, realtime_ns, now_ns)


def finding_entry(finding: FindingMessage, now_ns: int) -> Entry:
    row = finding.model_dump()
    row["finding_id"] = row.pop("id")
    return Entry(tables.finding, row, finding.subject, finding.since_realtime_ns, now_ns)


def clock_row(sample: ClockSample, bound: ErrorBound | None) -> Row:
    row = {name: getattr(sample, name) for name in _CLOCK_FIELDS}
    row["realtime_ns"] = sample.as_of_ns + sample.real_minus_boot_ns
    row["port_state"] = sample.port_state.name
    for name in ("parent", "gm", "utc"):
        row |= _bound_columns(name, None if bound is None else getattr(bound, f"{name}_hard"))
    row["gm_status"] = None if bound is None else status_name(bound.gm_status)
    row["utc_status"] = None if bound is None else status_name(bound.utc_status)
    row["utc_seconds_removed"] = None if bound is None else bound.utc_seconds_removed
    row["terms"] = None if bound is None else bound.terms
    return row


def _bound_columns(name: str, bound: Bound | None) -> Row:
    """A bound that is not unbounded has no reason to give: NULL."""
    reason = None if bound is None or bound.reason is Reason.OK else bound.reason.name
    bound_ns = None if bound is None else bound.bound_ns
    growth_ppb = None if bound is None or bound_ns is None else bound.growth_ppb
    return {f"{name}_bound_ns": bound_ns, f"{name}_growth_ppb": growth_ppb, f"{name}_reason": reason}


def grandmaster_row(sample: GrandmasterSample, real_minus_boot_ns: int) -> Row:
    row = asdict(sample)
    row["realtime_ns"] = sample.boottime_ns + real_minus_boot_ns
    row["clock_state"] = None if sample.clock_state is None else sample.clock_state.value
    return row
