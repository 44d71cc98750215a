"""A span of time as a document."""

from __future__ import annotations

from typing import Any

import pytest

from timesyncd.clocks import NS_PER_S
from timesyncd.messages.events import ALARM, BEGAN, ENDED
from timesyncd.web.postmortem import Incident, postmortem

SINCE_NS = 1_772_334_000 * NS_PER_S


def event(type: str, id: str, since_s: Any, until_s: Any = None) -> dict[str, Any]:
    times = [SINCE_NS + each * NS_PER_S if isinstance(each, int) else each for each in (since_s, until_s)]
    data = {"id": id, "subject": "gm-a", "since_realtime_ns": times[0], "until_realtime_ns": times[1]}
    data |= {"severity": "warning", "evidence": "seen", "cause": "?", "remedy": "!"}
    at_ns = SINCE_NS + (until_s if isinstance(until_s, int) else 0) * NS_PER_S
    return {"type": type, "realtime_ns": at_ns, "subject": "gm-a", "node": "hub", "data": data}


def document(*events: dict[str, Any]) -> str:
    newest_first = sorted(events, key=lambda each: -each["realtime_ns"])
    until_ns = SINCE_NS + 600 * NS_PER_S
    return postmortem(Incident(SINCE_NS, until_ns, until_ns, "hub", newest_first))


def test_a_finding_of_one_moment_began_and_ended() -> None:
    """It gives one event. The summary counts what the findings below say."""
    text = document(
        event(BEGAN, "phase-jump", 10, 10),
        event(BEGAN, "gm-holdover", 20),
        event(ENDED, "source-lost", -50, 30),
    )

    assert "- Findings: 2 began, 2 ended." in text
    assert ", at 2026-03-01T03:00:10Z." in text
    assert "since 2026-03-01T03:00:20Z, active." in text
    assert "since 2026-03-01T02:59:10Z, ended 2026-03-01T03:00:30Z." in text


@pytest.mark.parametrize(
    ("type", "data"),
    [
        ("org.example.foreign", {"values": 5}),
        ("org.example.foreign", {"values": [5, {"value": {}}]}),
        (BEGAN, {"id": []}),
        (BEGAN, {"id": "a", "subject": {}}),
        (BEGAN, {"id": "a", "chain": 5}),
        (BEGAN, {"id": "a", "since_realtime_ns": "x"}),
        (BEGAN, {"since_realtime_ns": 1e30}),
        (BEGAN, {"until_realtime_ns": 10**40}),
        (ENDED, {"until_realtime_ns": "x"}),
        (ALARM, {"action": [], "text": {}}),
    ],
)
def test_one_event_takes_no_other_from_the_document(type: str, data: dict[str, Any]) -> None:
    """An event whose data is damaged, or another program's, is a row of the timeline and no finding."""
    odd = event(BEGAN, "odd", 10)
    odd |= {"type": type, "data": odd["data"] | data}
    text = document(odd, event(BEGAN, "gm-holdover", 20))

    assert "- Findings: 1 began, 0 ended." in text
    assert text.count("### ") == 1 and "### gm-holdover: gm-a" in text
    assert f"| {type.rpartition('.')[2]}:" in text or "| alarm" in text
