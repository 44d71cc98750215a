"""What a daemon reports of names that the broker delivered and for which it has no room."""

from __future__ import annotations

import logging

import pytest
from grandmaster_states import follower
from wire import grandmaster, hub_state, node_state

from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.config import HubSettings
from timesyncd.daemon import hub_service, remote_state
from timesyncd.daemon.hub_service import HubService
from timesyncd.daemon.refused_names import REPORTED_EVERY_NS, RefusedCount, RefusedNames
from timesyncd.daemon.remote_state import GRANDMASTER_EXPIRES_NS, RemoteStates
from timesyncd.fleet.admission import MEMBER_AFTER_NS
from timesyncd.hub.hub import GONE_AFTER_NS, MAX_HUBS, Primary

START = Moment(realtime_ns=0, boottime_ns=1_000 * NS_PER_S)


def test_a_flood_is_one_line_a_minute_and_one_finding(caplog: pytest.LogCaptureFixture) -> None:
    """The finding begins at the first refused name and ends when a minute brought none."""
    names, found = RefusedNames(), []
    with caplog.at_level(logging.WARNING):
        for second in range(200):
            count = min(100 * second, 9_000)
            found.append(names.evidence({"nodes": RefusedCount(count, f"x{count}")}, second * NS_PER_S))

    assert found[0] is None and "100 of nodes (last: x100)" in str(found[1])
    assert "6,000 of nodes (last: x6100)" in str(found[61])
    assert found[121] is not None and found[181:] == [None] * 19
    assert len(caplog.records) == 3


def test_a_kind_that_grew_is_named_alone() -> None:
    """Counts of former minutes are no news."""
    names = RefusedNames()
    names.evidence({"nodes": RefusedCount(5, "a"), "jobs": RefusedCount(0, None)}, 0)
    evidence = names.evidence({"nodes": RefusedCount(5, "a"), "jobs": RefusedCount(1, "j")}, REPORTED_EVERY_NS)

    assert evidence is not None
    assert evidence.endswith("refused or dropped: 1 of jobs (last: j)")


def test_a_hub_forgets_invented_nodes_and_keeps_its_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a name that gave way is left, and a node of the fleet stays known with its follower and its clock."""
    monkeypatch.setattr(hub_service, "MAX_NODES", 3)
    hub = HubService(HubSettings(nodes=["expected"]), "hub", START, alone=False)
    at_ns = START.boottime_ns + MEMBER_AFTER_NS
    for now_ns, sequence in ((START.boottime_ns, 1), (at_ns, 2)):
        for node in ("expected", "n1"):
            assert hub.accept_node(follower(node, sequence=sequence), now_ns, live=True)
    for number in range(50):
        assert hub.accept_node(follower(f"x{number}"), at_ns, live=True)

    assert hub.hub.fleet.names() == ["expected", "n1", "x48", "x49"]
    assert {each.node for each in hub.followers(START)} == {"expected", "n1", "x48", "x49"}
    assert hub.refused["nodes"] == RefusedCount(48, "x47")


def test_a_hub_that_is_full_of_its_fleet_ignores_a_new_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state is refused and counted; a node that is named in hub.nodes has room."""
    monkeypatch.setattr(hub_service, "MAX_NODES", 1)
    hub = HubService(HubSettings(nodes=["expected"]), "hub", START, alone=False)
    for now_ns, sequence in ((START.boottime_ns, 1), (START.boottime_ns + MEMBER_AFTER_NS, 2)):
        hub.accept_node(node_state("n1", sequence=sequence), now_ns, live=True)

    assert not hub.accept_node(node_state("n2"), START.boottime_ns + MEMBER_AFTER_NS, live=True)
    assert hub.accept_node(node_state("expected"), START.boottime_ns + MEMBER_AFTER_NS, live=True)
    assert hub.hub.fleet.names() == ["expected", "n1"]


def test_grandmasters_are_bounded_and_those_known_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict that gave way to an invented grandmaster's would make bounds too small."""
    monkeypatch.setattr(remote_state, "MAX_GRANDMASTERS", 2)
    monkeypatch.setattr(remote_state, "MAX_GRANDMASTER_BYTES", 100)
    remote, now_ns = RemoteStates(), START.boottime_ns
    one, two, three = (grandmaster("p", 1, 1).model_copy(update={"name": name}) for name in ("a", "b", "c"))

    assert remote.update(one, now_ns, 60) and not remote.update(two, now_ns, 41) and remote.update(two, now_ns, 40)
    assert not remote.update(three, now_ns, 0) and not remote.update(one, now_ns, 61)
    assert [each.name for each in remote.grandmasters(START)] == ["a", "b"]
    assert remote.refused["grandmasters"] == RefusedCount(3, "a")
    later = START.at_boottime(now_ns + GRANDMASTER_EXPIRES_NS)
    assert remote.grandmasters(later) == [] and remote.update(three, later.boottime_ns, 100)


def test_hubs_are_bounded_until_others_are_gone() -> None:
    """Invented hubs keep no hub from being known that was before."""
    primary = Primary("z")
    for number in range(MAX_HUBS):
        assert primary.accept(hub_state(f"h{number:02d}", 1, 1), 0, live=True)

    assert not primary.accept(hub_state("x", 1, 1), 0, live=True)
    assert primary.accept(hub_state("h00", 1, 2), 1, live=True)
    assert [each.node for each in primary.alive(GONE_AFTER_NS)] == ["h00"]
    assert primary.accept(hub_state("x", 1, 1), GONE_AFTER_NS, live=True)
