"""Run the whole system on this machine: simulated grandmasters, two nodes with real ptp4l, a broker, a job."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--seconds", type=float, help="end so long after both nodes had a valid sample; default: Ctrl-C"
    )
    parser.add_argument("--json", action="store_true", help="no live view; end with one JSON line")


def run(args: Namespace) -> int:
    """0; 1 when there was no valid sample of both nodes within 90 s; 130 when it was ended before."""
    import asyncio
    import signal

    for number in (
        signal.SIGTERM,
        signal.SIGHUP,
    ):  # until the demo itself takes them: as Ctrl-C, an end without a trace
        signal.signal(number, signal.default_int_handler)

    from timesyncd.cli._demo_system import END_SIGNALS, demo

    status = asyncio.run(demo(args.seconds, args.json))
    for number in END_SIGNALS:  # the result is out: a late repeat does not change the status
        signal.signal(number, signal.SIG_IGN)
    return status
