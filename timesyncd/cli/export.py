"""Write what the store holds of a clock source or a grandmaster to a file: CSV, or Parquet for notebooks."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from timesyncd.cli._common import add_config_argument
from timesyncd.errors import ConfigError
from timesyncd.units import span_ns

if TYPE_CHECKING:
    from timesyncd.store.engine import StoreLocation


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="a [[source]] or [[grandmaster]] by its name")
    parser.add_argument("--since", type=span_ns, default="1h", metavar="SPAN", help="how far back, as 90s, 15m, 1h, 2d")
    parser.add_argument("--until", type=span_ns, default="0s", metavar="SPAN", help="up to how long ago (default: now)")
    parser.add_argument(
        "--span", choices=("raw", "minute", "hour"), default="raw", help="samples, or what they are rolled up to (raw)"
    )
    parser.add_argument("--node", metavar="NAME", help="of a hub's store: whose minutes or hours (default: its own)")
    parser.add_argument("--format", choices=("csv", "parquet"), default="csv", help="%(default)s")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the file to write")
    parser.add_argument("--force", action="store_true", help="replace the file if there is one")
    parser.add_argument("--store", metavar="PATH", help="the store's file or URL, instead of the configuration's")
    add_config_argument(parser)


def run(args: Namespace) -> int:
    """0, 2 for a source that the store does not know; StoreError when the store cannot be read or the file not be written."""
    from timesyncd.cli._common import store_place
    from timesyncd.store.export import export

    _check(args)
    place = store_place(args, "so there is nothing to export")
    known = _known(place, args)
    if args.source not in known:
        told = ", ".join(known) or "nothing yet"
        print(f"timesyncd: {place} has no {args.source!r}; it has: {told}", file=sys.stderr)
        return 2
    now_ns = time.time_ns()
    what = (place, args.source, args.span, now_ns - args.since, now_ns - args.until)
    with _progress(args.source) as on_progress:
        rows = export(*what, args.output, args.format, on_progress, args.force, args.node)
    print(f"{args.output}: {rows} rows" if rows else f"{args.output}: no rows, since there is nothing in this span")
    return 0


def _check(args: Namespace) -> None:
    """Raises ConfigError."""
    if args.since <= args.until:
        raise ConfigError("--since is not before --until: both say how long ago")
    if args.node is not None and args.span == "raw":
        raise ConfigError("--node: a hub has minutes and hours of other nodes, no samples: give --span minute or hour")
    if args.output.exists() and not args.force:
        raise ConfigError(f"{args.output}: there is such a file already; --force replaces it")


def _known(place: StoreLocation, args: Namespace) -> list[str]:
    """Samples go before what they are rolled up to. Raises StoreError."""
    from timesyncd.store.history import sources
    from timesyncd.store.series import rollup_sources

    if args.span == "raw":
        return list(sources(place))
    return sorted(rollup_sources(place, args.node))


@contextmanager
def _progress(source: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task(source, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
