"""The samples that a driver makes of a simulated chain's rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from chain import Instant
from samples import GRANDMASTER_IDENTITY, HEALTHY

from timesyncd.clocks import NS_PER_S
from timesyncd.model.replay import TraceRow
from timesyncd.sample import ClockSample, PortState


def ptp_sample(row: TraceRow, last_ns: int) -> ClockSample:
    assert row.offset_ns is not None and row.path_delay_ns is not None
    return replace(
        HEALTHY,
        as_of_ns=last_ns,
        read_ns=row.t_ns,
        real_minus_boot_ns=0,
        offset_ns=row.offset_ns,
        path_delay_ns=row.path_delay_ns,
        ingress_time_ns=row.t_ns,
        port_state=row.port_state or PortState.SLAVE,
        grandmaster_identity=GRANDMASTER_IDENTITY,
        clock_class=row.clock_class or 248,
        clock_accuracy=row.clock_accuracy or 0xFE,
        ptp_timescale=True,
        time_traceable=True,
        current_utc_offset_s=37,
        sync_interval_ns=NS_PER_S,
        delay_interval_ns=NS_PER_S,
        delay_requests_sent=None,
        delay_responses_received=None,
        frequency_ppb=None if row.freq_ppb is None else -row.freq_ppb,
    )


def sampled(instants: Iterable[Instant]) -> Iterator[tuple[Instant, ClockSample | None]]:
    """Each instant with its sample; None: there is none, or ptp4l shows the Sync of the last one."""
    last: TraceRow | None = None
    for instant in instants:
        row, sample = instant.row, None
        if instant.is_reading and row.offset_ns is not None and row.path_delay_ns is not None:
            if last is not None and row.port_state is PortState.SLAVE and row.offset_ns != last.offset_ns:
                sample = ptp_sample(row, last.t_ns)
            last = row
        yield instant, sample
