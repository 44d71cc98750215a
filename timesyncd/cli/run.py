"""Run the daemon."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Coroutine

from timesyncd.cli._common import add_config_argument, load_config


def add_arguments(parser: ArgumentParser) -> None:
    add_config_argument(parser)


def run(args: Namespace) -> int:
    """Until SIGTERM or SIGINT, then 0. A part that fails ends the daemon with 1, so that the service manager restarts it."""
    import asyncio
    import gc
    import logging
    import os

    from timesyncd.daemon.daemon import Daemon

    config = load_config(args)
    under_systemd = "JOURNAL_STREAM" in os.environ
    logging.basicConfig(
        level=logging.INFO,
        format="%(levelname)s %(message)s" if under_systemd else "%(asctime)s %(levelname)s %(message)s",
    )
    # What is loaded when all is open stays for ever; going through it held everything up for some 70 ms now and then.
    return asyncio.run(_until_told(Daemon(config).run(ready=gc.freeze)))


async def _until_told(work: Coroutine[None, None, None]) -> int:
    """Run `work` until it fails or a signal asks to stop."""
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
