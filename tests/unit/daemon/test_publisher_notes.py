"""What becomes of an operator's note: store, broker, events, and what it decides."""

from __future__ import annotations

from typing import Any, cast

from fake_clocks import FakeClocks
from publisher_lab import PublisherLab

from timesyncd.clocks import NS_PER_S
from timesyncd.config import parse
from timesyncd.daemon.node_state import NodeView
from timesyncd.daemon.publisher import Parts
from timesyncd.driver import options_of
from timesyncd.ipc.clock_segment import Epoch
from timesyncd.messages.fleet import CloudEvent, HistoryBatch, HistoryRow
from timesyncd.messages.node import Message
from timesyncd.messages.notes import NoteRequest, OperatorNote
from timesyncd.mqtt.client import MqttLink
from timesyncd.store.writer import Store

SILENCE = NoteRequest(kind="silence", text="planned", finding="source-lost", subject="ptp", silence_s=3_600)
TAKEN = NoteRequest(kind="acknowledge", text="on it", finding="source-lost", subject="ptp")


class Recorder:
    """Takes what a broker or a store is given."""

    connected = True

    def __init__(self) -> None:
        self.published: list[Message] = []
        self.notes: list[OperatorNote] = []
        self.events: list[CloudEvent] = []

    def publish(self, message: Message) -> None:
        self.published.append(message)

    def put_note(self, note: OperatorNote) -> None:
        self.notes.append(note)

    def put_event(self, event: CloudEvent, _: int) -> None:
        self.events.append(event)

    def put_finding(self, _: Any) -> None: ...

    @property
    def behind_s(self) -> float:
        return 0.0


def lab(recorder: Recorder, clocks: FakeClocks | None = None) -> PublisherLab:
    config = parse({"node": {"name": "hub"}, "mqtt": {"host": "h"}, "hub": {}}, options_of, "test")
    parts = Parts(mqtt=cast(MqttLink, recorder), store=cast(Store, recorder))
    return PublisherLab(config, NodeView(config, Epoch(1, 2), 1), clocks or FakeClocks(), parts)


def test_a_note_is_stored_and_published_with_its_author() -> None:
    """In the store, on the note's topic, and as an event for every subscriber and hub."""
    recorder = Recorder()
    written = lab(recorder).web.write_note(SILENCE, "anna")

    assert isinstance(written, OperatorNote)
    assert recorder.notes == [written]
    assert written in recorder.published
    (event,) = recorder.events
    assert (event.type, event.subject, event.data["author"]) == ("timesyncd.operator.silence", "ptp", "anna")
    assert event.data["text"] == "planned"
    assert written.until_realtime_ns == written.realtime_ns + 3_600 * NS_PER_S


def test_a_finding_that_is_not_active_cannot_be_taken() -> None:
    """A silence may precede a finding, as before planned work."""
    recorder = Recorder()
    made = lab(recorder)

    assert made.web.write_note(TAKEN, "anna") == "no finding source-lost of ptp is active"
    assert recorder.notes == [] and recorder.published == []


def test_an_acknowledged_finding_is_offered_no_more() -> None:
    """The finding stays; it is listed as taken, also by the other hub that received the note."""
    recorder, other = Recorder(), lab(Recorder())
    made = lab(recorder)
    for each in (made, other):
        each.publisher.set_condition("source-lost", "ptp", "no answer")
        each.publisher.tick()
    written = made.web.write_note(TAKEN, "anna")
    assert isinstance(written, OperatorNote)
    other.publisher.receive(written.model_copy(update={"node": "hub-a"}), 0, live=True)

    for each in (made, other):
        assert [(one.finding, one.author) for one in each.web.handled()] == [("source-lost", "anna")]
        assert [one.id for one in each.web.findings() if one.until_realtime_ns is None] == ["source-lost"]
        assert "acknowledge" not in [one.kind for one in each.web.overview().headline.actions if one.subject == "ptp"]


def history(event: CloudEvent, node: str) -> HistoryBatch:
    row = HistoryRow(sequence=1, realtime_ns=1, event=event)
    return HistoryBatch(node=node, incarnation=1, sequence=9, stream=1, floor=1, rows=[row])


def test_a_hub_that_was_away_gets_the_notes_from_the_history() -> None:
    """The history is repeated until the hub confirms it, however long that takes; a note that names another node is not taken."""
    recorder, late = Recorder(), Recorder()
    written = lab(recorder).web.write_note(SILENCE, "anna")
    assert isinstance(written, OperatorNote)
    (event,) = recorder.events
    hub = lab(late)
    hub.publisher.accept_history(history(event, "another"))
    assert late.notes == []
    hub.publisher.accept_history(history(event, written.node))
    hub.publisher.accept_history(history(event.model_copy(update={"data": {"omitted_bytes": 9}}), written.node))
    hub.publisher.set_condition("source-lost", "ptp", "no answer")
    hub.publisher.tick()

    assert late.notes == [written]
    assert [(one.finding, one.author) for one in hub.web.handled()] == [("source-lost", "anna")]


def test_an_acknowledgement_of_before_a_restart_counts_until_the_finding_ends() -> None:
    """The finding is active anew after the restart; when it ends and begins again, it is another."""
    clocks = FakeClocks()
    before = lab(Recorder(), clocks)
    before.publisher.set_condition("source-lost", "ptp", "no answer")
    before.publisher.tick()
    written = before.web.write_note(TAKEN, "anna")
    assert isinstance(written, OperatorNote)
    clocks.advance(60 * NS_PER_S)
    made = lab(Recorder(), clocks)
    made.publisher.restore_notes([written])

    def handled_after(evidence: str | None) -> list[str]:
        clocks.advance(20 * NS_PER_S)
        made.publisher.set_condition("source-lost", "ptp", evidence)
        made.publisher.tick()
        return [one.finding for one in made.web.handled()]

    assert handled_after("no answer") == ["source-lost"]
    assert handled_after(None) == []
    assert handled_after("no answer") == []
