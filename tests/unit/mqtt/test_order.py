"""Newest wins, by (node, incarnation, sequence)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire import cloud_event, grandmaster, history, hub_state, marks, node_state, stored

from timesyncd.clocks import NS_PER_S
from timesyncd.messages.node import Message
from timesyncd.mqtt import inbox
from timesyncd.mqtt.inbox import EXPIRE_AFTER_NS, HUB_SILENT_AFTER_NS, SILENT_AFTER_NS, Freshness, NewestMessages
from timesyncd.mqtt.topics import subject_of


def classified(
    newest: NewestMessages, message: Message, retained: bool = False, now_ns: int = 0, node: str = "n1"
) -> Freshness:
    return newest.classify("channel", subject_of(message, node), message, retained, now_ns)


def accepted(newest: NewestMessages, message: Message, retained: bool = False, now_ns: int = 0) -> bool:
    return classified(newest, message, retained, now_ns) is not Freshness.OUTDATED


def test_an_older_sequence_is_not_news() -> None:
    """Within one incarnation only a higher sequence is accepted, and a copy is not."""
    newest = NewestMessages()

    assert [accepted(newest, node_state(sequence=s)) for s in (5, 4, 5, 6)] == [True, False, False, True]


def test_a_restart_never_looks_old() -> None:
    """A higher incarnation wins whatever its sequence, and the former incarnation does not come back."""
    newest = NewestMessages()
    states = [node_state(incarnation=i, sequence=s) for i, s in ((1, 900), (2, 0), (1, 901))]

    assert [accepted(newest, state) for state in states] == [True, True, False]


def test_a_live_message_is_news_after_its_retained_copy() -> None:
    """The retained copy is only the last known state: it is outdated after the live message."""
    newest = NewestMessages()
    state = node_state()

    assert [accepted(newest, state, retained) for retained in (True, False, True)] == [True, True, False]


def test_each_publisher_has_its_own_order() -> None:
    """Two daemons that poll one grandmaster do not outdate each other."""
    newest = NewestMessages()
    states = [grandmaster("hub-a", 7, 100), grandmaster("hub-b", 1, 1), grandmaster("hub-b", 1, 1)]

    assert [accepted(newest, state) for state in states] == [True, True, False]


def test_each_subject_has_its_own_order() -> None:
    """One node's counters have no meaning for another's."""
    newest = NewestMessages()

    assert accepted(newest, node_state("n1", 9, 9))
    assert accepted(newest, node_state("n2", 1, 1))


def test_an_event_has_no_order() -> None:
    """A subscriber recognizes a repeated event by its id."""
    newest = NewestMessages()

    assert all(accepted(newest, cloud_event()) for _ in range(2))


@pytest.mark.parametrize("make", [hub_state, node_state, lambda node, i, s: grandmaster(node, i, s)])
def test_a_state_of_every_kind_has_an_order(make: Callable[[str, int, int], Message]) -> None:
    """What is older than what was taken overwrites it on no channel."""
    newest = NewestMessages()
    stamps = [(2, 5), (2, 4), (1, 9), (3, 0)]

    assert [accepted(newest, make("a", *stamp)) for stamp in stamps] == [True, False, False, True]


def test_marks_are_taken_once() -> None:
    """A replayed batch would be joined twice."""
    newest = NewestMessages()

    assert [accepted(newest, marks(sequence)) for sequence in (3, 3, 2, 4)] == [True, False, False, True]


def test_history_that_is_sent_again_is_never_old() -> None:
    """
    A row is known by its own number: after a restart, and beside newer ones, what was not stored yet still counts.
    """
    newest = NewestMessages()
    batches = [history(5), history(5), history(4), history(9, incarnation=2), history(6, incarnation=1)]

    assert all(accepted(newest, batch) for batch in batches)


def test_a_confirmation_may_be_repeated_but_not_be_older() -> None:
    """Before its restart a hub may have had a store that it has no longer: cutting by its old word would lose rows."""
    newest = NewestMessages()
    words = [stored(5), stored(5), stored(4), stored(1, incarnation=2), stored(6, incarnation=1)]

    assert [accepted(newest, word) for word in words] == [True, True, False, True, False]


def test_each_hub_has_its_own_order() -> None:
    """The confirmations of one hub are independent of another's."""
    newest = NewestMessages()

    assert [accepted(newest, stored(s, node=hub)) for s, hub in ((9, "a"), (1, "b"), (8, "a"))] == [True, True, False]


def test_a_cleared_subject_starts_over() -> None:
    """After a topic was cleared a low counter is accepted again."""
    newest = NewestMessages()
    accepted(newest, node_state(incarnation=9))
    newest.forget("channel", "n1")

    assert accepted(newest, node_state(incarnation=1))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans())))
def test_accepted_messages_only_rise(stamps: list[tuple[int, int, bool]]) -> None:
    """In any order of arrival (incarnation, sequence) of what is accepted never falls, and the newest is accepted."""
    newest = NewestMessages()
    taken = [(i, s) for i, s, retained in stamps if accepted(newest, node_state(incarnation=i, sequence=s), retained)]

    assert taken == sorted(taken)
    assert not stamps or taken[-1] == max((i, s) for i, s, _ in stamps)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from([0, 1, 30, 59, 60, 61, 600]))))
def test_what_is_accepted_falls_only_after_a_silence(stamps: list[tuple[int, int, int]]) -> None:
    """
    However long it takes: within an incarnation never, to a lower one only after a minute without a message of the
    higher one.
    """
    newest = NewestMessages()
    now_s = received_s = 0
    last = (0, -1)
    for incarnation, sequence, pause_s in stamps:
        now_s += pause_s
        freshness = classified(newest, node_state(incarnation=incarnation, sequence=sequence), now_ns=now_s * NS_PER_S)
        is_lower, was_silent = incarnation < last[0], now_s - received_s >= 60

        assert (freshness is Freshness.RESTARTED) == (is_lower and was_silent)
        assert (freshness is Freshness.NEWER) == ((incarnation, sequence) > last)
        if incarnation == last[0] or freshness is not Freshness.OUTDATED:
            received_s = now_s
        if freshness is not Freshness.OUTDATED:
            last = (incarnation, sequence)


@pytest.mark.parametrize(
    ("message", "lower", "silent_after_ns"),
    [
        (node_state(incarnation=9), node_state(incarnation=8), SILENT_AFTER_NS),
        (stored(1, incarnation=9), stored(7, incarnation=8), HUB_SILENT_AFTER_NS),
    ],
)
def test_a_lower_incarnation_comes_back_after_a_silence(message: Message, lower: Message, silent_after_ns: int) -> None:
    """The higher one came from a wrong clock, or its store is lost: its node must not be silenced for ever."""
    newest = NewestMessages()
    accepted(newest, message)

    assert classified(newest, lower, now_ns=silent_after_ns - 1) is Freshness.OUTDATED
    assert classified(newest, lower, now_ns=silent_after_ns) is Freshness.RESTARTED
    assert accepted(newest, message, now_ns=silent_after_ns)


def test_a_second_copy_shows_that_its_daemon_is_alive() -> None:
    """As long as anything of an incarnation comes, a lower one is its past."""
    newest = NewestMessages()
    seconds = (0, 50, 100)
    came = [accepted(newest, node_state(incarnation=9), now_ns=second * NS_PER_S) for second in seconds]

    assert came == [True, False, False]
    assert not accepted(newest, node_state(incarnation=8), now_ns=159 * NS_PER_S)


def test_our_own_absence_does_not_count_as_silence() -> None:
    """After a reconnection an old message is old until the living nodes have had the time to publish."""
    newest = NewestMessages()
    accepted(newest, node_state(incarnation=9))
    newest.connected(900 * NS_PER_S)

    assert not accepted(newest, node_state(incarnation=8), now_ns=901 * NS_PER_S)
    assert accepted(newest, node_state(incarnation=8), now_ns=960 * NS_PER_S)


def test_a_silent_sender_is_forgotten() -> None:
    """The memory is bounded by the nodes that publish now, not by all names ever received."""
    newest = NewestMessages()
    for number in range(100):
        accepted(newest, grandmaster(f"n{number}", 1, 1))
        accepted(newest, node_state(f"n{number}"))
    accepted(newest, node_state("n7", sequence=2), now_ns=EXPIRE_AFTER_NS // 2)
    accepted(newest, marks(1), now_ns=EXPIRE_AFTER_NS)

    assert {subject for _, subject in newest._last} == {"n7", "n1"}
    assert not accepted(newest, node_state("n7", sequence=1), now_ns=EXPIRE_AFTER_NS)


def test_the_oldest_subjects_give_way_and_their_next_message_counts() -> None:
    """A client that may write every topic invents subjects without end; a node that reports stays in order."""
    newest = NewestMessages(most=3)
    for number in range(100):
        assert accepted(newest, node_state("n1", sequence=number + 1))
        assert accepted(newest, node_state(f"x{number}"))

    assert len(newest) == 3
    assert not accepted(newest, node_state("n1", sequence=100))
    assert accepted(newest, node_state("x0"))


def test_states_to_compare_are_bounded_in_bytes() -> None:
    """Beyond that the oldest states are decoded again; their order stays."""
    newest = NewestMessages(most_bytes=2_000)
    payloads = [node_state(f"n{number}").model_dump_json().encode() for number in range(4)]
    for number, payload in enumerate(payloads):
        accepted(newest, node_state(f"n{number}"))
        newest.keep("channel", node_state(f"n{number}"), payload)
    later = [payload.replace(b'"sequence":1', b'"sequence":2') for payload in payloads]

    compared = [newest.repeated("channel", f"n{number}", each, 1) is not None for number, each in enumerate(later)]
    assert compared == [False, False, True, True]
    assert not accepted(newest, node_state("n0"))
    newest.forget("channel", "n3")
    assert (len(newest), accepted(newest, node_state("n3"))) == (3, True)


def test_a_flood_leaves_no_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those without a message for a minute are forgotten; what goes on reporting stays in order."""
    monkeypatch.setattr(inbox, "FEW_ORDERS", 3)
    newest = NewestMessages()
    for number in range(10):
        accepted(newest, node_state(f"x{number}"), now_ns=number)
    accepted(newest, node_state("n1"), now_ns=10 * NS_PER_S)
    before = len(newest)
    accepted(newest, node_state("n1", sequence=2), now_ns=SILENT_AFTER_NS + 10 * NS_PER_S)

    assert (before, len(newest)) == (11, 1)
    assert not accepted(newest, node_state("n1", sequence=2), now_ns=SILENT_AFTER_NS + 10 * NS_PER_S)


def test_a_flood_that_no_message_follows_leaves_no_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    """The silence after it is no reason to keep what it left: time alone forgets it."""
    monkeypatch.setattr(inbox, "FEW_ORDERS", 3)
    newest = NewestMessages()
    for number in range(10):
        accepted(newest, node_state(f"x{number}"), now_ns=number)
    newest.sweep(10 * NS_PER_S)
    before = len(newest)
    newest.sweep(SILENT_AFTER_NS + 20 * NS_PER_S)

    assert (before, len(newest)) == (10, 0)
