"""Wait until this node's clock is known within a limit, for scripts."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from timesyncd.bound import Reference
from timesyncd.cli.now import interval_line
from timesyncd.client.clock import Clock
from timesyncd.client.past import ClockReading
from timesyncd.units import span_ns

_LOOK_S = 0.1

EXAMPLES = (
    "timesyncd wait --within 1us && torchrun train.py",
    "timesyncd wait --within 10us --timeout 5m",
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--within",
        type=span_ns,
        required=True,
        metavar="SPAN",
        help="the largest allowed error against the grandmaster, such as 500ns, 1us, 2ms",
    )
    parser.add_argument(
        "--timeout", type=span_ns, default="60s", metavar="SPAN", help="give up after this long (default: %(default)s)"
    )
    parser.add_argument(
        "--runtime-dir",
        type=Path,
        metavar="DIR",
        help="runtime folder (default: $TIMESYNCD_RUNTIME_DIR, else /run/timesyncd)",
    )


def run(args: Namespace) -> int:
    """0 once the clock's bound is at most the limit, 1 if it is not after the timeout. The last bound is printed."""
    clock = Clock(args.runtime_dir)
    deadline_s = time.monotonic() + args.timeout / 1e9
    reading = clock.read(Reference.GRANDMASTER)
    while not (is_within := _is_within(reading, args.within)) and time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)
        reading = clock.read(Reference.GRANDMASTER)
    print(interval_line(reading.interval, reading.reason))
    return 0 if is_within else 1


def _is_within(reading: ClockReading, limit_ns: int) -> bool:
    """Half the interval's width is the bound."""
    earliest_ns, latest_ns = reading.interval.earliest, reading.interval.latest
    return earliest_ns is not None and latest_ns is not None and latest_ns - earliest_ns <= 2 * limit_ns
