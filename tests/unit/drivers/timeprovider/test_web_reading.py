"""What one poll of a grandmaster's web interface comes to."""

from __future__ import annotations

import pytest

from timesyncd.drivers.timeprovider._web import HOLE_NS, WebReading, is_hole, missing, monitored, reading
from timesyncd.drivers.timeprovider._web_codec import ChannelState, Chart, ChartPoint
from timesyncd.drivers.timeprovider._web_requests import Channel
from timesyncd.sample import TimeError

pytestmark = pytest.mark.disable_socket

STATES = (ChannelState("PTP-1 (eth3)", True), ChannelState("GNSS-1", True), ChannelState("PPS-1", False))
AT_NS = 1_785_542_400_000_000_000


def chart(value_ns: int, utc_offset_s: int = 37) -> Chart:
    return Chart(ChartPoint(AT_NS, value_ns, utc_offset_s), "GNSS", "Monitoring", 100)


def test_reading() -> None:
    """Each chart with a point is a time error; an empty one is none."""
    charts = {("GNSS-1", "te"): chart(-12), ("GNSS-1", "cte"): Chart(None, "GNSS", "Monitoring", 100)}

    actual = reading(charts, (), ())  # type: ignore[arg-type]

    assert actual == WebReading((TimeError("GNSS-1", "te", -12, AT_NS, "GNSS", "Monitoring", 100),), 37, (), ())


def test_offsets_that_disagree() -> None:
    """Two offsets at one grandmaster are none, and that is reported."""
    actual = reading({("GNSS-1", "te"): chart(1, 37), ("PTP-1", "te"): chart(1, 36)}, (), ())

    assert actual.utc_offset_s is None
    assert actual.notes == ("the grandmaster's channels disagree on TAI - UTC: 36, 37 s",)


def test_no_point_no_offset() -> None:
    """Without a measurement the offset is unknown, not 0."""
    assert reading({}, (), ()).utc_offset_s is None


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (None, ["GNSS-1", "PTP-1"]),
        (("PTP-1",), ["PTP-1"]),
        (("PPS-1", "PTP-2"), []),
    ],
)
def test_monitored(wanted: tuple[Channel, ...] | None, expected: list[Channel]) -> None:
    """What is wanted and measured is read."""
    assert monitored(STATES, wanted) == expected


def test_missing() -> None:
    """A wanted channel that is not measured gives a note, and so does a grandmaster that measures nothing."""
    assert missing(["GNSS-1"], None) == ()
    assert missing(["GNSS-1"], ("GNSS-1",)) == ()
    assert missing([], None) == ("the grandmaster monitors no channel that has a time error",)
    assert missing(["GNSS-1"], ("GNSS-1", "PTP-2")) == (
        "the grandmaster does not monitor PTP-2; enable it there or remove it from `channels`",
    )


@pytest.mark.parametrize(
    ("last_ns", "expected"), [(None, True), (0, False), (-HOLE_NS + 5, False), (4 - HOLE_NS, True)]
)
def test_hole(last_ns: int | None, expected: bool) -> None:
    """After a start, or ten minutes without a reading, the history has a hole."""
    assert is_hole(last_ns, 5) is expected
