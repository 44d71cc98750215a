"""Show the stored history of a clock source or a grandmaster."""

from __future__ import annotations

import heapq
import json
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from timesyncd.cli._common import add_config_argument, store_place
from timesyncd.cli._history_table import Record, table_of
from timesyncd.units import span_ns

if TYPE_CHECKING:
    from timesyncd.store.engine import StoreLocation

TABLE_LIMIT = 100

_SIGNS = {
    "clock": "offset: local minus reference",
    "phc": "offset: system clock minus hardware clock",
    "utc": "offset: local minus UTC",
    "kernel": "the kernel's state of its clock",
    "event": "no sample so far",
    "grandmaster": "phase: grandmaster minus its reference",
    "time_error": "positive: the channel is ahead of its reference",
}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="name of a [[source]] or [[grandmaster]]")
    parser.add_argument(
        "--since",
        type=span_ns,
        default="1h",
        metavar="SPAN",
        help="begin, as an age: 90s, 15m, 1h, 2d (default: %(default)s)",
    )
    parser.add_argument("--until", type=span_ns, default="0s", metavar="SPAN", help="end, as an age (default: now)")
    parser.add_argument(
        "--limit",
        type=_count,
        metavar="N",
        help=f"only the newest N samples (default: {TABLE_LIMIT} in a table, all in JSON)",
    )
    parser.add_argument(
        "--time-errors",
        action="store_true",
        help="show the time errors of a grandmaster's channels instead of its samples",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument("--store", metavar="PATH", help="file or URL of the store (default: from the configuration)")
    add_config_argument(parser)


def run(args: Namespace) -> int:
    """0; 2 for a source that the store does not know. Raises ConfigError, StoreError."""
    from timesyncd.store.history import sources

    place = store_place(args, "so there is no history")
    known = sources(place)
    if args.source not in known:
        print(
            f"timesyncd: {place} has no source {args.source!r}; known sources: {', '.join(known) or 'none'}",
            file=sys.stderr,
        )
        return 2
    limit = args.limit or (None if args.json else TABLE_LIMIT)
    now_ns = time.time_ns()
    span = (now_ns - args.since, now_ns - args.until)
    kind = "time_error" if args.time_errors else known[args.source]
    records = (_time_errors if args.time_errors else _records)(place, args.source, span, limit)
    if args.json:
        _print_json(records)
    else:
        _print_table(args.source, kind, list(records), limit)
    return 0


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def _time_errors(place: StoreLocation, source: str, span: tuple[int, int], limit: int | None) -> Iterator[Record]:
    from timesyncd.store.history import time_errors

    return time_errors(place, source, *span, limit)


def _records(place: StoreLocation, source: str, span: tuple[int, int], limit: int | None) -> Iterator[Record]:
    """Samples and events in order of time; with a limit, no event precedes the first sample."""
    from timesyncd.store.history import events, samples

    found: Iterable[Record] = samples(place, source, *span, limit)
    first_ns = span[0]
    if limit is not None:
        found = list(found)
        if len(found) == limit:
            first_ns = found[0]["realtime_ns"]
    yield from heapq.merge(events(place, source, first_ns, span[1]), found, key=lambda record: record["realtime_ns"])


def _print_json(records: Iterable[Record]) -> None:
    for record in records:
        print(json.dumps(record))


def _print_table(source: str, kind: str, records: list[Record], limit: int | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from timesyncd.cli.render import plain_text

    headings, rows = table_of(kind, records)
    if not rows:
        print(f"{source}: no records between --since and --until")
        return
    table = Table(title=f"{source}: {_SIGNS[kind]}", title_justify="left", box=None, pad_edge=False)
    for heading, justify in headings:
        table.add_column(heading, justify=justify, no_wrap=heading != "note", overflow="fold")
    for row in rows:
        table.add_row(*map(plain_text, row))
    console = Console(highlight=False, markup=False)
    console.width = max(console.width, 140)
    console.print(table)
    shown = sum(record["kind"] in _SIGNS and record["kind"] != "event" for record in records)
    if shown == limit:
        what = "time errors" if kind == "time_error" else "samples"
        console.print(f"only the newest {shown} {what}; --limit shows more")
