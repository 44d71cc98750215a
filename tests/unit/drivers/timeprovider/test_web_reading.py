"""What one poll of a grandmaster's web interface comes to."""

from __future__ import annotations

import pytest

from timesyncd.config import SecretSettings
from timesyncd.drivers.timeprovider._web import HOLE_NS, WebReader, WebReading, is_hole, missing, monitored, reading
from timesyncd.drivers.timeprovider._web_codec import ChannelState, Chart, ChartPoint, NotData
from timesyncd.drivers.timeprovider._web_requests import AllowedRequest, Channel, WebOptions, channel_states
from timesyncd.errors import Malformed
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


def test_missing_in_the_words_of_other_firmware() -> None:
    """The grandmaster's own word is shown, so that a word that is not known yet can be recognized."""
    states = (
        ChannelState("GNSS-1", False, "Aktiv"),
        ChannelState("PTP-2", False, "disabled"),
        ChannelState("E1-1", False, "x"),
    )

    assert missing([], None, states) == (
        "the grandmaster monitors no channel that has a time error (it reports: GNSS-1 is 'Aktiv', PTP-2 is 'disabled')",
    )
    assert missing([], ("PTP-2",), states) == (
        "the grandmaster does not monitor PTP-2 (it reports: PTP-2 is 'disabled'); enable it there or remove it from `channels`",
    )


class BrokenChart:
    """A session with a grandmaster whose chart of one metric is broken, or is no chart any more."""

    def __init__(self, error: type[Malformed], metric: str = "cte)") -> None:
        self._error, self._metric = error, metric

    def begin(self, boottime_ns: int) -> None:
        return None

    async def fetch(self, request: AllowedRequest, parse: object) -> object:
        if request == channel_states():
            return (ChannelState("GNSS-1", True),)
        if request.label.endswith(self._metric):
            raise self._error("gm: GNSS-1 cte: Y is a list instead of a number")
        return chart(-12)


def reader_of(session: BrokenChart) -> WebReader:
    options = WebOptions(username="me", password=SecretSettings(env="GM_PASSWORD"), insecure=True, fill_history=False)
    reader = WebReader("gm-a", "gm", options)
    reader._session = session  # type: ignore[assignment]
    return reader


async def test_a_broken_chart_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """It becomes a note; the other metrics are read."""
    monkeypatch.setenv("GM_PASSWORD", "a word")
    found = await reader_of(BrokenChart(Malformed)).poll(5)

    assert [error.metric for error in found.time_errors] == ["te", "max_te"]
    assert found.notes == ("gm: GNSS-1 cte: Y is a list instead of a number",)


async def test_charts_that_are_all_broken_fail_the_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the error of the first one."""
    monkeypatch.setenv("GM_PASSWORD", "a word")
    with pytest.raises(Malformed, match="Y is a list instead of a number"):
        await reader_of(BrokenChart(Malformed, ")")).poll(5)


async def test_a_session_that_ended_fails_the_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log-in page in place of a chart is no broken chart."""
    monkeypatch.setenv("GM_PASSWORD", "a word")
    with pytest.raises(NotData):
        await reader_of(BrokenChart(NotData)).poll(5)


@pytest.mark.parametrize(
    ("last_ns", "expected"), [(None, True), (0, False), (-HOLE_NS + 5, False), (4 - HOLE_NS, True)]
)
def test_hole(last_ns: int | None, expected: bool) -> None:
    """After a start, or ten minutes without a reading, the history has a hole."""
    assert is_hole(last_ns, 5) is expected
