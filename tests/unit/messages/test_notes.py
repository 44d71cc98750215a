"""What operators decide about findings, and how long it counts."""

from __future__ import annotations

import pytest
from fake_view import RECORDED
from pydantic import ValidationError

from timesyncd.messages.node import FindingMessage
from timesyncd.messages.notes import MAX_KEPT, RESUMED_WITHIN_NS, Handled, NoteKind, NoteRequest, OperatorNote

FINDING = FindingMessage.model_validate(RECORDED["findings"][0]).model_copy(
    update={"since_realtime_ns": 100, "until_realtime_ns": None}
)


def note(kind: NoteKind, at: int, until: int | None = None, author: str = "anna") -> OperatorNote:
    return OperatorNote(
        node="n", incarnation=1, sequence=at, id=f"n-1-{at}", kind=kind, author=author, text="on it", subject=FINDING.subject,
        finding=FINDING.id, realtime_ns=at, until_realtime_ns=until, published_realtime_ns=at,
    )  # fmt: skip


def handled(*notes: OperatorNote, now: int = 200, finding: FindingMessage = FINDING) -> list[str]:
    """Who took the finding."""
    found = Handled()
    for each in notes:
        found.add(each)
    return [each.author for each in found.of([finding], now)]


def test_an_acknowledgement_counts_until_the_finding_ends() -> None:
    """A finding that begins again is a new one, which no operator has acknowledged."""
    again = FINDING.model_copy(update={"since_realtime_ns": 160})
    over = FINDING.model_copy(update={"until_realtime_ns": 170})

    assert handled(note("acknowledge", 150)) == ["anna"]
    assert handled(note("acknowledge", 150), finding=again) == []
    assert handled(note("acknowledge", 150), finding=over) == []


def test_an_acknowledgement_outlives_a_restart() -> None:
    """The finding begins anew, since the daemon cannot know that it never ended; one that begins later, or again, is another."""
    resumed = FINDING.model_copy(update={"since_realtime_ns": 400})
    later = FINDING.model_copy(update={"since_realtime_ns": 301 + RESUMED_WITHIN_NS})
    found = Handled()
    found.resume(note("acknowledge", 150), 300)

    assert [each.author for each in found.of([resumed], 500)] == ["anna"]
    assert found.of([later], 500) == []
    found.end(resumed.model_copy(update={"until_realtime_ns": 450}))
    assert found.of([resumed.model_copy(update={"since_realtime_ns": 460})], 500) == []


def test_a_silence_counts_until_its_end_alone() -> None:
    """Whether the finding ended and began again meanwhile, or not."""
    again = FINDING.model_copy(update={"since_realtime_ns": 160})

    assert handled(note("silence", 150, until=300), finding=again) == ["anna"]
    assert handled(note("silence", 150, until=200)) == []


def test_the_newest_note_counts() -> None:
    """Notes may arrive in any order."""
    old, new = note("acknowledge", 150), note("acknowledge", 160, author="ben")

    assert handled(new, old) == handled(old, new) == ["ben"]


def test_memory_is_bounded() -> None:
    """The oldest decision is forgotten."""
    found = Handled()
    for at in range(MAX_KEPT + 1):
        found.add(note("acknowledge", 1_000 + at).model_copy(update={"subject": f"s{at}"}))

    first, last = (FINDING.model_copy(update={"subject": f"s{at}"}) for at in (0, MAX_KEPT))
    assert [each.subject for each in found.of([first, last], 0)] == [f"s{MAX_KEPT}"]


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "acknowledge", "text": "x"},
        {"kind": "acknowledge", "text": "x", "finding": "source-lost"},
        {"kind": "silence", "text": "x", "finding": "source-lost", "subject": "ptp"},
        {"kind": "silence", "text": "x", "finding": "source-lost", "subject": "ptp", "silence_s": 59},
        {"kind": "comment", "text": "x", "finding": "source-lost"},
        {"kind": "comment", "text": "x", "silence_s": 60},
        {"kind": "comment", "text": "  "},
        {"kind": "comment", "text": "one\nline"},
        {"kind": "comment", "text": "x" * 501},
        {"kind": "praise", "text": "x"},
    ],
)
def test_a_note_has_what_its_kind_needs(fields: dict[str, object]) -> None:
    """A decision names its finding, a silence its length, and a reason is one line of text."""
    with pytest.raises(ValidationError):
        NoteRequest.model_validate(fields)
