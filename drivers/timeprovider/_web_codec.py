"""Decodes the responses of a TimeProvider's web interface. No text of a response gets into an error."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, TypeVar

from timesyncd.drivers.timeprovider._web_requests import is_token
from timesyncd.errors import Malformed

T = TypeVar("T")

_MONITORED = re.compile(r"(monitoring|ok)\b", re.IGNORECASE)

#: Wide enough for any clock, narrow enough for 64 bits: half a century of error, the year 2242, an Integer16.
_LARGEST_ERROR_NS = 2**60
_LARGEST_TAI_S = 2**33
_LARGEST_OFFSET_S = 2**15 - 1

_NUMBER = re.compile(r"[+-]?\d{1,20}(\.\d{1,20})?", re.ASCII)
_ROW = re.compile(r"(\d{4})-(\d\d)-(\d\d),(\d\d):(\d\d):(\d\d),\s*([+-]?\d{1,20}(?:\.\d{1,20})?)\s*", re.ASCII)
_INPUT = re.compile(r"<input\b([^<>]{1,2000})>", re.IGNORECASE)
_ATTRIBUTE = re.compile(
    r"""(?<![\w-])(type|name|value)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE | re.ASCII
)
_COLUMN_NAMES = re.compile(r"[A-Za-z][A-Za-z ,()_/-]{0,200}", re.ASCII)


class NotData(Malformed):
    """The response is of another kind than this request's: a grandmaster whose session has ended responds so."""


@dataclass(frozen=True, slots=True)
class ChannelState:
    """A channel by the grandmaster's name, whether it measures it now, and its own word for that."""

    name: str
    monitored: bool
    status: str | None = None

    def is_of(self, channel: str) -> bool:
        """Whether this is `channel`: the grandmaster's name begins with it, and may continue, but not with a digit."""
        return re.match(rf"{re.escape(channel)}(?!\d)", self.name, re.IGNORECASE) is not None


@dataclass(frozen=True, slots=True)
class ChartPoint:
    """One measured time error. `at_realtime_ns` is Unix time, computed from the grandmaster's TAI and `utc_offset_s` (TAI - UTC)."""

    at_realtime_ns: int
    value_ns: int
    utc_offset_s: int


@dataclass(frozen=True, slots=True)
class Chart:
    """The newest point of one channel's metric (None: no point in the last ten minutes), and the chart's other fields."""

    newest: ChartPoint | None
    reference: str | None
    status: str | None
    alarm_threshold_ns: int | None


def parse_channels(body: bytes) -> tuple[ChannelState, ...]:
    """Raises NotData, or Malformed for a list that is not one of channels."""
    return tuple(_channel(item) for item in _parse_json(body, list))


def parse_chart(body: bytes) -> Chart:
    """Raises NotData, or Malformed for a chart with invalid points."""
    data = _parse_json(body, dict)
    if "chartData" not in data:
        raise NotData("the response is an object without chartData")
    points = data["chartData"]
    if not isinstance(points, list):
        raise Malformed(f"chartData is {_kind(points)} instead of a list")
    return Chart(
        max(
            (_point(point) for point in points if not _is_gap(point)),
            key=lambda point: point.at_realtime_ns,
            default=None,
        ),
        _text(data.get("reference"), "reference"),
        _text(data.get("channelStatus"), "channelStatus"),
        _threshold_ns(data.get("alarm_thresh")),
    )


def parse_history(body: bytes) -> tuple[tuple[int, int], ...]:
    """
    The rows of a file whose times are UTC, as (Unix time in ns, error in ns). Its header lines begin with #; one line of column
    names may follow. Raises Malformed for the whole file if one row is invalid.
    """
    if body.lstrip()[:1] == b"<":
        raise NotData(f"the response is {_description(body)} instead of a file")
    try:
        lines = [line for line in body.decode().splitlines() if line.strip() and not line.startswith("#")]
    except UnicodeDecodeError as error:
        raise Malformed("the file is not text") from error
    rows = lines[1:] if lines and _COLUMN_NAMES.fullmatch(lines[0].strip()) else lines
    days: dict[tuple[str, ...], int] = {}
    return tuple(_history_row(row, number, days) for number, row in enumerate(rows, 1))


def login_token(page: bytes) -> tuple[str, str] | None:
    """The name and value of the log-in page's hidden token field; None if it has none."""
    for attributes in _INPUT.findall(page.decode(errors="replace")):
        given = {
            name.lower(): double or single or bare for name, double, single, bare in _ATTRIBUTE.findall(attributes)
        }
        token = given.get("name", ""), given.get("value", "")
        if given.get("type", "").lower() == "hidden" and is_token(*token):
            return token
    return None


def _parse_json(body: bytes, wanted: type[T]) -> T:
    try:
        data = json.loads(_decoded(body), parse_float=Decimal, parse_constant=_no_constant)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise NotData(f"the response is {_description(body)} instead of JSON") from error
    if not isinstance(data, wanted):
        raise NotData(f"the response is {_kind(data)} instead of {_KINDS[wanted]}")
    return data


def _decoded(body: bytes) -> str:
    """The text of a response in UTF-8, 16 or 32 (RFC 8259 section 8.1), or else in Latin-1, in which firmware writes names."""
    encoding = json.detect_encoding(body)
    try:
        return body.decode(encoding)
    except UnicodeDecodeError:
        return body.decode("latin-1")


def _no_constant(word: str) -> None:
    raise Malformed(f"a number is {word}")


def _description(body: bytes) -> str:
    start = body.lstrip()[:1]
    kind = "HTML" if start == b"<" else "broken JSON" if start in (b"{", b"[") else "something else"
    return f"{kind} ({len(body)} octets)" if body else "empty"


_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "a truth value",
    int: "a number",
    Decimal: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}


def _kind(value: object) -> str:
    return _KINDS[type(value)]


def _channel(item: object) -> ChannelState:
    if not isinstance(item, dict):
        raise Malformed(f"the list of channels contains {_kind(item)} instead of an object")
    name = _text(item.get("monitorChannelString"), "monitorChannelString")
    status = _text(item.get("monitorChStatusString"), "monitorChStatusString")
    return ChannelState(name or "", _MONITORED.match(status or "") is not None, status)


def _is_gap(item: object) -> bool:
    """A moment at which nothing was measured."""
    return isinstance(item, dict) and "Y" in item and item["Y"] is None


def _point(item: object) -> ChartPoint:
    if not isinstance(item, dict):
        raise Malformed(f"chartData contains {_kind(item)} instead of an object")
    tai_s = _number(item.get("X"), "X", _LARGEST_TAI_S)
    offset = _number(item.get("OFFSET"), "OFFSET", _LARGEST_OFFSET_S)
    if tai_s < 0 or offset != int(offset):
        raise Malformed(f"X = {tai_s:.3f} with OFFSET = {offset:.3f} instead of seconds of TAI and whole seconds")
    value_ns = _number(item.get("Y"), "Y", _LARGEST_ERROR_NS)
    return ChartPoint(int((tai_s - offset) * 1_000_000_000), round(value_ns), int(offset))


def _number(value: Any, name: str, largest: int) -> Decimal:
    """A JSON number, or one as text: grandmasters send both."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = Decimal(value.strip())
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        raise Malformed(f"{name} is {_kind(value)} instead of a number")
    if not -largest <= value <= largest:
        raise Malformed(f"{name} is out of range; allowed: up to {largest}")
    return Decimal(value)


def _threshold_ns(value: Any) -> int | None:
    """None without a threshold, which a grandmaster may report as text."""
    if value is None or (isinstance(value, str) and not _NUMBER.fullmatch(value.strip())):
        return None
    return round(_number(value, "alarm_thresh", _LARGEST_ERROR_NS))


def _text(value: object, name: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise Malformed(f"{name} is {_kind(value)} instead of text")
    return "".join(sign for sign in str(value).strip()[:64] if sign.isprintable()) or None


def _history_row(row: str, number: int, days: dict[tuple[str, ...], int]) -> tuple[int, int]:
    """`days` caches Unix days by date. A leap second (23:59:60) becomes the next day's first second, as in Unix time."""
    found = _ROW.fullmatch(row)
    if found is None:
        raise Malformed(f"row {number} of the file is not a date, a time and a value")
    written = found.group(1, 2, 3)
    hour, minute, second = (int(part) for part in found.group(4, 5, 6))
    if hour > 23 or minute > 59 or second > (60 if (hour, minute) == (23, 59) else 59):
        raise Malformed(f"row {number} of the file has an invalid time of day")
    if written not in days:
        days[written] = _unix_day(written, number)
    at_s = days[written] * 86_400 + hour * 3600 + minute * 60 + second
    return at_s * 1_000_000_000, round(_number(found[7], f"row {number} of the file", _LARGEST_ERROR_NS))


def _unix_day(written: tuple[str, ...], number: int) -> int:
    year, month, day = (int(part) for part in written)
    try:
        unix_day = date(year, month, day).toordinal() - date(1970, 1, 1).toordinal()
    except ValueError as error:
        raise Malformed(f"row {number} of the file has an invalid date") from error
    if not 0 <= unix_day * 86_400 < _LARGEST_TAI_S:
        raise Malformed(f"row {number} of the file has the year {year}; allowed: 1970 to 2242")
    return unix_day
