"""What a daemon that starts gets back of its operators' decisions."""

from __future__ import annotations

from fake_clocks import FakeClocks
from postgresql import location, settings_of

from timesyncd.clocks import NS_PER_S
from timesyncd.messages.node import FindingMessage
from timesyncd.messages.notes import NoteKind, OperatorNote
from timesyncd.store.engine import StoreLocation
from timesyncd.store.notes import undecided
from timesyncd.store.writer import Store

__all__ = ["location"]


def test_decisions_that_still_count_are_given_back(location: StoreLocation) -> None:
    """Of a finding that was active at the stop; not of one that had ended, nor of one that began later; and no silence that is over."""
    clocks = FakeClocks()
    now_ns = clocks.real_ns

    def finding(id: str, since_s: int, until_s: int | None = None) -> FindingMessage:
        until_ns = None if until_s is None else now_ns + until_s * NS_PER_S
        return FindingMessage(
            id=id, severity="warning", subject="gm-a", since_realtime_ns=now_ns + since_s * NS_PER_S,
            until_realtime_ns=until_ns, evidence="open", cause="?", remedy="!",
        )  # fmt: skip

    def note(kind: NoteKind, finding: str, at_s: int, until_s: int | None = None) -> OperatorNote:
        at_ns = now_ns + at_s * NS_PER_S
        until_ns = None if until_s is None else now_ns + until_s * NS_PER_S
        return OperatorNote(
            node="n1", incarnation=1, sequence=1, id=f"{kind}-{finding}", kind=kind, author="anna", text="on it", subject="gm-a",
            finding=finding, realtime_ns=at_ns, until_realtime_ns=until_ns, published_realtime_ns=at_ns,
        )  # fmt: skip

    store = Store(settings_of(location), clocks, lambda problem: None)
    store.start()
    for each in (finding("active", -50), finding("ended", -50, -10), finding("newer", -5)):
        store.put_finding(each)
    for name in ("active", "ended", "newer", "unheard"):
        store.put_note(note("acknowledge", name, -20))
    store.put_note(note("silence", "over", -20, 10))
    store.put_note(note("silence", "silent", -20, 600))
    store.stop()

    clocks.advance(60 * NS_PER_S)
    started_ns = clocks.real_ns
    clocks.advance(NS_PER_S)
    store = Store(settings_of(location), clocks, lambda problem: None)
    store.start()
    store.next_incarnation("n1")  # waits until the store is open
    found = {row["note_id"] for row in undecided(location, started_ns)}
    store.stop()

    assert found == {"acknowledge-active", "silence-silent"}
