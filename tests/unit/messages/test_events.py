"""What happens becomes CloudEvents, each change once, in O-RAN's words where O-RAN has some."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent as TheirEvent
from hypothesis import given
from hypothesis import strategies as st
from wire import alarm_event, finding, grandmaster, node_state

from timesyncd.bound import Reason, unbounded
from timesyncd.messages.events import CloudEvents, StateChanges, rfc3339
from timesyncd.messages.fleet import CloudEvent
from timesyncd.messages.node import BoundMessage, ChainStep, FindingMessage, GrandmasterState, NodeState, SourceState
from timesyncd.mqtt.topics import encode
from timesyncd.sample import ClockState

NOW_NS = 1_790_000_000_123_456_789
SOURCE = SourceState(name="s", driver="ptp4l", reachable=True)


def events() -> CloudEvents:
    return CloudEvents("n1", 7)


def node(status: str, **more: object) -> NodeState:
    published = {"status": status, "utc_status": "UNKNOWN", "sources": [SOURCE], "published_realtime_ns": NOW_NS}
    return node_state().model_copy(update=published | more)


def grandmaster_state(**more: object) -> GrandmasterState:
    return grandmaster("n1", 1, 1).model_copy(update=more)


def standing(chain: int = 0, until_ns: int | None = None) -> FindingMessage:
    return finding().model_copy(
        update={"chain": [ChainStep(code="step", text="step")] * chain, "until_realtime_ns": until_ns}
    )


def words(published: list[CloudEvent]) -> list[str]:
    return [event.data["values"][0]["value"] for event in published]


def one_of_each() -> list[CloudEvent]:
    """An event of every type that there is."""
    made = events()
    changes = StateChanges(made)
    findings = [standing(), standing(chain=1), standing(until_ns=2)]
    published = [made.finding(each, NOW_NS) for each in findings]
    published += [made.alarm(alarm_event()), *changes.of_node(node("HOLDOVER"))]
    return published + changes.of_grandmaster(
        grandmaster_state(clock_state="locked", clock_class=6, gnss_state="locked")
    )


def broken_rules(event: dict[str, Any]) -> list[str]:
    """What CloudEvents 1.0.2 and its JSON format demand of an event in structured mode, and this one does not keep."""
    rules = {
        "required attributes are there": {"id", "source", "specversion", "type"} <= set(event),
        "specversion is 1.0": event.get("specversion") == "1.0",
        "names are lower-case letters and digits": all(re.fullmatch("[a-z0-9]+", name) for name in event),
        "an attribute is no null": all(value is not None for value in event.values()),
        "attributes are non-empty strings": all(
            isinstance(value, str) and value for name, value in event.items() if name != "data"
        ),
        "source is a URI-reference": not re.search(r"[^!-~]|[<>\"{}|\\^`]", event["source"])
        and bool(urlsplit(event["source"]).path),
        "time is RFC 3339": bool(
            re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", event.get("time", ""))
        ),
        "datacontenttype is a media type": bool(re.fullmatch(r"\w+/[\w.+-]+", event.get("datacontenttype", ""))),
        "data occurs once": "data_base64" not in event,
        "strings hold no control characters": not re.search(r"[\x00-\x1f\x7f-\x9f]", "".join(map(str, event.values()))),
    }
    return [rule for rule, is_kept in rules.items() if not is_kept]


@pytest.mark.parametrize("event", one_of_each(), ids=lambda event: event.type.rpartition(".")[2])
def test_an_event_keeps_the_rules_of_cloudevents(event: CloudEvent) -> None:
    """On the wire it is JSON as CloudEvents 1.0 defines it."""
    assert broken_rules(json.loads(encode(event))) == []


@pytest.mark.parametrize("event", one_of_each(), ids=lambda event: event.type.rpartition(".")[2])
def test_another_implementation_reads_an_event(event: CloudEvent) -> None:
    """The CloudEvents project's own library finds in it what we put there."""
    read = JSONFormat().read(TheirEvent, encode(event))

    assert (read.get_id(), read.get_source(), read.get_type()) == (event.id, event.source, event.type)
    assert (read.get_subject(), read.get_data()) == (event.subject, event.data)
    assert read.get_datacontenttype() == "application/json"


def test_ids_are_unique_within_a_source() -> None:
    """Within one start they are counted, and each start has its own number."""
    made = [event.id for event in one_of_each()]

    assert made == [f"7-{number}" for number in range(1, len(made) + 1)]


def test_a_finding_begins_changes_and_ends() -> None:
    """Each is an event of its own type about the finding's subject, with the finding as its data."""
    made = events()
    published = [made.finding(each, NOW_NS) for each in (standing(), standing(1), standing(1, until_ns=9), standing())]

    assert [event.type.removeprefix("timesyncd.finding.") for event in published] == [
        "began",
        "changed",
        "ended",
        "began",
    ]
    assert {(event.subject, event.source) for event in published} == {("eth0", "/cluster/node/n1")}
    assert FindingMessage.model_validate(published[2].data) == standing(1, until_ns=9)


def test_what_happened_at_one_moment_begins() -> None:
    """A phase jump has no end of its own, and a subscriber to BEGAN must not miss it, nor the second one."""
    made = events()

    assert [made.finding(standing(until_ns=1), NOW_NS).type for _ in range(2)] == ["timesyncd.finding.began"] * 2


def test_findings_of_two_subjects_are_two() -> None:
    """A finding of one subject does not concern the other."""
    made = events()
    other = standing().model_copy(update={"subject": "eth1"})

    assert {made.finding(each, NOW_NS).type for each in (standing(), other)} == {"timesyncd.finding.began"}


def test_an_alarm_is_about_its_grandmaster() -> None:
    """The data is what the grandmaster reported, and the time is that of publication."""
    event = events().alarm(alarm_event())

    assert (event.type, event.subject) == ("timesyncd.grandmaster.alarm", "gm-a")
    assert event.time == "1970-01-01T00:00:00.000000001Z"
    assert event.data == alarm_event().model_dump(mode="json")


@pytest.mark.parametrize(
    ("status", "word"),
    [("SYNCHRONIZED", "LOCKED"), ("HOLDOVER", "HOLDOVER"), ("DISRUPTED", "FREERUN"), ("UNKNOWN", "FREERUN")],
)
def test_a_node_has_one_of_three_states(status: str, word: str) -> None:
    """A clock that must not be trusted is FREERUN, whatever the reason."""
    (event,) = StateChanges(events()).of_node(node(status))

    assert event.type == "event.sync.sync-status.synchronization-state-change"
    assert (event.subject, event.time) == ("n1", "2026-09-21T14:13:20.123456789Z")
    assert event.data == {
        "version": "1.0",
        "values": [
            {
                "ResourceAddress": "/cluster/node/n1/sync/sync-status/sync-state",
                "data_type": "notification",
                "value_type": "enumeration",
                "value": word,
            }
        ],
    }


def test_the_bound_is_beside_the_state() -> None:
    """As it is at that moment: grown by its age, rounded up; while a clock is trusted alone."""
    gm = BoundMessage(bound_ns=5_000, growth_ppb=100, reason="")
    (held,) = StateChanges(events()).of_node(node("HOLDOVER", gm=gm, age_ns=1_000_000_001))
    (lost,) = StateChanges(events()).of_node(node("DISRUPTED", gm=gm, age_ns=0))

    assert held.data["values"][1:] == [
        {
            "ResourceAddress": "/cluster/node/n1/sync/sync-status/sync-state",
            "data_type": "metric",
            "value_type": "decimal64.3",
            "value": "5101",
        }
    ]
    assert len(lost.data["values"]) == 1


def test_a_state_is_published_when_it_changes() -> None:
    """The first value is published, a repetition is not, and DISRUPTED after UNKNOWN is the same value in O-RAN."""
    changes = StateChanges(events())
    states = ["SYNCHRONIZED", "SYNCHRONIZED", "HOLDOVER", "UNKNOWN", "DISRUPTED", "SYNCHRONIZED"]

    assert [words(changes.of_node(node(status))) for status in states] == [
        ["LOCKED"], [], ["HOLDOVER"], ["FREERUN"], [], ["LOCKED"],
    ]  # fmt: skip


def test_a_node_without_a_clock_source_has_no_state() -> None:
    """A hub that watches no clock of its own is not out of sync."""
    assert StateChanges(events()).of_node(node("UNKNOWN", sources=[])) == []


def test_a_node_synchronized_by_ntp_is_judged_by_utc() -> None:
    """Its status against a grandmaster does not count: it has none."""
    none = BoundMessage.of(unbounded(Reason.NO_GRANDMASTER))
    utc = BoundMessage(bound_ns=2_000_000, growth_ppb=0, reason="")
    source = SOURCE.model_copy(update={"kind": "utc"})
    state = node("UNKNOWN", utc_status="SYNCHRONIZED", gm=none, utc=utc, sources=[source], age_ns=0)
    (event,) = StateChanges(events()).of_node(state)

    assert [value["value"] for value in event.data["values"]] == ["LOCKED", "2000000"]


@pytest.mark.parametrize("state", ClockState)
def test_a_grandmaster_is_locked_only_when_it_reports_so(state: ClockState) -> None:
    """A holdover out of its specification is none."""
    expected = {ClockState.LOCKED: "LOCKED", ClockState.HOLDOVER: "HOLDOVER"}.get(state, "FREERUN")
    published = StateChanges(events()).of_grandmaster(grandmaster_state(clock_state=state.value))

    assert [event.type for event in published] == ["event.sync.ptp-status.ptp-state-change"]
    assert words(published) == [expected]
    assert published[0].data["values"][0]["ResourceAddress"] == (
        "/cluster/node/n1/grandmaster/gm-a/sync/ptp-status/lock-state"
    )


def test_a_grandmaster_s_class_is_a_metric() -> None:
    """It is published when it changes, as a number."""
    changes = StateChanges(events())
    published = [event for each in (6, 6, 7) for event in changes.of_grandmaster(grandmaster_state(clock_class=each))]

    assert {event.type for event in published} == {"event.sync.ptp-status.ptp-clock-class-change"}
    assert words(published) == ["6", "7"]
    assert published[0].data["values"][0]["value_type"] == "decimal64.3"


@pytest.mark.parametrize(
    ("gnss", "antenna", "word"),
    [
        ("locked", "ok", "SYNCHRONIZED"),
        ("tracking", None, "ACQUIRING-SYNC"),
        ("none", "ok", "FAILURE-NOFIX"),
        ("antenna_fault", "open", "ANTENNA-DISCONNECTED"),
        ("antenna_fault", "short", "ANTENNA-SHORT-CIRCUIT"),
        ("antenna_fault", "fault", "FAILURE-NOFIX"),
        (None, "open", "ANTENNA-DISCONNECTED"),
    ],
)
def test_gnss_states_have_their_own_values(gnss: str | None, antenna: str | None, word: str) -> None:
    """What the antenna has comes before what follows from it."""
    published = StateChanges(events()).of_grandmaster(grandmaster_state(gnss_state=gnss, antenna=antenna))

    assert [event.type for event in published] == ["event.sync.gnss-status.gnss-state-change"]
    assert words(published) == [word]


def test_what_a_grandmaster_does_not_provide_gives_no_event() -> None:
    """Nothing known is no state, and neither is a working antenna alone."""
    assert StateChanges(events()).of_grandmaster(grandmaster_state(antenna="ok")) == []


def test_a_grandmaster_that_does_not_respond_gives_no_event() -> None:
    """A change is published when it responds again."""
    changes = StateChanges(events())
    states = [("locked", True), ("holdover", False), ("locked", True), ("holdover", True)]

    assert [words(changes.of_grandmaster(grandmaster_state(clock_state=s, reachable=r))) for s, r in states] == [
        ["LOCKED"], [], [], ["HOLDOVER"],
    ]  # fmt: skip


def test_each_grandmaster_has_its_own_state() -> None:
    """Two grandmasters in lock are two states."""
    changes = StateChanges(events())
    published = [changes.of_grandmaster(grandmaster_state(name=name, clock_state="locked")) for name in ("a", "b")]

    assert [event.subject for event in [*published[0], *published[1]]] == ["a", "b"]


@given(st.integers(0, 2**63 - 1))
def test_a_time_is_formatted_to_the_nanosecond(realtime_ns: int) -> None:
    """RFC 3339 text converts back to the same number."""
    whole, _, fraction = rfc3339(realtime_ns).removesuffix("Z").partition(".")
    seconds = datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp()

    assert int(seconds) * 10**9 + int(fraction) == realtime_ns
