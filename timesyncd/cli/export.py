"""Export the stored history of a clock source or a grandmaster to a CSV or Parquet file."""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from timesyncd.cli._common import add_history_arguments, knows_source, report_damaged
from timesyncd.errors import ConfigError

if TYPE_CHECKING:
    from timesyncd.store.engine import StoreLocation


EXAMPLES = (
    "timesyncd export ptp --since 1d -o ptp.csv",
    "timesyncd export gm-a --span hour --format parquet -o gm-a.parquet",
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="name of a [[source]] or [[grandmaster]]")
    add_history_arguments(parser, since="1h")
    parser.add_argument(
        "--span",
        choices=("raw", "minute", "hour"),
        default="raw",
        help="samples, or their roll-ups (default: %(default)s)",
    )
    parser.add_argument(
        "--node", metavar="NAME", help="in a hub's store: the node whose minutes or hours to export (default: the hub)"
    )
    parser.add_argument("--format", choices=("csv", "parquet"), default="csv", help="default: %(default)s")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="output file")
    parser.add_argument("--force", action="store_true", help="replace an existing file")


def run(args: Namespace) -> int:
    """
    0; 2 for a source that the store does not know. Raises StoreError if reading the store or writing the file fails.
    """
    from timesyncd.cli._common import store_place
    from timesyncd.store.export import export
    from timesyncd.store.history import damaged_rows

    _check(args)
    place = store_place(args, "so there is nothing to export")
    if not knows_source(place, _known(place, args), args.source):
        return 2
    now_ns = time.time_ns()
    what = (place, args.source, args.span, now_ns - args.since, now_ns - args.until)
    with _progress(args.source) as on_progress:
        rows = export(*what, args.output, args.format, on_progress, args.force, args.node)
    print(
        f"{args.output}: {rows} rows"
        if rows
        else f"{args.output}: 0 rows: the store has none between --since and --until"
    )
    if args.span == "raw":
        report_damaged(damaged_rows(*what[:2], *what[3:]))
    return 0


def _check(args: Namespace) -> None:
    """Raises ConfigError for options that exclude each other."""
    if args.since <= args.until:
        raise ConfigError("--since is not before --until: both are ages, so --since has to be the larger one")
    if args.node is not None and args.span == "raw":
        raise ConfigError(
            "--node: a hub stores minutes and hours of other nodes, no samples: give --span minute or --span hour"
        )
    if os.path.lexists(args.output) and not args.force:
        raise ConfigError(f"{args.output}: the file exists; replace it with --force")


def _known(place: StoreLocation, args: Namespace) -> list[str]:
    """The sources with samples, or with roll-ups. Raises StoreError."""
    from timesyncd.store.history import sources
    from timesyncd.store.series import rollup_sources

    if args.span == "raw":
        return list(sources(place))
    return sorted(rollup_sources(place, args.node))


@contextmanager
def _progress(source: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal; no output without one."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task(source, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
