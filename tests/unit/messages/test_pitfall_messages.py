"""Traps in what goes out and what comes in: gauges, encodings, old messages, slow readers, strange texts and sizes."""

from __future__ import annotations

import tomllib
from argparse import ArgumentTypeError
from collections.abc import AsyncIterator
from dataclasses import asdict
from importlib.resources import files
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from published import good_bound
from wire import finding, grandmaster, marks, node_state

from timesyncd.bound import ClockStatus
from timesyncd.clocks import NS_PER_S
from timesyncd.config import BoundSettings, MqttSettings, parse
from timesyncd.driver import PollReport, options_of
from timesyncd.drivers.timeprovider._profiles import SHIPPED
from timesyncd.drivers.timeprovider._web_session import MAX_RESPONSE_BYTES, _body
from timesyncd.errors import ConfigError, Malformed, TraceError
from timesyncd.feed import Feed
from timesyncd.ipc import clock_segment, clockbound
from timesyncd.messages.node import BoundMessage, SourceState, status_name
from timesyncd.metrics import exposition
from timesyncd.metrics.exposition import MetricsSnapshot
from timesyncd.model.replay import COLUMNS, read_trace
from timesyncd.mqtt.client import MqttLink
from timesyncd.mqtt.inbox import Inbox
from timesyncd.mqtt.outbox import MAX_QUEUED
from timesyncd.mqtt.topics import NODE_STATE, encode
from timesyncd.sample import ClockState
from timesyncd.units import span_ns

Series = tuple[str, frozenset[tuple[str, str]]]

SOURCE = SourceState(
    name="ptp", driver="ptp4l", reachable=True, port_state="SLAVE", offset_ns=5, path_delay_ns=2_000, clock_class=6
)
GOOD = BoundMessage(bound_ns=5_000, growth_ppb=100, reason="")
FED = node_state().model_copy(
    update={
        "status": "SYNCHRONIZED",
        "utc_status": "SYNCHRONIZED",
        "age_ns": 0,
        "gm": GOOD,
        "utc": GOOD,
        "sources": [SOURCE],
    }
)
OF_A_SOURCE = {"offset_seconds", "path_delay_seconds", "clock_class", "port_state"}
OF_A_BOUND = {"gm_bound_seconds", "utc_bound_seconds"}


def series(snapshot: MetricsSnapshot) -> dict[Series, float]:
    """What one scrape holds."""
    return {
        (sample.name.removeprefix("timesyncd_"), frozenset(sample.labels.items())): sample.value
        for family in exposition.families(snapshot, 0)
        for sample in family.samples
    }


def names(snapshot: MetricsSnapshot) -> set[str]:
    return {name for name, _ in series(snapshot)}


@pytest.mark.parametrize(
    "gone",
    [
        {
            "sources": [
                SOURCE.model_copy(update={"reachable": False, "reason": "no answer", "reason_code": "no_valid_sample"})
            ]
        },
        {"sources": [SOURCE.model_copy(update={"reason": "no Sync for 9 s", "reason_code": "no_valid_sample"})]},
        {"sources": []},
    ],
)
def test_pitfall_08_gauges_are_withdrawn_with_their_source(gone: dict[str, Any]) -> None:
    """
    A source that is lost, silent or gone has no offset, delay, class and state any more, and an unknown clock no
    bound.
    """
    lost = FED.model_copy(update={"status": "UNKNOWN", "utc_status": "UNKNOWN", **gone})

    assert names(MetricsSnapshot(FED)) >= OF_A_SOURCE | OF_A_BOUND
    assert names(MetricsSnapshot(lost)) & (OF_A_SOURCE | OF_A_BOUND) == set()


def test_pitfall_09_holdover_is_not_freerun_in_any_encoding() -> None:
    """No two statuses are alike: as number, name, word of either segment, gauge, and as a grandmaster's clock state."""
    good = good_bound()
    bounds = [good_bound(gm_status=status, utc_status=status) for status in ClockStatus]
    gauges = [
        series(MetricsSnapshot(FED.model_copy(update={"status": status.name, "age_ns": None})))
        for status in ClockStatus
    ]
    grandmasters = [grandmaster("n", 1, 1).model_copy(update={"clock_state": state.value}) for state in ClockState]
    shown = [series(MetricsSnapshot(FED, grandmasters=[state])) for state in grandmasters]

    assert [status_name(status) for status in ClockStatus] == ["UNKNOWN", "SYNCHRONIZED", "HOLDOVER", "DISRUPTED"]
    assert distinct([clock_segment.encode(bound, clock_segment.Epoch(1, 2))[5] for bound in bounds]) == len(ClockStatus)
    assert [clockbound.content(good, good.as_of_ns + age_s * NS_PER_S, 0)[-12] for age_s in (1, 6, 1_000)] == [1, 2, 0]
    assert distinct([frozenset(gauge.items()) for gauge in gauges]) == len(ClockStatus)
    assert distinct([frozenset(gauge.items()) for gauge in shown]) == len(ClockState)


def distinct(encodings: list[Any]) -> int:
    return len(set(encodings))


@pytest.mark.parametrize("profile", SHIPPED)
def test_no_profile_calls_holdover_freerun(profile: str) -> None:
    """Where a grandmaster's numbers name both states, each has its own, and none is an unknown state."""
    published = tomllib.loads((files("timesyncd.drivers.timeprovider") / "profiles" / f"{profile}.toml").read_text())
    states = [
        each["values"]
        for each in published.get("object", ())
        if each.get("field") == "clock_state" and "values" in each
    ]

    assert {word for values in states for word in values.values()} <= set(ClockState)
    assert [
        values
        for values in states
        if "locked" in values.values() and not {"holdover", "freerun"} <= set(values.values())
    ] == []


def test_pitfall_10_an_older_event_never_replaces_a_live_one() -> None:
    """Nor does the broker's retained copy, nor one of before a restart, however high it had counted."""
    inbox, topic = Inbox("t", "hub"), NODE_STATE.topic("t", "n1")
    live, copy, former, next_one = (
        inbox.receive(topic, encode(node_state(incarnation=incarnation, sequence=sequence)), retained, 0)
        for incarnation, sequence, retained in ((2, 5, False), (2, 4, True), (1, 900, False), (2, 6, False))
    )

    assert live is not None and next_one is not None
    assert (copy, former, inbox.outdated) == (None, None, 2)


def test_pitfall_11_publishing_never_blocks_the_poll_loop() -> None:
    """With no broker and a viewer that never reads, a poll loop comes to its end, and what was lost is counted."""
    link = MqttLink(MqttSettings(host="broker.invalid"), "n1", 1, [], lambda received: None)
    feed = Feed[int](lambda value: 0)
    polls = MAX_QUEUED + 7
    viewer = feed.subscribe(10)
    for poll in range(polls):
        link.publish(marks(poll))
        feed.publish(poll)

    assert (link.dropped, link.published) == (7, 0)
    assert (viewer.dropped, feed.latest[0]) == (polls - 10, polls - 1)


def test_pitfall_22_an_error_s_text_is_no_label() -> None:
    """Whatever texts errors, evidence and unknown values of a grandmaster have: the series are the same."""
    scraped = [frozenset(series(snapshot_with(f"error {number}: 0x{number:x}"))) for number in range(50)]

    assert distinct(list(scraped)) == 1
    assert not any("error" in label for _, labels in scraped[0] for pair in labels for label in pair)


def snapshot_with(text: str) -> MetricsSnapshot:
    source = SOURCE.model_copy(update={"reason": text, "reachable": False})
    state = grandmaster("n", 1, 1).model_copy(update={"reason": text, "unknown": [text], "utc_detail": text})
    return MetricsSnapshot(
        FED.model_copy(update={"reason": text, "grandmaster_summary": text, "sources": [source]}),
        polls=[PollReport("ptp", 0, 5, text, 1)],
        grandmasters=[state],
        findings=[finding().model_copy(update={"evidence": text, "cause": text, "subject": "ptp"})],
    )


class Endless:
    """A device that never ends its answer; `sent` octets of it were taken."""

    def __init__(self) -> None:
        self.sent = 0

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        while True:
            self.sent += size
            yield b"[" * size


async def test_pitfall_23_a_reply_without_end_is_cut_off() -> None:
    """A device decides neither how much memory its answer takes nor how long it lasts."""
    content = Endless()
    response = cast(aiohttp.ClientResponse, SimpleNamespace(headers={}, content=content))

    with pytest.raises(Malformed, match=f"the response exceeds {MAX_RESPONSE_BYTES} octets"):
        await _body(response, MAX_RESPONSE_BYTES)
    assert content.sent <= MAX_RESPONSE_BYTES + 65_536


CELLS = st.text('0123456789-+.eE_ "\tNaninf\u0663,\n', max_size=12) | st.text(max_size=6) | st.integers().map(str)
THRESHOLDS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.lists(st.integers(), max_size=2)
)


@given(st.dictionaries(st.sampled_from(sorted(BoundSettings.model_fields)), THRESHOLDS))
def test_pitfall_24_any_threshold_is_accepted_or_refused_in_one_line(bounds: dict[str, Any]) -> None:
    """Of a table of any values there is a configuration or one line of error; what is taken is a threshold."""
    table = {"source": [{"name": "ptp", "driver": "kernel", "bounds": bounds}]}
    try:
        settings = parse(table, options_of, "t.toml").source[0].bounds.ensemble_settings()
    except ConfigError as error:
        published = str(error)
        assert len(published.splitlines()) == 1 and "source[0].bounds" in published
        return

    taken = [
        number for name, number in asdict(settings.source).items() if name != "utc_offset_s" and number is not None
    ]
    assert min(*taken, settings.holdover_after_ns - 1, settings.void_after_ns - 1) >= 0


@given(st.lists(st.lists(CELLS, min_size=8, max_size=8), max_size=4))
def test_any_trace_is_read_or_rejected(rows: list[list[str]]) -> None:
    """Of cells of any text there are rows whose time never goes back, or one line of error."""
    lines = [",".join(COLUMNS), *(",".join(row) for row in rows)]
    try:
        read = [row for _, row in read_trace(lines, "t.csv")]
    except TraceError as error:
        assert str(error).startswith("t.csv:") and len(str(error).splitlines()) == 1
        return

    assert [row.t_ns for row in read] == sorted(row.t_ns for row in read)


@given(st.from_regex(r"\d{0,12}\.?\d{0,3} ?[smhdx]?", fullmatch=True) | st.text(max_size=9))
def test_any_span_is_read_or_rejected(text: str) -> None:
    """A span of time is at least 0, or argparse's own error."""
    try:
        assert span_ns(text) >= 0
    except ArgumentTypeError as error:
        assert "is not a span of time" in str(error)
