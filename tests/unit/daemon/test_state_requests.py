"""How often a daemon answers hubs that request its states, and how often a hub requests them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from timesyncd.clocks import NS_PER_S
from timesyncd.daemon.state_requests import (
    ANSWER_EVERY_NS,
    ANSWER_WITHIN_NS,
    REQUEST_EVERY_NS,
    RequestedStates,
    RequestLimit,
)

ROUND_NS = NS_PER_S


def answers(requests: dict[int, float], rounds: int) -> list[int]:
    """The rounds, one a second, in which a daemon answers; `requests`: the jitter, by the round before which one came."""
    states, found = RequestedStates(), []
    for number in range(rounds):
        if number in requests:
            states.request(number * ROUND_NS - ROUND_NS // 2, requests[number])
        if states.is_due(number * ROUND_NS):
            states.published(number * ROUND_NS)
            found.append(number)
    return found


@given(st.dictionaries(st.integers(0, 99), st.floats(0, 1)))
def test_a_flood_of_requests_is_answered_seldom_and_none_is_refused(requests: dict[int, float]) -> None:
    """An honest hub gets its answer although another client floods the topic, and the flood multiplies nothing."""
    found = answers(requests, 150)
    longest = (ANSWER_EVERY_NS + ANSWER_WITHIN_NS) // ROUND_NS + 1

    assert all(later - earlier >= ANSWER_EVERY_NS // ROUND_NS for earlier, later in pairwise(found))
    assert all(any(came <= number <= came + longest for number in found) for came in requests)


def test_a_request_is_answered_within_its_jitter() -> None:
    """So a fleet's answers are spread, and the first request after a quiet time does not wait."""
    assert [answers({5: jitter}, 20) for jitter in (0.0, 0.4, 1.0)] == [[5], [5], [6]]


def test_states_that_are_published_anyway_answer_a_request() -> None:
    """A daemon whose states are due within a second need not publish them twice."""
    states = RequestedStates()
    states.request(0, jitter=1.0)
    states.published(ROUND_NS // 2)

    assert not states.is_due(2 * ROUND_NS)


def test_states_that_nobody_requested_delay_no_answer() -> None:
    """A hub that connects right after a periodic state has not received that one."""
    states = RequestedStates()
    states.published(0)
    states.request(1, jitter=0.0)

    assert states.is_due(1)


def test_a_hub_whose_connection_flaps_requests_seldom() -> None:
    """Each request has every daemon of the fleet publish."""
    limit = RequestLimit()
    allowed = [limit.allows(at_ns) for at_ns in (0, 1, REQUEST_EVERY_NS - 1, REQUEST_EVERY_NS)]

    assert allowed == [True, False, False, True]
