"""Which findings become a message, and when."""

from __future__ import annotations

from typing import Any

from timesyncd.clocks import NS_PER_S
from timesyncd.integrations.notify.grouping import GATHER_NS, MAX_SUBJECTS, Grouping, Notice
from timesyncd.messages.node import FindingMessage

EVERY_NS = 300 * NS_PER_S
START_NS = 1_000 * NS_PER_S


def finding(id: str = "node-silent", subject: str = "n1", severity: str = "warning", **more: Any) -> FindingMessage:
    known = {
        "id": id, "severity": severity, "subject": subject, "since_realtime_ns": 5, "until_realtime_ns": None,
        "evidence": "no state for 25 s", "cause": "it is down", "remedy": "look there",
    }  # fmt: skip
    return FindingMessage.model_validate(known | more)


def due(grouping: Grouping, now_ns: int, *handled: tuple[str, str]) -> Notice | None:
    return grouping.due(set(handled), "hub-a", now_ns)


def begun(*findings: FindingMessage, severity: Any = "warning") -> Grouping:
    grouping = Grouping(severity, EVERY_NS)
    for each in findings:
        grouping.accept(each, START_NS)
    return grouping


def test_what_begins_together_is_one_message() -> None:
    """Forty silent nodes are one paragraph that names five, after the time to gather and not before."""
    grouping = begun(
        *(finding(subject=f"n{number}") for number in range(40)), finding("source-lost", "ptp", "critical")
    )

    assert due(grouping, START_NS + GATHER_NS - 1) is None
    notice = due(grouping, START_NS + GATHER_NS)
    assert notice is not None
    assert (notice.title, notice.severity) == ("timesyncd on hub-a: 1 critical, 40 warning", "critical")
    first, *_ = notice.body.splitlines()
    assert first == "critical source-lost: ptp"
    assert f"warning node-silent: n0, n1, n2, n3, n4 and {40 - MAX_SUBJECTS} more" in notice.body
    assert "no state for 25 s" in notice.body and "it is down: look there" in notice.body


def test_a_later_finding_waits_for_the_interval() -> None:
    """A person gets at most one message in `every_s`, and it has all that changed meanwhile."""
    grouping = begun(finding())
    first_ns = START_NS + GATHER_NS
    due(grouping, first_ns)
    grouping.accept(finding(subject="n2"), first_ns + 1)
    grouping.accept(finding(until_realtime_ns=9), first_ns + 2)

    assert due(grouping, first_ns + EVERY_NS - 1) is None
    notice = due(grouping, first_ns + EVERY_NS)
    assert notice is not None
    assert notice.title == "timesyncd on hub-a: 1 warning, 1 ended"
    assert "ended: warning node-silent: n1" in notice.body
    assert due(grouping, first_ns + 2 * EVERY_NS) is None


def test_less_severe_findings_are_not_sent() -> None:
    """`severity` is the least that is sent."""
    grouping = begun(finding(severity="warning"), finding("x", severity="info"), severity="critical")

    assert due(grouping, START_NS + EVERY_NS) is None


def test_a_finding_that_somebody_took_is_silent() -> None:
    """An acknowledged or silenced finding is in no message, and neither is its end."""
    grouping = begun(finding())
    later_ns = START_NS + GATHER_NS

    assert due(grouping, later_ns, ("node-silent", "n1")) is None
    grouping.accept(finding(until_realtime_ns=9), later_ns)
    assert due(grouping, later_ns + GATHER_NS, ("node-silent", "n1")) is None
    assert due(grouping, later_ns + 3 * EVERY_NS) is None


def test_a_finding_that_outlasts_its_silence_is_sent() -> None:
    """It still holds, so that somebody has to know; only what the silence is about was withheld."""
    grouping = begun(finding(), finding(subject="n2"))
    first = due(grouping, START_NS + GATHER_NS, ("node-silent", "n1"))
    second = due(grouping, START_NS + GATHER_NS + EVERY_NS)

    assert first is not None and "n2" in first.body and "n1" not in first.body
    assert second is not None and "n1" in second.body and "n2" not in second.body


def test_the_end_of_what_was_sent_is_sent_though_somebody_took_it() -> None:
    """The receiver of the begin learns of the end."""
    grouping = begun(finding())
    due(grouping, START_NS + GATHER_NS)
    grouping.accept(finding(until_realtime_ns=9), START_NS + GATHER_NS)
    notice = due(grouping, START_NS + 2 * EVERY_NS, ("node-silent", "n1"))

    assert notice is not None
    assert (notice.title, notice.severity) == ("timesyncd on hub-a: 1 ended", None)


def test_what_is_over_already_is_sent_with_its_end() -> None:
    """A phase jump has no duration: it is one paragraph, and no later end."""
    grouping = begun(finding("phase-jump", "ptp", until_realtime_ns=5))
    notice = due(grouping, START_NS + GATHER_NS)

    assert notice is not None
    assert "it is over already" in notice.body
    assert due(grouping, START_NS + 3 * EVERY_NS) is None


def test_a_finding_that_comes_back_before_its_end_was_sent_changes_nothing() -> None:
    """A flapping finding does not send a message each time."""
    grouping = begun(finding())
    first_ns = START_NS + GATHER_NS
    due(grouping, first_ns)
    grouping.accept(finding(until_realtime_ns=9), first_ns)
    grouping.accept(finding(since_realtime_ns=10), first_ns)

    assert due(grouping, first_ns + 2 * EVERY_NS) is None
