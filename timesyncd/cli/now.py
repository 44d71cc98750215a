"""Print the current time with its bound, as a training job reads it."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime
from pathlib import Path

from timesyncd.bound import Interval, Reference
from timesyncd.client.clock import Clock
from timesyncd.client.past import ClockReading
from timesyncd.units import duration_text

EXAMPLES = (
    "timesyncd now",
    "timesyncd now --json",
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--runtime-dir",
        type=Path,
        metavar="DIR",
        help="runtime folder (default: $TIMESYNCD_RUNTIME_DIR, else /run/timesyncd)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object; integer nanoseconds")


def run(args: Namespace) -> int:
    """0 if the interval against the grandmaster is known, else 1."""
    clock = Clock(args.runtime_dir)
    gm, utc = clock.read(Reference.GRANDMASTER), clock.read(Reference.UTC)
    if args.json:
        print(json.dumps({reading.interval.reference.value: _fields(reading) for reading in (gm, utc)}))
    else:
        for interval, _, reason in (gm, utc):
            print(interval_line(interval, reason))
    return 0 if gm.interval.earliest is not None else 1


_NAMES = {Reference.GRANDMASTER: "grandmaster", Reference.UTC: "UTC"}


def interval_line(interval: Interval, reason: str) -> str:
    name, status = _NAMES[interval.reference], interval.status.name
    if interval.earliest is None or interval.latest is None:
        return f"{name:<12} {status:<13} {reason}"
    middle_ns, half_ns = (interval.earliest + interval.latest) // 2, (interval.latest - interval.earliest) // 2
    seconds, ns = divmod(middle_ns, 1_000_000_000)
    middle = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{ns:09d}"
    return f"{name:<12} {status:<13} {middle} +- {duration_text(half_ns)}" + (f"  ({reason})" if reason else "")


def _fields(reading: ClockReading) -> dict[str, object]:
    interval = reading.interval
    return {
        "earliest_ns": interval.earliest,
        "latest_ns": interval.latest,
        "status": interval.status.name,
        "reason_code": reading.reason_code.code,
        "reason": reading.reason,
    }
