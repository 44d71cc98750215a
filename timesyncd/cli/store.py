"""Back up the store while the daemon writes, or put a backup in its place."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from timesyncd.cli._common import add_config_argument, store_place
from timesyncd.cli._parser import FileName

#: A running daemon takes a backup within a second or two.
RESTORE_S = 15.0
_CHECK_INTERVAL_S = 0.2


EXAMPLES = (
    "timesyncd store backup /backup/timesyncd.sqlite",
    "timesyncd store restore /backup/timesyncd.sqlite",
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=("backup", "restore"), help="copy the store into FILE, or put FILE in the store's place"
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the backup")
    parser.add_argument("--force", action="store_true", help="backup: replace an existing file")
    parser.add_argument(
        "--store", type=FileName, metavar="PATH", help="file of the store (default: from the configuration)"
    )
    add_config_argument(parser)


def run(args: Namespace) -> int:
    """0. Raises ConfigError, also for a store on PostgreSQL; StoreError if a file is damaged or cannot be written."""
    return _back_up(args) if args.action == "backup" else _restore(args)


def _back_up(args: Namespace) -> int:
    from timesyncd.store.backup import back_up

    place = store_place(args, "so there is nothing to back up")
    with _progress() as on_progress:
        size = back_up(place, args.file, on_progress, overwrite=args.force)
    print(f"{args.file}: {size / 1e6:.1f} MB, checked")
    return 0


def _restore(args: Namespace) -> int:
    from timesyncd.store.backup import request_restore

    place = store_place(args, "so there is nothing to restore")
    request = request_restore(place, args.file)
    until_s = time.monotonic() + RESTORE_S
    while request.exists() and time.monotonic() < until_s:
        time.sleep(_CHECK_INTERVAL_S)
    if request.exists():
        print(f"{request}: checked; the daemon does not run, or not on this store: it takes the backup when it starts")
    else:
        print(f"{place}: the daemon restored the backup; the former store is beside it, as {place.path}.replaced-*")
    return 0


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A line on a terminal; no output without one."""
    is_shown = sys.stderr.isatty()

    def on_progress(done: int, total: int) -> None:
        if is_shown:
            print(f"\r{100 * done // max(1, total)} %", end="", file=sys.stderr, flush=True)

    yield on_progress
    if is_shown:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
