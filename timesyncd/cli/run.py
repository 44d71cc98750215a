"""Run the daemon."""

from __future__ import annotations

import logging
import platform
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Coroutine, Iterator
from pathlib import Path

from timesyncd.build import this_build
from timesyncd.cli._common import add_config_argument, load_config
from timesyncd.cli._log_output import JsonFormatter, formatter, is_journal, log_unexpected
from timesyncd.cli.check_config import describe

log = logging.getLogger(__name__)

EXAMPLES = (
    "timesyncd run",
    "timesyncd run --config node.toml --log-level debug",
)


def add_arguments(parser: ArgumentParser) -> None:
    add_config_argument(parser)
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        help="log from this level on (default: [log] level of the configuration, else info)",
    )
    parser.add_argument(
        "-v", "--verbose", dest="log_level", action="store_const", const="debug", help="the same as --log-level debug"
    )


def run(args: Namespace) -> int:
    """0 after SIGTERM or SIGINT. If a part fails, the daemon exits with 1, and the service manager restarts it."""
    import asyncio
    import gc

    from timesyncd.daemon.daemon import Daemon
    from timesyncd.daemon.log_limits import limit_library_logs

    handler = logging.StreamHandler()
    handler.setFormatter(formatter(sys.stderr))
    if is_journal(sys.stderr):
        sys.excepthook = log_unexpected
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    config = load_config(args)
    # A library's debug output is of no use to an operator.
    logging.getLogger("timesyncd").setLevel((args.log_level or config.log.level).upper())
    if config.log.format == "json":
        handler.setFormatter(JsonFormatter())
    limit_library_logs()
    for line in [str(this_build()), f"configuration {args.config}", *describe(config), *machine_lines()]:
        log.info("%s", line)
    # Objects that exist after the start live as long as the daemon: a collection over them would block it for about 70
    # ms.
    return asyncio.run(_until_signal(Daemon(config).run(ready=gc.freeze)))


def machine_lines(root: Path = Path("/")) -> Iterator[str]:
    """The kernel, and its PTP hardware clocks as sysfs has them, one line each."""
    yield f"kernel       {platform.release()}"
    clocks = sorted((root / "sys/class/ptp").glob("ptp*"))
    for clock in clocks:
        name, max_adj_ppb = _first_line(clock / "clock_name"), _first_line(clock / "max_adjustment")
        yield f"phc          /dev/{clock.name}: {name}, at most {max_adj_ppb} ppb of frequency"
    if not clocks:
        yield "phc          none: this kernel has no PTP hardware clock"


def _first_line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return "unknown"


async def _until_signal(work: Coroutine[None, None, None]) -> int:
    """Runs `work` until it fails, or until SIGTERM or SIGINT cancels it."""
    import asyncio
    import signal

    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return 0
    return 0
