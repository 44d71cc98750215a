"""Watch fleet, nodes, jobs and grandmasters live in the terminal: sort, filter, drill down, with keys and mouse."""

from __future__ import annotations

import asyncio
import signal
import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from timesyncd.cli._common import add_config_argument, add_url_argument, page_url

if TYPE_CHECKING:
    from timesyncd.cli._top_app import TopApp

EXAMPLES = (
    "timesyncd top",
    "timesyncd top --url hub-1:8319",
)

#: What installs the extra.
INSTALL = "in timesyncd's source folder, pip install '.[tui]'"


def add_arguments(parser: ArgumentParser) -> None:
    add_config_argument(parser)
    add_url_argument(parser)


def run(args: Namespace) -> int:
    """0 when it was ended; 1 if standard output is no terminal; 2 without the extra tui."""
    try:
        import textual  # noqa: F401
    except ModuleNotFoundError:
        print(f"timesyncd top: the tui extra is missing: {INSTALL}", file=sys.stderr)
        return 2
    from timesyncd.cli._top_app import TopApp
    from timesyncd.cli._top_data import DaemonFeed

    page = args.url or page_url(args)
    if not sys.stdout.isatty():
        print("timesyncd top: standard output is no terminal; timesyncd status prints once", file=sys.stderr)
        return 1
    asyncio.run(_watch(TopApp(DaemonFeed(page))))
    return 0


async def _watch(app: TopApp) -> None:
    """SIGTERM ends it as q does, so that it gives the terminal back as it found it."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.exit)
    await app.run_async()
