"""Which of several hubs owns a key, and which hubs share."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from timesyncd.clocks import NS_PER_S
from timesyncd.fleet.ownership import (
    GONE_AFTER_NS,
    LISTEN_NS,
    PAUSED_AFTER_NS,
    SETTLED_AFTER_NS,
    STATE_EVERY_NS,
    Ownership,
    job_key,
    owner,
    share_key,
)
from timesyncd.ipc.job_datagram import JOB_PARTS, job_id, job_part
from timesyncd.messages.fleet import HubState

KEYS = [f"hall-1/rack-{number:03d}" for number in range(2_000)]
NAMES = st.lists(st.text("abc-0123", min_size=1, max_size=8), min_size=1, max_size=8, unique=True)


def hub_state(name: str, shares: bool = True) -> HubState:
    numbers = {"nodes_live": 0, "nodes_known": 0, "nodes_expected": 0, "primary": shares, "shares": shares}
    return HubState.model_validate(
        {"node": name, "incarnation": 1, "sequence": 1, "published_realtime_ns": 0, "started_realtime_ns": 0} | numbers
    )


@given(NAMES, st.lists(st.text(max_size=20), max_size=30))
def test_one_hub_owns_a_key_in_whatever_order_hubs_are_named(hubs: list[str], keys: list[str]) -> None:
    """Every daemon computes the same owner, without asking another."""
    assert [owner(key, hubs) for key in keys] == [owner(key, hubs[::-1]) for key in keys]
    assert all(owner(key, hubs) in hubs for key in keys)
    assert owner("any", []) is None


@given(NAMES, st.text(max_size=20))
def test_only_the_keys_of_a_hub_that_leaves_move(hubs: list[str], key: str) -> None:
    """And a hub that joins takes keys to itself alone."""
    without = [hub for hub in hubs if hub != hubs[0]]
    before, after = owner(key, hubs), owner(key, without)

    assert before == after or before == hubs[0]


def test_shares_are_about_equal() -> None:
    """Of 2,000 racks each of four hubs has a quarter, within a tenth of it and a half."""
    counts = Counter(owner(key, ("hub-a", "hub-b", "hub-c", "hub-d")) for key in KEYS)

    assert all(425 < count < 575 for count in counts.values())


@given(NAMES, st.lists(st.text(min_size=1, max_size=20), max_size=30))
def test_a_job_s_marks_go_to_its_owner_alone(hubs: list[str], jobs: list[str]) -> None:
    """By the parts that the hubs subscribe to: each part has one hub, and a job's part the one that owns the job."""
    hubs, views = [f"h{name}" for name in hubs], {}
    for name in hubs:
        views[name] = Ownership(name)
        for now_ns in range(0, LISTEN_NS + NS_PER_S, NS_PER_S):
            for other in hubs:
                views[name].accept(hub_state(other), now_ns, live=True)
            views[name].advance(now_ns, connected=True)
    parts = {name: view.owned_parts() for name, view in views.items()}
    ids = [job_id(7, job, 0) for job in jobs]

    assert sorted(part for each in parts.values() for part in each) == sorted(JOB_PARTS)
    assert all(job_part(each) in parts[str(owner(job_key(each), hubs))] for each in ids)


def test_a_node_belongs_to_its_rack() -> None:
    """A topology that cannot be read without decoding the state does not count."""
    assert [share_key(each, "n1") for each in ("hall-1/rack-2", "", 'a"b', "ß")] == ["hall-1/rack-2", "n1", "n1", "n1"]


class Group:
    """Three hubs that receive each other's states in the same round."""

    def __init__(self) -> None:
        self.hubs = {name: Ownership(name) for name in ("a", "b", "c")}
        self.down: set[str] = set()
        self.now_ns = 0

    def run(self, for_ns: int) -> list[dict[str, int]]:
        """By round, how many of the keys each hub claims."""
        rounds = []
        for _ in range(for_ns // STATE_EVERY_NS):
            self.now_ns += STATE_EVERY_NS
            up = {name: hub for name, hub in self.hubs.items() if name not in self.down}
            for hub in up.values():
                hub.advance(self.now_ns, connected=True)
            for (name, sender), receiver in ((pair, hub) for pair in up.items() for hub in up.values()):
                receiver.accept(hub_state(name, sender.has_joined), self.now_ns, live=True)
            rounds.append({name: sum(map(hub.claims, KEYS)) for name, hub in up.items()})
            claimed = Counter(key for hub in up.values() for key in KEYS if hub.claims(key))
            assert not claimed or max(claimed.values()) == 1
        return rounds


def test_no_key_is_claimed_twice_while_hubs_join_and_leave() -> None:
    """Each is claimed again within six seconds of a hub's death; each round checks that no other hub claims it."""
    group = Group()
    joined = group.run(LISTEN_NS + SETTLED_AFTER_NS + 3 * NS_PER_S)[-1]
    group.down = {"b"}
    within = group.run(GONE_AFTER_NS + SETTLED_AFTER_NS + STATE_EVERY_NS)[-1]
    group.down = set()
    again = group.run(10 * NS_PER_S)[-1]

    assert sum(joined.values()) == sum(within.values()) == sum(again.values()) == len(KEYS)
    assert (set(within), again) == ({"a", "c"}, joined)


def test_a_hub_that_paused_claims_nothing_until_it_has_listened() -> None:
    """Others may have taken its share meanwhile: what it claims by its old view would be claimed twice."""
    hub = Ownership("a")
    for now_ns in range(0, 10 * NS_PER_S, NS_PER_S):
        hub.advance(now_ns, connected=True)
    before = hub.claims("any")
    hub.advance(9 * NS_PER_S + PAUSED_AFTER_NS, connected=True)

    assert (before, hub.has_joined, hub.claims("any")) == (True, False, False)


def test_a_hub_without_its_broker_leaves() -> None:
    """It receives nothing, and the others count it as gone."""
    hub = Ownership("a")
    for now_ns in range(0, 20 * NS_PER_S, NS_PER_S):
        hub.advance(now_ns, connected=now_ns < 10 * NS_PER_S)

    assert (hub.has_joined, hub.members) == (False, ())


def test_a_retained_state_and_a_hub_that_does_not_share_are_no_members() -> None:
    """A retained copy is of any age."""
    hub = Ownership("n1")
    hub.accept(hub_state("a"), 0, live=False)
    hub.accept(hub_state("b", shares=False), 0, live=True)
    hub.observe(0)

    assert (hub.members, hub.owner("any")) == ((), None)
