"""What the store holds of a clock source, as the readings that they were."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from dataclasses import fields

from timesyncd.errors import ConfigError
from timesyncd.sample import ClockSample, NoSample, PortState
from timesyncd.store.history import Record, events, samples, sources
from timesyncd.store.place import Place

_STORED = {field.name for field in fields(ClockSample)} - {"port_state", "read_ns", "exchanges"}


def clock_readings(place: Place, source: str, span_ns: int | None) -> Iterator[tuple[int, ClockSample | NoSample]]:
    """
    The samples of so long ago and younger, and when they failed to come, each with the Unix time at which it was read. Raises ConfigError
    when there is no such PTP source, and StoreError.
    """
    known = sources(place)
    if known.get(source) not in ("clock", "event"):
        clocks = ", ".join(name for name, kind in known.items() if kind == "clock")
        what = f"{source!r} is none" if source in known else f"{place} has no {source!r}"
        raise ConfigError(f"only PTP sources (ptp4l) can be replayed, and {what}; {place} has: {clocks or 'none yet'}")
    now_ns = time.time_ns()
    since_ns = 0 if span_ns is None else now_ns - span_ns
    return _readings(place, source, (since_ns, now_ns))


def _readings(place: Place, source: str, span: tuple[int, int]) -> Iterator[tuple[int, ClockSample | NoSample]]:
    found = heapq.merge(
        events(place, source, *span), samples(place, source, *span), key=lambda row: int(row["realtime_ns"])
    )
    for record in found:
        if record["kind"] == "clock":
            sample = clock_sample(record)
            yield sample.read_ns + sample.real_minus_boot_ns, sample
        elif record["kind"] == "event" and record["reason"] is not None:
            yield record["realtime_ns"], no_sample(record)


def clock_sample(record: Record) -> ClockSample:
    """Of a row that does not tell when it was read nothing younger is known than `as_of_ns`."""
    read_ns = record.get("read_ns")
    return ClockSample(
        port_state=PortState[record["port_state"]],
        read_ns=record["as_of_ns"] if read_ns is None else read_ns,
        **{name: record[name] for name in _STORED},
    )


def no_sample(record: Record) -> NoSample:
    state = record["port_state"]
    return NoSample(
        record["source"],
        record["boottime_ns"],
        record["reason"],
        restarted=record["restarted"],
        port_state=None if state is None else PortState[state],
    )
