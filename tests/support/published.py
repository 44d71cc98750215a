"""A clock segment as a daemon would publish it, for the client's tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from timesyncd.bound import Bound, ClockStatus, ErrorBound, Reason, published, unbounded
from timesyncd.clocks import RawReading, SystemClocks, boot_id, real_minus_boot_ns, time_namespace
from timesyncd.drivers.kernel import system_clock_frequency_ppb
from timesyncd.ipc import clock_segment, seqlock

EPOCH = clock_segment.Epoch(boot_id(), time_namespace())

#: Makes a good bound one of a clock whose offset is unknown.
LOST: dict[str, object] = {"gm_hard": unbounded(Reason.PARENT_CHANGED), "gm_status": ClockStatus.DISRUPTED}


def good_bound(**changes: object) -> ErrorBound:
    """Of this moment: 5 us against the grandmaster, 6 us against UTC, 37 s taken out."""
    clocks = SystemClocks()
    bound = ErrorBound(
        as_of_ns=clocks.boottime_ns(),
        real_minus_boot_ns=real_minus_boot_ns(clocks, 100),
        parent_hard=Bound(4_000, 50_100),
        gm_hard=Bound(5_000, 50_100),
        utc_hard=Bound(6_000, 50_100),
        gm_status=ClockStatus.SYNCHRONIZED,
        utc_status=ClockStatus.SYNCHRONIZED,
        utc_seconds_removed=37,
        clock="realtime",
        frequency_ppb=system_clock_frequency_ppb(),
        frequency_at_ns=clocks.boottime_ns(),
    )
    bound = published(bound, clocks.boottime_ns(), bound.frequency_ppb, RawReading.read())
    return replace(bound, **changes)  # type: ignore[arg-type]


def publish(folder: Path, **changes: object) -> None:
    """A good bound with these changes, from now on."""
    writer = seqlock.SegmentWriter(
        folder / clock_segment.NAME, clock_segment.MAGIC, clock_segment.LAYOUT_VERSION, clock_segment.WORD_COUNT
    )
    writer.write(clock_segment.encode(good_bound(**changes), EPOCH))
