"""Findings begin and end once, and each is in the operator's handbook."""

from __future__ import annotations

from pathlib import Path

from timesyncd.findings.catalogue import CATALOGUE, EXPIRES_AFTER_NS, Findings, Judgement, chain_step, finding_message

OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"


def test_a_finding_begins_once_and_ends_once() -> None:
    """
    While a finding is active only its evidence changes.
    """
    findings = Findings()
    began = findings.judge("source-lost", "ptp", Judgement("no answer"), 10)
    again = findings.judge("source-lost", "ptp", Judgement("refused"), 20)
    standing = findings.all(20)
    ended = findings.judge("source-lost", "ptp", None, 30)

    assert began is not None and (began.since_ns, began.until_ns) == (10, None)
    assert again is None
    assert [finding.evidence for finding in standing] == ["refused"]
    assert ended is not None and (ended.since_ns, ended.until_ns) == (10, 30)
    assert findings.judge("source-lost", "ptp", None, 40) is None


OPEN = chain_step("grandmaster-antenna", "open")


def test_a_chain_that_became_longer_is_published_again() -> None:
    """
    Its words may change with the minutes; only another step is news, and the finding is still the same one.
    """
    findings = Findings()
    findings.judge("grandmaster-antenna", "gm-a", Judgement("open"), 10)
    longer = findings.judge(
        "grandmaster-antenna",
        "gm-a",
        Judgement("open", (OPEN, chain_step("grandmaster-not-locked", "HOLDOVER since 02:14Z"))),
        20,
    )
    reworded = findings.judge(
        "grandmaster-antenna",
        "gm-a",
        Judgement("open", (OPEN, chain_step("grandmaster-not-locked", "HOLDOVER since 02:15Z"))),
        30,
    )

    assert longer is not None and (longer.since_ns, longer.until_ns, len(longer.chain)) == (10, None, 2)
    assert reworded is None
    assert findings.all(30)[0].chain[-1].text == "HOLDOVER since 02:15Z"


def test_what_ended_expires_after_an_hour() -> None:
    """
    An active finding does not expire.
    """
    findings = Findings()
    findings.add_occurrence("phase-jump", "ptp", "5 ms", 0)
    findings.judge("source-lost", "ptp", Judgement("no answer"), 0)

    assert [finding.id for finding in findings.all(EXPIRES_AFTER_NS - 1)] == ["source-lost", "phase-jump"]
    assert [finding.id for finding in findings.all(EXPIRES_AFTER_NS)] == ["source-lost"]


def test_a_dropped_finding_is_neither_open_nor_ended() -> None:
    """Another daemon publishes it from now on, so it did not end."""
    findings = Findings()
    findings.judge("source-lost", "ptp", Judgement("refused"), 10)
    findings.drop("source-lost", "ptp")
    findings.drop("source-lost", "other")

    assert (findings.open(), findings.all(20)) == (set(), [])
    assert findings.judge("source-lost", "ptp", None, 30) is None


def test_every_finding_has_its_entry_in_the_handbook() -> None:
    """
    docs/operations.md states for each id what it means and what to do.
    """
    entries = {line.strip("# `") for line in OPERATIONS.read_text().splitlines() if line.startswith("### `")}

    assert entries == set(CATALOGUE)


def test_a_finding_s_wire_form_keeps_its_times() -> None:
    """CLOCK_REALTIME, and null while it is open; and its chain."""
    began = Findings().judge(
        "source-lost",
        "ptp",
        Judgement("no answer", (chain_step("source-lost", "no answer"), chain_step("clock-unknown", "no bound"))),
        17,
    )
    assert began is not None
    message = finding_message(began)

    assert (message.id, message.since_realtime_ns, message.until_realtime_ns) == ("source-lost", 17, None)
    assert [(step.code, step.text) for step in message.chain] == [
        ("source-lost", "no answer"),
        ("clock-unknown", "no bound"),
    ]
