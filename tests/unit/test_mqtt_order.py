"""Newest wins, by (node, incarnation, sequence)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from wire import finding, grandmaster, node_state

from timesyncd.messages import Availability, Message
from timesyncd.mqtt.order import Newest
from timesyncd.mqtt.topics import subject_of


def accepted(newest: Newest, message: Message, retained: bool = False, node: str = "n1") -> bool:
    return newest.accept("channel", subject_of(message, node), message, retained)


def test_an_older_sequence_is_not_news() -> None:
    """Within one incarnation only a higher sequence is accepted, and a copy is not."""
    newest = Newest()

    assert [accepted(newest, node_state(sequence=s)) for s in (5, 4, 5, 6)] == [True, False, False, True]


def test_a_restart_never_looks_old() -> None:
    """A higher incarnation wins whatever its sequence, and the former incarnation does not come back."""
    newest = Newest()
    states = [node_state(incarnation=i, sequence=s) for i, s in ((1, 900), (2, 0), (1, 901))]

    assert [accepted(newest, state) for state in states] == [True, True, False]


def test_a_live_message_is_news_after_its_retained_copy() -> None:
    """The retained copy was only last known; it is no news after the live message."""
    newest = Newest()
    state = node_state()

    assert [accepted(newest, state, retained) for retained in (True, False, True)] == [True, True, False]


def test_each_publisher_has_its_own_order() -> None:
    """Two daemons that poll one grandmaster do not outdate each other."""
    newest = Newest()
    states = [grandmaster("hub-a", 7, 100), grandmaster("hub-b", 1, 1), grandmaster("hub-b", 1, 1)]

    assert [accepted(newest, state) for state in states] == [True, True, False]


def test_each_subject_has_its_own_order() -> None:
    """One node's counters say nothing of another's."""
    newest = Newest()

    assert accepted(newest, node_state("n1", 9, 9))
    assert accepted(newest, node_state("n2", 1, 1))


def test_the_later_word_on_availability_counts() -> None:
    """Online and offline alternate within an incarnation; the will of a former one is too late."""
    newest = Newest()
    words = [(True, 2), (False, 2), (True, 2), (False, 1)]

    assert [accepted(newest, Availability(online=o, incarnation=i)) for o, i in words] == [True, True, True, False]


def test_a_finding_has_no_order() -> None:
    """An event is always news."""
    newest = Newest()

    assert all(accepted(newest, finding()) for _ in range(2))


def test_a_forgotten_subject_begins_anew() -> None:
    """After a topic was cleared a low counter is accepted again."""
    newest = Newest()
    accepted(newest, node_state(incarnation=9))
    newest.forget("channel", "n1")

    assert accepted(newest, node_state(incarnation=1))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans())))
def test_accepted_messages_only_rise(stamps: list[tuple[int, int, bool]]) -> None:
    """In any order of arrival (incarnation, sequence) of what is accepted never falls, and the newest is accepted."""
    newest = Newest()
    taken = [(i, s) for i, s, retained in stamps if accepted(newest, node_state(incarnation=i, sequence=s), retained)]

    assert taken == sorted(taken)
    assert not stamps or taken[-1] == max((i, s) for i, s, _ in stamps)
