"""Samples for tests: a healthy one, to be varied."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from timesyncd.clocks import NS_PER_S
from timesyncd.sample import ClockSample, PortState

INTERVAL_NS = NS_PER_S // 8

GRANDMASTER_IDENTITY = "001122.fffe.334455"

HEALTHY = ClockSample(
    source="ptp",
    clock="realtime",
    as_of_ns=1_000 * NS_PER_S,
    read_ns=1_000 * NS_PER_S,
    real_minus_boot_ns=1_699_999_000 * NS_PER_S,
    offset_ns=100,
    path_delay_ns=2_000,
    granularity_ns=1,
    ingress_time_ns=1_700_000_000 * NS_PER_S,
    port_state=PortState.SLAVE,
    grandmaster_identity=GRANDMASTER_IDENTITY,
    parent_identity=GRANDMASTER_IDENTITY,
    steps_removed=1,
    clock_class=6,
    clock_accuracy=0x21,
    ptp_timescale=False,
    time_traceable=False,
    current_utc_offset_s=None,
    time_source=0xA0,
    sync_interval_ns=INTERVAL_NS,
    delay_interval_ns=INTERVAL_NS,
    delay_requests_sent=0,
    delay_responses_received=0,
    frequency_ppb=0,
)


def nth(index: int, **changes: Any) -> ClockSample:
    """The sample of the index-th Sync: one delay measurement each."""
    return replace(
        HEALTHY,
        **{
            "as_of_ns": HEALTHY.as_of_ns + index * INTERVAL_NS,
            "read_ns": HEALTHY.read_ns + index * INTERVAL_NS,
            "ingress_time_ns": HEALTHY.ingress_time_ns + index * INTERVAL_NS,
            "delay_requests_sent": index,
            "delay_responses_received": index,
            **changes,
        },
    )
