"""Run the daemon."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Coroutine

from timesyncd.cli._common import add_config_argument, load_config
from timesyncd.cli._journal import JournalFormatter, is_journal, log_unexpected


def add_arguments(parser: ArgumentParser) -> None:
    add_config_argument(parser)


def run(args: Namespace) -> int:
    """0 after SIGTERM or SIGINT. If a part fails, the daemon exits with 1, and the service manager restarts it."""
    import asyncio
    import gc
    import logging
    import sys

    from timesyncd.daemon.daemon import Daemon
    from timesyncd.daemon.log_limits import limit_library_logs

    handler = logging.StreamHandler()
    if is_journal(sys.stderr):
        handler.setFormatter(JournalFormatter("%(levelname)s %(message)s"))
        sys.excepthook = log_unexpected
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    config = load_config(args)
    limit_library_logs()
    # Objects that exist after the start live as long as the daemon: a collection over them would block it for about 70
    # ms.
    return asyncio.run(_until_signal(Daemon(config).run(ready=gc.freeze)))


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
