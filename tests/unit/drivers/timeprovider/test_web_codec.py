"""Answers of a grandmaster's web interface, as octets."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.drivers.timeprovider._web_codec import (
    ChannelState,
    Chart,
    ChartPoint,
    NotData,
    login_token,
    parse_channels,
    parse_chart,
    parse_history,
)
from timesyncd.errors import Malformed

pytestmark = pytest.mark.disable_socket

#: 2026-08-01 00:00:00 UTC, and the same moment on the TAI scale.
UNIX_S = 1_785_542_400
TAI_S = UNIX_S + 37


def chart_of(*points: dict[str, object], **more: object) -> bytes:
    return json.dumps({"chartData": list(points), **more}).encode()


def point(**changed: object) -> dict[str, object]:
    return {"X": TAI_S, "Y": -12, "OFFSET": 37} | changed


def test_channels() -> None:
    """A channel is measured when its state is monitoring or ok, in any case of letters; other keys do not matter."""
    body = json.dumps(
        [
            {"monitorChannelString": "GNSS-1", "monitorChStatusString": "Monitoring", "threshold": 100},
            {"monitorChannelString": "PTP-1 (eth3)", "monitorChStatusString": "OK"},
            {"monitorChannelString": "PPS-1", "monitorChStatusString": "Disabled"},
            {"other": 1},
        ]
    ).encode()

    assert parse_channels(body) == (
        ChannelState("GNSS-1", True, "Monitoring"),
        ChannelState("PTP-1 (eth3)", True, "OK"),
        ChannelState("PPS-1", False, "Disabled"),
        ChannelState("", False),
    )


@pytest.mark.parametrize(
    ("name", "channel", "expected"),
    [
        ("GNSS-1", "GNSS-1", True),
        ("gnss-1: antenna", "GNSS-1", True),
        ("PTP-1", "PTP-2", False),
        ("PTP-12", "PTP-1", False),
        ("", "GNSS-1", False),
    ],
)
def test_a_channel_by_its_name(name: str, channel: str, expected: bool) -> None:
    """The grandmaster's name begins with the channel's, and no longer number is meant."""
    assert ChannelState(name, True).is_of(channel) is expected


def test_chart() -> None:
    """The newest point counts, at any position; its Unix time is its TAI minus its own offset."""
    body = chart_of(point(X=TAI_S + 1, Y=7), point(), reference="GNSS", channelStatus="Monitoring", alarm_thresh=100)

    assert parse_chart(body) == Chart(ChartPoint((UNIX_S + 1) * 10**9, 7, 37), "GNSS", "Monitoring", 100)


def test_each_point_has_its_own_offset() -> None:
    """Around a leap second the newest point's own offset counts."""
    body = chart_of(point(X=TAI_S), point(X=TAI_S + 2, OFFSET=38))

    assert parse_chart(body).newest == ChartPoint((UNIX_S + 1) * 10**9, -12, 38)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (point(X=str(TAI_S), Y="-12", OFFSET="37"), ChartPoint(UNIX_S * 10**9, -12, 37)),
        (point(Y=12.6), ChartPoint(UNIX_S * 10**9, 13, 37)),
        (point(Y=0), ChartPoint(UNIX_S * 10**9, 0, 37)),
        (point(X=TAI_S + 0.5), ChartPoint(UNIX_S * 10**9 + 500_000_000, -12, 37)),
        (point(OFFSET=0), ChartPoint(TAI_S * 10**9, -12, 0)),
    ],
    ids=["as text", "a fraction of a ns", "no error is 0", "half a second", "an offset of 0"],
)
def test_numbers(written: dict[str, object], expected: ChartPoint) -> None:
    """Numbers come as numbers or as text, and are exact."""
    assert parse_chart(chart_of(written)).newest == expected


def test_an_empty_chart() -> None:
    """No point is no value, and what is not reported is None."""
    assert parse_chart(b'{"chartData": []}') == Chart(None, None, None, None)


@pytest.mark.parametrize(
    ("threshold", "expected"), [(None, None), ("", None), ("N/A", None), ("100", 100), (0, 0), (99.5, 100)]
)
def test_threshold(threshold: object, expected: int | None) -> None:
    """A threshold that is no number is not reported."""
    assert parse_chart(chart_of(alarm_thresh=threshold)).alarm_threshold_ns == expected


@pytest.mark.parametrize("charset", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1"])
def test_every_charset_of_a_response(charset: str) -> None:
    """JSON may be UTF-8, 16 or 32, and firmware may write a name in Latin-1: none of them is a session that has ended."""
    body = json.dumps([{"monitorChannelString": "GNSS-1 Zürich", "monitorChStatusString": "OK"}], ensure_ascii=False)

    assert parse_channels(body.encode(charset)) == (ChannelState("GNSS-1 Zürich", True, "OK"),)


@pytest.mark.parametrize(
    ("status", "monitored"),
    [
        ("Monitoring (alarm)", True),
        ("OK.", True),
        ("Not monitoring", False),
        ("Okay", False),
        ("Monitor", False),
        (None, False),
    ],
)
def test_the_status_of_a_channel(status: str | None, monitored: bool) -> None:
    """The word may be followed by more."""
    body = json.dumps([{"monitorChannelString": "GNSS-1", "monitorChStatusString": status}])

    assert parse_channels(body.encode()) == (ChannelState("GNSS-1", monitored, status),)


def test_a_point_without_a_value_is_a_gap() -> None:
    """It is no measurement, and the newest one before it counts."""
    assert parse_chart(chart_of(point(), point(X=TAI_S + 9, Y=None))).newest == ChartPoint(UNIX_S * 10**9, -12, 37)


NOT_DATA = {
    "HTML": (b"<html><form action='/login'>", r"HTML \(28 octets\) instead of JSON"),
    "nothing": (b"", "the response is empty instead of JSON"),
    "cut off": (b'{"chartData": [{"X": 1', "broken JSON"),
    "octets": (b"\xff\xfe\x00", "something else"),
    "nested without end": (b"[" * 100_000, "broken JSON"),
    "a number of 5000 digits": (b"[" + b"9" * 5000 + b"]", "broken JSON"),
    "an exponent without end": (b"[1e99999999999999999999]", "broken JSON"),
    "an error in JSON": (b'{"error": "please log in"}', "an object"),
    "a bare word": (b"true", "is a truth value instead of an object"),
}


@pytest.mark.parametrize(("body", "message"), NOT_DATA.values(), ids=NOT_DATA.keys())
def test_not_data(body: bytes, message: str) -> None:
    """What is not even the right kind of JSON may mean that the session ended."""
    with pytest.raises(NotData, match=message):
        parse_chart(body)


MALFORMED = {
    "no list": ({"chartData": {"X": 1}}, "chartData is an object instead of a list"),
    "a number as point": ({"chartData": [1]}, "chartData contains a number"),
    "no X": ({"chartData": [{"Y": 1, "OFFSET": 37}]}, "X is null instead of a number"),
    "no OFFSET": ({"chartData": [{"X": TAI_S, "Y": 1}]}, "OFFSET is null"),
    "a truth value": ({"chartData": [point(Y=True)]}, "Y is a truth value"),
    "a word": ({"chartData": [point(Y="secret words")]}, "Y is a text instead of a number$"),
    "not a number as text": ({"chartData": [point(Y="NaN")]}, "Y is a text"),
    "a huge error": ({"chartData": [point(Y=10**40)]}, "Y is out of range"),
    "a huge exponent": ({"chartData": [point(Y=1e300)]}, "Y is out of range"),
    "a year far away": ({"chartData": [point(X=10**12)]}, "X is out of range"),
    "a negative time": ({"chartData": [point(X=-5)]}, "seconds of TAI"),
    "half an offset": ({"chartData": [point(OFFSET=36.5)]}, "instead of seconds of TAI and whole seconds"),
    "one bad point among good": ({"chartData": [point(), point(Y=[])]}, "Y is a list"),
    "a list as reference": ({"chartData": [], "reference": ["GNSS"]}, "reference is a list instead of text"),
    "a list as threshold": ({"chartData": [], "alarm_thresh": [1]}, "alarm_thresh is a list"),
}


@pytest.mark.parametrize(("data", "message"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed(data: object, message: str) -> None:
    """A chart with one wrong value is none, and the error names what was wrong without echoing text."""
    with pytest.raises(Malformed, match=message) as raised:
        parse_chart(json.dumps(data).encode())

    assert type(raised.value) is Malformed


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_no_number_is_a_word(word: str) -> None:
    """The words that JSON does not have are refused by name."""
    with pytest.raises(Malformed, match=f"a number is {word}"):
        parse_chart(b'{"chartData": [{"X": 1, "OFFSET": 37, "Y": %s}]}' % word.encode())


def test_malformed_channels() -> None:
    """A list of something else is not one of channels."""
    with pytest.raises(Malformed, match="the list of channels contains a number"):
        parse_channels(b"[1, 2]")
    with pytest.raises(Malformed, match="monitorChannelString is a list"):
        parse_channels(b'[{"monitorChannelString": []}]')


FILE = b"""# Title: TimeProvider(time-error (ns)):Channel = GNSS-1, Reference = GNSS
# Start: somewhen
2026-08-01,00:00:00, 12
2026-08-01,00:00:01, -3.5
"""


def test_history() -> None:
    """Rows are times of UTC with nanoseconds; header lines are skipped."""
    assert parse_history(FILE) == ((UNIX_S * 10**9, 12), ((UNIX_S + 1) * 10**9, -4))


def test_history_with_column_names() -> None:
    """One line of column names may precede the rows."""
    assert parse_history(b"# x: y\r\nDate,Time, Value (ns)\r\n2026-08-01,00:00:00, 12\r\n") == ((UNIX_S * 10**9, 12),)


def test_history_across_a_leap_second() -> None:
    """A leap second has the Unix time of the second after it."""
    rows = b"2016-12-31,23:59:59, 1\n2016-12-31,23:59:60, 2\n2017-01-01,00:00:00, 3\n"

    seconds = [at_ns // 10**9 for at_ns, _ in parse_history(rows)]

    assert seconds == [1_483_228_799, 1_483_228_800, 1_483_228_800]


def test_history_without_rows() -> None:
    """A file of header lines alone holds no point."""
    assert parse_history(b"# Title: x\n") == ()


BAD_FILES = {
    "HTML": (b"<html>", r"HTML \(6 octets\) instead of a file"),
    "octets": (b"\xff", "not text"),
    "cut off in a row": (FILE + b"2026-08-01,00:0", "row 3 of the file is not"),
    "no number": (FILE + b"2026-08-01,00:00:02, nan\n", "row 3"),
    "a huge number": (FILE + b"2026-08-01,00:00:02, 99999999999999999999\n", "row 3 of the file is out of range"),
    "no such day": (FILE + b"2026-02-30,00:00:02, 1\n", "row 3 of the file has an invalid date"),
    "a time beyond 64 bits": (FILE + b"9999-12-31,00:00:02, 1\n", "row 3 of the file has the year 9999"),
    "a time before Unix": (FILE + b"0001-01-01,00:00:02, 1\n", "row 3 of the file has the year 1;"),
    "no such hour": (FILE + b"2026-08-01,24:00:02, 1\n", "row 3 of the file has an invalid time"),
    "a leap second at noon": (FILE + b"2026-08-01,12:00:60, 1\n", "row 3 of the file has an invalid time"),
    "words below the rows": (FILE + b"Date,Time\n", "row 3"),
}


@pytest.mark.parametrize(("body", "message"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_bad_history(body: bytes, message: str) -> None:
    """One wrong row makes the whole file none."""
    with pytest.raises(Malformed, match=message):
        parse_history(body)


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (b'<form><input type="hidden" name="csrf_token" value="aB+/=9"></form>', ("csrf_token", "aB+/=9")),
        (b"<INPUT value='x-1' name=token type=HIDDEN>", ("token", "x-1")),
        (b'<input type="hidden" name="next" value="/admin"><input type="hidden" name="csrf" value="k">', ("csrf", "k")),
        (b'<input type="hidden" name="action" value="factoryreset">', None),
        (b'<input type="text" name="token" value="x">', None),
        (b'<input type="hidden" name="token" value="a&amp;b">', None),
        (b'<input type="hidden" name="token" value="">', None),
        (b'{"no": "page"}', None),
    ],
)
def test_login_token(page: bytes, expected: tuple[str, str] | None) -> None:
    """Only a hidden field known as a token is taken from a log-in page."""
    assert login_token(page) == expected


@pytest.mark.parametrize("parse", [parse_channels, parse_chart, parse_history], ids=lambda parse: str(parse.__name__))
@given(
    body=st.binary()
    | st.text().map(str.encode)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["chartData", "X", "Y", "OFFSET", "z"]), inner),
    ).map(lambda data: json.dumps(data).encode())
)
def test_any_octets(parse: Callable[[bytes], object], body: bytes) -> None:
    """Whatever comes, it is read or it is Malformed."""
    try:
        parse(body)
    except Malformed as error:
        assert "\n" not in str(error)


@given(body=st.binary())
def test_any_page(body: bytes) -> None:
    """Whatever page comes, it has a token or none."""
    assert login_token(body) is None
