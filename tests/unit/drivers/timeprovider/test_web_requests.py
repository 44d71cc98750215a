"""What may be sent to a grandmaster's web interface is a closed list."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from timesyncd.drivers.timeprovider._web_requests import (
    CHANNELS,
    METRICS,
    READS,
    AllowedRequest,
    channel_states,
    chart,
    history,
    login,
)

pytestmark = pytest.mark.disable_socket

FORBIDDEN = {
    "another path": ("/reboot", ()),
    "another verb of a known path": ("/channels_thresholdValue", (("tgrp", "-1"), ("action", "apply"))),
    "no fields": ("/channels_thresholdValue", ()),
    "another value": ("/channels_thresholdValue", (("tgrp", "1"),)),
    "a channel id that is no number": (
        "/get_chart_data",
        (("metric", "te"), ("xRange", "600"), ("tStart", "-1"), ("channelName", "gnss"), ("channelId", "1 or 1=1")),
    ),
    "a path with a query": ("/channels_thresholdValue?save=1", (("tgrp", "-1"),)),
    "fields of one path on another": ("/get_chart_data", (("tgrp", "-1"),)),
    "fields in another order": (
        "/get_chart_data",
        (("xRange", "600"), ("metric", "te"), ("tStart", "-1"), ("channelName", "gnss"), ("channelId", "1")),
    ),
    "a log-in that does another action": ("/login", (("txtuname", "u"), ("txtpasswd", "p"), ("action", "reset"))),
    "a log-in without a password": ("/login", (("txtuname", "u"), ("action", "applylogin"))),
    "a log-in with a field of its own": (
        "/login",
        (("txtuname", "u"), ("txtpasswd", "p"), ("action", "applylogin"), ("newpasswd", "x")),
    ),
    "a log-in with two tokens": (
        "/login",
        (("txtuname", "u"), ("txtpasswd", "p"), ("action", "applylogin"), ("token", "a"), ("csrf", "b")),
    ),
    "a token that is none": (
        "/login",
        (("txtuname", "u"), ("txtpasswd", "p"), ("action", "applylogin"), ("token", "a&b=c")),
    ),
}


@pytest.mark.parametrize("forbidden", FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_nothing_else_can_be_made(forbidden: tuple[str, tuple[tuple[str, str], ...]]) -> None:
    """A request that is not on the list is not even an object."""
    path, fields = forbidden

    with pytest.raises(ValueError, match="not on the list"):
        AllowedRequest(path, fields)


def test_a_request_cannot_be_bent() -> None:
    """An allowed request changed in one field is no allowed request."""
    with pytest.raises(ValueError, match="not on the list"):
        replace(channel_states(), path="/factory_reset")


def test_the_whole_list() -> None:
    """The reads are the channel states, and each metric of each channel as chart and as file."""
    made = {channel_states()}
    made |= {make(channel, metric) for make in (chart, history) for channel, metric in product(CHANNELS, METRICS)}

    assert {(request.path, request.fields) for request in made} == READS
    assert len(READS) == 1 + 2 * 7 * 3


def test_every_read_reads() -> None:
    """No path or value of the list is one that changes something."""
    paths = {path for path, _ in READS}
    actions = {value for _, fields in READS for name, value in fields if name.startswith("action")}

    assert paths == {
        "/channels_thresholdValue",
        "/get_chart_data",
        "/perfmon_gnss_stat",
        "/perfmon_pps_stat",
        "/perfmon_tod_stat",
        "/perfmon_ptp_stat",
    }
    assert actions == {"savefile"}


def test_chart_as_the_page_asks() -> None:
    """A chart is asked for by metric word, channel word and channel number."""
    actual = chart("PTP-2", "max_te")

    assert dict(actual.fields) == {
        "metric": "max-te",
        "xRange": "600",
        "tStart": "-1",
        "channelName": "ptp",
        "channelId": "2",
    }
    assert actual.label == "/get_chart_data (PTP-2 max_te)"


def test_history_as_the_page_asks() -> None:
    """A file is asked for in UTC, and PPS is measured against the selected reference."""
    actual = history("PPS-2", "cte")

    assert actual.path == "/perfmon_pps_stat"
    assert dict(actual.fields) == {
        "chart_metric": "te",
        "action1": "savefile",
        "file_type": "0",
        "chart_x_range": "600",
        "chart_ppsId": "2",
        "pps_id": "2",
        "pps_ref": "Selected",
        "pps_status": "Monitoring",
        "down_metric": "1",
        "ChannelName": "pps",
        "reference_id": "0",
    }


def test_the_text_of_a_log_in_has_no_password() -> None:
    """Neither name nor password of a log-in are in its text."""
    actual = repr(login("watcher", "hunter2 & more", None))

    assert actual == "AllowedRequest(path='/login', label='/login')"
