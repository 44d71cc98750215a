"""Run the complete system on this machine: simulated grandmasters, two nodes with real ptp4l, a broker, a job."""

from __future__ import annotations

import math
from argparse import ArgumentParser, ArgumentTypeError, Namespace

EXAMPLES = (
    "timesyncd demo",
    "timesyncd demo --seconds 60 --json",
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--seconds", type=seconds, help="end this long after every node had a valid sample (default: at Ctrl-C)"
    )
    parser.add_argument("--json", action="store_true", help="no live view; print one line of JSON at the end")


def seconds(text: str) -> float:
    """Raises ArgumentTypeError, or ValueError for what is no number."""
    found = float(text)
    if not 0 <= found < math.inf:
        raise ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return found


def run(args: Namespace) -> int:
    """0; 1 if not every node had a valid sample within 90 s; 130 if it was ended before that."""
    import asyncio
    import signal

    # Until the demo installs its own handlers, these signals end it like Ctrl-C, without a traceback.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)

    from timesyncd.cli._demo_system import END_SIGNALS, demo

    status = asyncio.run(demo(args.seconds, args.json))
    # The result is printed: a repeated signal does not change the status.
    for number in END_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    return status
