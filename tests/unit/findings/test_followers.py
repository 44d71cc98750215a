"""Nodes in short, as the rules about grandmasters see them, and how they age."""

from __future__ import annotations

import sys

import pytest
from grandmaster_states import GM_A, NIGHT_NS, follower, source

from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.daemon.remote_state import aged_state
from timesyncd.findings.followers import Followers
from timesyncd.messages.node import NodeState

CAME_NS = 1_000 * NS_PER_S


def state() -> NodeState:
    """Published just now, with a sample of a second ago."""
    return follower(sources=[source(age_ns=NS_PER_S)], age_ns=NS_PER_S, published_realtime_ns=NIGHT_NS)


@pytest.mark.parametrize(
    ("boot_s", "real_s"), [(0, 0), (3, 3), (4, 4), (998, 998), (999, 999), (1, 30), (30, 1)]
)  # fmt: skip
def test_it_ages_as_the_whole_state_does(boot_s: int, real_s: int) -> None:
    """In status and sources, by the larger of the time since it came and since it was published."""
    followers = Followers()
    followers.update(state(), CAME_NS)
    now = Moment(realtime_ns=NIGHT_NS + real_s * NS_PER_S, boottime_ns=CAME_NS + boot_s * NS_PER_S)
    [short] = followers.at(now.boottime_ns, now.realtime_ns)
    whole = aged_state(state(), CAME_NS, now)

    assert (short.node, short.status) == (whole.node, whole.status)
    assert [each.age_ns for each in short.sources] == [each.age_ns for each in whole.sources]
    assert short.sources[0].grandmaster_identity == GM_A


def test_a_node_that_knows_nothing_stays_so() -> None:
    """Without a bound there is nothing that ages."""
    followers = Followers()
    followers.update(follower(status="UNKNOWN", age_ns=None, sources=[]), CAME_NS)

    assert [each.status for each in followers.at(CAME_NS + 10**15, NIGHT_NS)] == ["UNKNOWN"]


def test_the_newest_state_counts_until_the_node_is_removed() -> None:
    """One entry a node."""
    followers = Followers()
    for status in ("SYNCHRONIZED", "UNKNOWN"):
        followers.update(state().model_copy(update={"status": status}), CAME_NS)
    known = [each.status for each in followers.at(CAME_NS, NIGHT_NS)]
    followers.remove(state().node)

    assert known == ["UNKNOWN"]
    assert followers.at(CAME_NS, NIGHT_NS) == []


def test_equal_texts_of_many_nodes_are_kept_once() -> None:
    """Ten thousand nodes follow a few grandmasters: their identity is one object."""
    followers = Followers()
    for name in ("n1", "n2"):
        identity = "".join([GM_A[:4], GM_A[4:]])
        followers.update(state().model_copy(update={"node": name, "sources": [source(identity)]}), CAME_NS)
    one, other = followers.at(CAME_NS, NIGHT_NS)

    assert one.sources[0].grandmaster_identity is other.sources[0].grandmaster_identity
    assert one.sources[0].grandmaster_identity is sys.intern(GM_A)
