"""What waits to be published stays bounded, and the newest stays."""

from __future__ import annotations

from wire import alarm_event, finding, grandmaster, marks, node_state

from timesyncd.messages import Message
from timesyncd.mqtt.outbox import MAX_WAITING, Outbox
from timesyncd.mqtt.topics import ALARM_EVENT, FINDING, JOB_STATE, NODE_STATE


def test_an_unsent_state_is_replaced() -> None:
    """Of one retained topic only the newest waits, and nothing counts as dropped."""
    outbox = Outbox("n1")
    for sequence in range(5):
        outbox.put(node_state(sequence=sequence))
    outgoing = outbox.next()

    assert outgoing is not None
    assert outgoing.message == node_state(sequence=4)
    assert outbox.next() is None
    assert outbox.dropped == 0


def test_a_full_queue_drops_its_oldest() -> None:
    """What does not fit is counted, the newest stays, and other channels lose nothing."""
    outbox = Outbox("n1")
    outbox.put(finding())
    for sequence in range(MAX_WAITING + 3):
        outbox.put(marks(sequence))
    first, second = outbox.next(), outbox.next()

    assert outbox.dropped == 3
    assert len(outbox) == MAX_WAITING - 1
    assert first is not None and first.channel is FINDING
    assert second is not None and second.message == marks(3)


def test_an_alarm_event_waits_for_no_state() -> None:
    """What a unit reports by itself overtakes the states of all that are watched."""
    outbox = Outbox("n1")
    outbox.put(node_state())
    outbox.put(finding())
    outbox.put(alarm_event())
    sent = [outgoing.channel for outgoing in iter(outbox.next, None)]

    assert sent == [ALARM_EVENT, NODE_STATE, FINDING]


def test_what_failed_goes_first() -> None:
    """A queued message whose connection broke keeps its place."""
    outbox = Outbox("n1")
    outbox.put(marks(1))
    outbox.put(marks(2))
    outgoing = outbox.next()
    assert outgoing is not None
    outbox.failed(outgoing)

    assert outbox.next() == outgoing


def test_what_failed_is_dropped_from_a_full_queue() -> None:
    """Room taken by newer messages is not given back to an older one."""
    outbox = Outbox("n1")
    outbox.put(marks(0))
    outgoing = outbox.next()
    assert outgoing is not None
    for sequence in range(MAX_WAITING):
        outbox.put(marks(1 + sequence))
    outbox.failed(outgoing)

    assert (len(outbox), outbox.dropped) == (MAX_WAITING, 1)


def test_a_new_connection_sends_every_state_again() -> None:
    """The broker may have forgotten: the latest of each retained topic goes out again, a queued message does not."""
    outbox = Outbox("n1")
    for message in (node_state(), grandmaster("n1", 1, 1), marks(1)):
        outbox.put(message)
    _drain(outbox)
    outbox.renew()

    assert _drain(outbox) == [node_state(), grandmaster("n1", 1, 1)]


def test_a_cleared_topic_is_sent_until_confirmed() -> None:
    """The empty message goes out again with a new connection, until one arrived; then it is forgotten."""
    outbox = Outbox("n1")
    outbox.clear(JOB_STATE, "j1")
    outgoing = outbox.next()
    assert outgoing is not None
    outbox.failed(outgoing)
    outbox.renew()
    again = _drain(outbox)
    outbox.renew()

    assert again == [None]
    assert len(outbox) == 0


def _drain(outbox: Outbox) -> list[Message | None]:
    messages = []
    while outgoing := outbox.next():
        outbox.sent(outgoing)
        messages.append(outgoing.message)
    return messages
