"""What waits to be published stays bounded, and the newest stays."""

from __future__ import annotations

from batches import mark
from wire import cloud_event, grandmaster, history, marks, node_state, stored

from timesyncd.clocks import NS_PER_S
from timesyncd.messages.jobs import MarkBatch
from timesyncd.messages.node import Message
from timesyncd.mqtt.outbox import MAX_QUEUED, Outbox
from timesyncd.mqtt.topics import DAY_S, EVENT, JOB_STATE, MARKS, NODE_STATE, STORED

NOW_NS = 5 * NS_PER_S


def outbox_with(*messages: Message) -> Outbox:
    outbox = Outbox("n1")
    for message in messages:
        outbox.put(message, NOW_NS)
    return outbox


def test_an_unsent_state_is_replaced() -> None:
    """Of one retained topic only the newest waits, and nothing counts as dropped."""
    outbox = outbox_with(*(node_state(sequence=sequence) for sequence in range(5)))
    outgoing = outbox.next(NOW_NS)

    assert outgoing is not None
    assert outgoing.message == node_state(sequence=4)
    assert outbox.next(NOW_NS) is None
    assert outbox.dropped == 0


def test_a_full_queue_drops_its_oldest() -> None:
    """What does not fit is counted, the newest stays, and other channels lose nothing."""
    outbox = outbox_with(cloud_event(), *(marks(sequence) for sequence in range(MAX_QUEUED + 3)))
    first, second = outbox.next(NOW_NS), outbox.next(NOW_NS)

    assert outbox.dropped == 3
    assert len(outbox) == MAX_QUEUED - 1
    assert first is not None and first.channel is EVENT
    assert second is not None and second.message == marks(3)


def test_an_event_waits_for_no_state() -> None:
    """What happens overtakes the states of all that are watched."""
    outbox = outbox_with(node_state(), marks(1), cloud_event())
    urgent = outbox.is_urgent
    sent = [outgoing.channel for outgoing in iter(lambda: outbox.next(NOW_NS), None)]

    assert urgent
    assert sent == [EVENT, NODE_STATE, MARKS]


def test_what_failed_goes_first() -> None:
    """A queued message whose connection broke keeps its place."""
    outbox = outbox_with(marks(1), marks(2))
    outgoing = outbox.next(NOW_NS)
    assert outgoing is not None
    outbox.requeue(outgoing)

    assert outbox.next(NOW_NS) == outgoing


def test_what_failed_is_dropped_from_a_full_queue() -> None:
    """Room taken by newer messages is not given back to an older one."""
    outbox = outbox_with(marks(0))
    outgoing = outbox.next(NOW_NS)
    assert outgoing is not None
    for sequence in range(MAX_QUEUED):
        outbox.put(marks(1 + sequence), NOW_NS)
    outbox.requeue(outgoing)

    assert (len(outbox), outbox.dropped) == (MAX_QUEUED, 1)


def test_a_new_connection_sends_every_state_again() -> None:
    """The broker may have forgotten: the latest of each retained topic goes out again, a queued message does not."""
    outbox = outbox_with(node_state(), grandmaster("n1", 1, 1), stored(), marks(1))
    _drain(outbox)
    outbox.requeue_all()

    assert _drain(outbox) == [node_state(), grandmaster("n1", 1, 1)]


def test_a_cleared_topic_is_sent_until_confirmed() -> None:
    """The empty message goes out again with a new connection, until one arrived; then it is forgotten."""
    outbox = Outbox("n1")
    outbox.clear(JOB_STATE, "j1")
    outgoing = outbox.next(NOW_NS)
    assert outgoing is not None
    outbox.requeue(outgoing)
    outbox.requeue_all()
    again = _drain(outbox)
    outbox.requeue_all()

    assert again == [None]
    assert len(outbox) == 0


def test_of_confirmations_only_the_newest_goes_out() -> None:
    """It replaces the earlier ones: for 10,000 nodes 10,000 messages wait, and none is dropped."""
    outbox = outbox_with(*(stored(s, of=f"n{node}") for s in (1, 2) for node in range(2 * MAX_QUEUED)))
    sent = _drain(outbox)

    assert sent == [stored(2, of=f"n{node}") for node in range(2 * MAX_QUEUED)]
    assert outbox.dropped == 0


def test_a_confirmation_goes_out_once() -> None:
    """It is not kept for the next connection, unless it did not get through this one or a newer came meanwhile."""
    outbox = outbox_with(stored(1))
    first = outbox.next(NOW_NS)
    assert first is not None
    outbox.requeue(first)
    outbox.requeue_all()
    again = outbox.next(NOW_NS)
    assert again is not None
    outbox.put(stored(2), NOW_NS)
    outbox.mark_sent(again)
    last = _drain(outbox)
    outbox.requeue_all()

    assert again.message == stored(1)
    assert last == [stored(2)]
    assert _drain(outbox) == []


def test_marks_that_waited_too_long_are_of_no_use() -> None:
    """Their steps are closed after ten seconds: they are dropped and counted, and what is younger goes out."""
    outbox = outbox_with(marks(1))
    outbox.put(marks(2), NOW_NS + NS_PER_S)
    outgoing = outbox.next(NOW_NS + 10 * NS_PER_S)

    assert outgoing is not None
    assert (outgoing.message, outgoing.remaining_s(NOW_NS + 10 * NS_PER_S)) == (marks(2), 1)
    assert outbox.dropped == 1


def test_history_that_waited_too_long_is_not_lost() -> None:
    """Its rows wait in the store until they are confirmed, so a batch that goes nowhere counts as no loss."""
    outbox = outbox_with(history())

    assert outbox.next(NOW_NS + DAY_S * NS_PER_S) is None
    assert outbox.dropped == 0


def test_an_event_that_waited_is_still_an_event() -> None:
    """No other message reports that event."""
    outbox = outbox_with(cloud_event())
    outgoing = outbox.next(NOW_NS + 30 * DAY_S * NS_PER_S)

    assert outgoing is not None
    assert outgoing.message == cloud_event()


def test_a_state_does_not_survive_its_subject() -> None:
    """
    A message a day old is not repeated on a new connection, and a younger one is sent with the rest of its day as
    expiry.
    """
    outbox = outbox_with(node_state("gone"))
    outbox.put(node_state("here"), NOW_NS + NS_PER_S)
    _drain(outbox)
    outbox.requeue_all()
    outgoing = outbox.next(NOW_NS + DAY_S * NS_PER_S)
    assert outgoing is not None
    left_s = outgoing.remaining_s(NOW_NS + DAY_S * NS_PER_S)
    outbox.requeue_all()

    assert (outgoing.message, left_s) == (node_state("here"), 1)
    assert len(outbox) == 1


def test_what_another_publishes_is_not_repeated() -> None:
    """A hub that is no longer the one that speaks must not put the states of ended jobs back at its next connection."""
    outbox = outbox_with(node_state(), stored())
    _drain(outbox)
    outbox.put(node_state("n2"), NOW_NS)
    outbox.forget(NODE_STATE, "n1")
    outbox.forget(NODE_STATE, "n2")
    outbox.forget(STORED, "never-published")
    outbox.requeue_all()

    assert len(outbox) == 0


def _drain(outbox: Outbox) -> list[Message | None]:
    messages = []
    while outgoing := outbox.next(NOW_NS):
        outbox.mark_sent(outgoing)
        messages.append(outgoing.message)
    return messages


def test_marks_are_bounded_in_bytes() -> None:
    """Datagrams of 512 marks fill the memory's share long before the queue has its number of messages; the newest stay."""
    outbox = Outbox("n1")
    many = marks(0).model_copy(update={"marks": [mark(step) for step in range(512)]})
    for sequence in range(MAX_QUEUED):
        outbox.put(many.model_copy(update={"sequence": sequence}), 0)
    sent = []
    while outgoing := outbox.next(0):
        assert isinstance(outgoing.message, MarkBatch)
        sent.append(outgoing.message.sequence)

    assert 10 < len(sent) < 100
    assert sent == list(range(MAX_QUEUED - len(sent), MAX_QUEUED))
    assert outbox.dropped == MAX_QUEUED - len(sent)


def test_marks_expire_when_others_are_put() -> None:
    """While no broker accepts messages, those that no client may receive any more take no memory."""
    outbox = Outbox("n1")
    for second in range(60):
        outbox.put(marks(second), second * NS_PER_S)

    assert len(outbox) == 10
    assert outbox.dropped == 50
