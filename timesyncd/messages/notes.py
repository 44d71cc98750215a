"""Operators' notes: comments, deploys, and what they decided about findings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, model_validator

from timesyncd.clocks import NS_PER_S
from timesyncd.config import Name
from timesyncd.ipc.wire_types import RealtimeNs
from timesyncd.messages.node import FindingMessage, Message, Ordered

NoteKind = Literal["comment", "deploy", "acknowledge", "silence"]

MAX_TEXT = 500
#: A finding that an operator acknowledged before a restart is the same one where it is active again so soon.
RESUMED_WITHIN_NS = 600 * NS_PER_S
#: Decisions in memory; beyond it the oldest is forgotten.
MAX_KEPT = 10_000
MIN_SILENCE_S, MAX_SILENCE_S = 60, 30 * 86_400

FindingId = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,64}$")]
Subject = Annotated[str, Field(max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]
Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT, pattern=r"^[^\x00-\x1f\x7f]*\S[^\x00-\x1f\x7f]*$")]


class NoteRequest(Message):
    """
    A note as an operator writes it; the daemon adds who wrote it. `subject` is what it is about ("": the fleet).

    A comment and a deploy may be dated, by `realtime_ns` (null: now). "acknowledge" takes a finding until it ends, and
    "silence" does so for `silence_s` seconds, whether it ends and begins again or not; both need `finding` and
    `subject`. `text` is the reason.
    """

    kind: NoteKind
    text: Text
    subject: Subject = ""
    finding: FindingId | None = None
    realtime_ns: RealtimeNs | None = None
    silence_s: Annotated[int, Field(ge=MIN_SILENCE_S, le=MAX_SILENCE_S)] | None = None

    @model_validator(mode="after")
    def _whole(self) -> NoteRequest:
        of_finding = self.kind in ("acknowledge", "silence")
        if of_finding != (self.finding is not None) or (of_finding and not self.subject):
            raise ValueError("acknowledge and silence need finding and subject; the other kinds have no finding")
        if (self.kind == "silence") != (self.silence_s is not None):
            raise ValueError("silence needs silence_s, the other kinds have none")
        if of_finding and self.realtime_ns is not None:
            raise ValueError("realtime_ns: an acknowledgement or a silence begins now")
        return self


class OperatorNote(Ordered):
    """
    A note that `author` wrote: the name of a token or certificate, as the configuration of `node` has it.

    `realtime_ns` is when it applies, and `until_realtime_ns` when a silence ends (null: it is no silence).
    """

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
    kind: NoteKind
    author: Name
    text: Text
    subject: Subject
    finding: FindingId | None
    realtime_ns: RealtimeNs
    until_realtime_ns: RealtimeNs | None
    published_realtime_ns: RealtimeNs


class HandledFinding(Message):
    """Who took a finding, when and why; `until_realtime_ns`: it is silent until then, null: until it ends."""

    finding: str
    subject: str
    author: str
    text: str
    realtime_ns: RealtimeNs
    until_realtime_ns: RealtimeNs | None


class Handled:
    """
    The notes that decide about findings: the newest acknowledgement and silence of each finding and subject. Pure: time
    is an argument.
    """

    def __init__(self) -> None:
        self._notes: dict[tuple[str, str, NoteKind], OperatorNote] = {}
        self._resumed_until_ns: dict[tuple[str, str], int] = {}

    def add(self, note: OperatorNote) -> None:
        if note.finding is None:
            return
        key = note.finding, note.subject, note.kind
        known = self._notes.get(key)
        if known is None or known.realtime_ns <= note.realtime_ns:
            self._notes[key] = note
        if len(self._notes) > MAX_KEPT:
            del self._notes[min(self._notes, key=lambda key: self._notes[key].realtime_ns)]

    def resume(self, note: OperatorNote, now_ns: int) -> None:
        """Add a note of before a restart. An acknowledgement is of a finding that was active when the daemon stopped."""
        self.add(note)
        if note.finding is not None and note.kind == "acknowledge":
            self._resumed_until_ns[note.finding, note.subject] = now_ns + RESUMED_WITHIN_NS

    def end(self, finding: FindingMessage) -> None:
        """A finding that begins again is a new one, also soon after a restart."""
        self._resumed_until_ns.pop((finding.id, finding.subject), None)

    def of(self, findings: Iterable[FindingMessage], now_ns: int) -> list[HandledFinding]:
        """Of the active findings those that somebody took since they began, or that are silent now."""
        found = []
        for finding in findings:
            note = self._note_of(finding, now_ns) if finding.until_realtime_ns is None else None
            if note is not None:
                found.append(
                    HandledFinding(
                        finding=finding.id, subject=finding.subject, author=note.author, text=note.text,
                        realtime_ns=note.realtime_ns, until_realtime_ns=note.until_realtime_ns,
                    )
                )  # fmt: skip
        return found

    def _note_of(self, finding: FindingMessage, now_ns: int) -> OperatorNote | None:
        silence = self._notes.get((finding.id, finding.subject, "silence"))
        if silence is not None and silence.until_realtime_ns is not None and silence.until_realtime_ns > now_ns:
            return silence
        taken = self._notes.get((finding.id, finding.subject, "acknowledge"))
        if taken is None:
            return None
        until_ns = self._resumed_until_ns.get((finding.id, finding.subject), taken.realtime_ns)
        return taken if finding.since_realtime_ns <= max(until_ns, taken.realtime_ns) else None
