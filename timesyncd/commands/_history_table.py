"""A source's stored records as lines for people. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import Any, Literal

from timesyncd.bound import Reason
from timesyncd.units import duration_text

Record = dict[str, Any]
Heading = tuple[str, Literal["left", "right"]]

_TIMES: list[Heading] = [("UTC", "left"), ("local", "left")]
_CLOCK: list[Heading] = [
    ("offset", "right"), ("path delay", "right"), ("bound", "right"), ("status", "left"), ("port", "left"),
]  # fmt: skip
_GRANDMASTER: list[Heading] = [
    ("state", "left"), ("class", "right"), ("accuracy", "right"), ("phase", "right"), ("GNSS", "left"),
    ("satellites", "right"), ("reference", "left"), ("alarms", "right"),
]  # fmt: skip
_TIME_ERROR: list[Heading] = [("channel", "left"), ("metric", "left"), ("time error", "right")]
_NOTE: list[Heading] = [("note", "left")]


def table_of(kind: str, records: list[Record], zone: tzinfo | None = None) -> tuple[list[Heading], list[list[str]]]:
    """
    Headings and rows; `kind` is the source's, a record that is no sample has a note alone.

    That samples begin again is left out: the samples show it.
    """
    own = {"grandmaster": _GRANDMASTER, "time_error": _TIME_ERROR}.get(kind, _CLOCK)
    shown = [record for record in records if record["kind"] != "event" or record["reason"] is not None]
    return _TIMES + own + _NOTE, [_times(record, zone) + _cells(record, len(own)) for record in shown]


def _times(record: Record, zone: tzinfo | None) -> list[str]:
    """UTC in full, and the time of day here."""
    milliseconds = int(record["realtime_ns"]) // 1_000_000
    utc = datetime.fromtimestamp(milliseconds // 1_000, UTC).replace(microsecond=milliseconds % 1_000 * 1_000)
    return [f"{utc:%Y-%m-%d %H:%M:%S.%f}"[:-3], f"{utc.astimezone(zone):%H:%M:%S %Z}"]


def _cells(record: Record, width: int) -> list[str]:
    match record["kind"]:
        case "clock":
            return _clock(record)
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
    """The bound against the grandmaster; where there is none, the note says why."""
    reason = record["gm_reason"]
    return [
        duration_text(record["offset_ns"]),
        duration_text(record["path_delay_ns"]),
        duration_text(record["gm_bound_ns"]),
        _text(record["gm_status"]),
        record["port_state"],
        Reason[reason].text if reason in Reason.__members__ else _text(reason, ""),
    ]


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
