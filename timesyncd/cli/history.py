"""Show the stored history of a clock source or a grandmaster."""

from __future__ import annotations

import heapq
import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, Literal

from timesyncd.bound import Reason
from timesyncd.cli._common import add_history_arguments, count_of, knows_source, report_damaged, store_place
from timesyncd.daemon.source_states import whole_seconds
from timesyncd.sample import KernelSample, Movement
from timesyncd.units import duration_text

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


EXAMPLES = (
    "timesyncd history ptp --since 2h",
    "timesyncd history gm-a --since 1d --time-errors --json",
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="name of a [[source]] or [[grandmaster]]")
    add_history_arguments(parser, since="1h")
    parser.add_argument(
        "--limit",
        type=count_of,
        metavar="N",
        help=f"only the newest N samples (default: {TABLE_LIMIT} in a table, all in JSON)",
    )
    parser.add_argument(
        "--time-errors",
        action="store_true",
        help="show the time errors of a grandmaster's channels instead of its samples",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def run(args: Namespace) -> int:
    """0; 2 for a source that the store does not know. Raises ConfigError, StoreError."""
    from timesyncd.store.history import damaged_rows, sources

    place = store_place(args, "so there is no history")
    known = sources(place)
    if not knows_source(place, known, args.source):
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
    report_damaged(damaged_rows(place, args.source, *span))
    return 0


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


Record = dict[str, Any]
Heading = tuple[str, Literal["left", "right"]]

_TIMES: list[Heading] = [("UTC", "left"), ("local", "left")]
_CLOCK: list[Heading] = [
    ("offset", "right"), ("path delay", "right"), ("bound", "right"), ("at 99.7%", "right"), ("status", "left"), ("port", "left"),
]  # fmt: skip
_PHC: list[Heading] = [
    ("clock", "left"), ("system - clock", "right"), ("within", "right"), ("method", "left"), ("phc2sys", "left"),
]  # fmt: skip
_UTC: list[Heading] = [
    ("offset", "right"), ("within", "right"), ("UTC bound", "right"), ("status", "left"), ("follows", "left"), ("stratum", "right"),
]  # fmt: skip
_KERNEL: list[Heading] = [
    ("frequency", "right"), ("max error", "right"), ("synchronized", "left"), ("leap", "left"), ("TAI - UTC", "right"),
    ("disciplines", "left"),
]  # fmt: skip
_GRANDMASTER: list[Heading] = [
    ("state", "left"), ("class", "right"), ("accuracy", "right"), ("phase", "right"), ("GNSS", "left"),
    ("satellites", "right"), ("reference", "left"), ("alarms", "right"),
]  # fmt: skip
_TIME_ERROR: list[Heading] = [("channel", "left"), ("metric", "left"), ("time error", "right")]
_NOTE: list[Heading] = [("note", "left")]
_OWN = {
    "phc": _PHC,
    "utc": _UTC,
    "kernel": _KERNEL,
    "event": [],
    "grandmaster": _GRANDMASTER,
    "time_error": _TIME_ERROR,
}


def table_of(kind: str, records: list[Record], zone: tzinfo | None = None) -> tuple[list[Heading], list[list[str]]]:
    """
    Headings and rows. `kind` is that of the source; a record that is not a sample has only times and a note.

    The event that samples resume is omitted, because the samples show it.
    """
    own = _OWN.get(kind, _CLOCK)
    shown = [record for record in records if record["kind"] != "event" or record["reason_code"] is not None]
    return _TIMES + own + _NOTE, [_times(record, zone) + _cells(record, len(own)) for record in shown]


def _times(record: Record, zone: tzinfo | None) -> list[str]:
    """The time in UTC, and the local time of day."""
    milliseconds = int(record["realtime_ns"]) // 1_000_000
    utc = datetime.fromtimestamp(milliseconds // 1_000, UTC).replace(microsecond=milliseconds % 1_000 * 1_000)
    return [f"{utc:%Y-%m-%d %H:%M:%S.%f}"[:-3], f"{utc.astimezone(zone):%H:%M:%S %Z}"]


def _cells(record: Record, width: int) -> list[str]:
    try:
        return _cells_of(record, width)
    except (AttributeError, KeyError, TypeError, ValueError):
        return [""] * width + ["this row is damaged: a value of it is none that the daemon stores"]


def _cells_of(record: Record, width: int) -> list[str]:
    match record["kind"]:
        case "clock":
            return _clock(record)
        case "phc":
            return _phc(record)
        case "utc":
            return _utc(record)
        case "kernel":
            return _kernel(record)
        case "grandmaster":
            return _grandmaster(record)
        case "time_error":
            return [record["channel"], record["metric"], duration_text(record["value_ns"]), ""]
        case "gap":
            return [""] * width + [f"{record['rows_lost']} rows lost: {record['reason']}"]
        case "alarm":
            return [""] * width + [_alarm_note(record)]
        case _:
            return [""] * width + [_event_note(record)]


def _clock(record: Record) -> list[str]:
    """The bound against the grandmaster; the note is the reason of an unknown one."""
    reason = record["gm_reason_code"]
    return [
        duration_text(record["offset_ns"]),
        duration_text(record["path_delay_ns"]),
        duration_text(record["gm_bound_ns"]),
        duration_text(record["gm_stat_bound_ns"]),
        _text(record["gm_status"]),
        record["port_state"],
        _reason(reason),
    ]


def _phc(record: Record) -> list[str]:
    """Whole seconds and nanoseconds are separate: a hardware clock on TAI differs by 37 s from the system clock."""
    steered = {None: "unknown", True: "runs", False: "none"}[record["steered"]]
    width_ns = -(-record["width_ns"] // 2)
    whole_s, rest_ns = whole_seconds(record["offset_ns"])
    offset = f"{whole_s:+} s {rest_ns:+} ns" if whole_s else f"{rest_ns} ns"
    return [record["clock"], offset, duration_text(width_ns), record["method"], steered, ""]


def _utc(record: Record) -> list[str]:
    """`UTC bound` is the node's bound, which other sources may have narrowed."""
    return [
        duration_text(record["offset_ns"]),
        duration_text(record["error_ns"]),
        duration_text(record["utc_bound_ns"]),
        _text(record["utc_status"]),
        record["reference"],
        str(record["stratum"] or ""),
        _reason(record["utc_reason_code"]),
    ]


def _maxerror_bound_ns(record: Record) -> int | None:
    """maxerror where it was a bound, by what was known of the programs then."""
    movement = record.get("unexplained_movement")
    return KernelSample(
        source="",
        boottime_ns=0,
        frequency_ppb=record["frequency_ppb"],
        maxerror_ns=record["maxerror_ns"],
        esterror_ns=0,
        synchronized=record["synchronized"],
        leap=record["leap"],
        tai_offset_s=record["tai_offset_s"],
        disciplines=tuple(record["disciplines"] or ()),
        undecided_disciplines=tuple(record["undecided_disciplines"] or ()),
        programs_visible=record.get("programs_visible") is not False,
        unexplained_movement=None if movement is None else Movement(movement),
    ).maxerror_bound_ns


def _kernel(record: Record) -> list[str]:
    undecided = record["undecided_disciplines"] or []
    return [
        f"{record['frequency_ppb']} ppb",
        duration_text(_maxerror_bound_ns(record)),
        "yes" if record["synchronized"] else "no",
        record["leap"],
        f"{record['tai_offset_s']} s" if record["tai_offset_s"] else "not set",
        ", ".join(record["disciplines"] or []) or "none found",
        f"possibly {', '.join(undecided)}" if undecided else "",
    ]


def _reason(code: str | None) -> str:
    return Reason[code.upper()].text if code is not None and code.upper() in Reason.__members__ else _text(code, "")


def _grandmaster(record: Record) -> list[str]:
    accuracy = record["clock_accuracy"]
    return [
        _text(record["clock_state"]),
        _text(record["clock_class"]),
        "unknown" if accuracy is None else f"0x{accuracy:02x}",
        duration_text(record["phase_offset_ns"]),
        _text(record["gnss_state"]),
        _satellites(record["satellites"]),
        _text(record["selected_reference"]),
        "unknown" if record["alarms"] is None else str(len(record["alarms"])),
        "; ".join([alarm["text"] for alarm in record["alarms"] or []] + list(record["unknown"] or [])),
    ]


def _satellites(satellites: list[Record] | None) -> str:
    if satellites is None:
        return "unknown"
    return f"{sum(s['healthy'] is True for s in satellites)} of {len(satellites)}"


def _alarm_note(record: Record) -> str:
    lost = f" ({record['lost']} before it were lost)" if record["lost"] else ""
    return f"{record['action']}, {record['severity']}: {record['text']}{lost}"


def _event_note(record: Record) -> str:
    where = f" (port {record['port_state']})" if record["port_state"] else ""
    return f"no samples: {record['reason']}{where}"


def _text(value: object, absent: str = "unknown") -> str:
    return absent if value is None else str(value)
