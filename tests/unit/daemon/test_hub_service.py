"""Two hubs at work beside each other: what each of them publishes, and which is primary."""

from __future__ import annotations

from typing import Any

import pytest
from batches import batch, mark
from grandmaster_states import GM_A, follower
from wire import node_state

from timesyncd.bound import Reason
from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.config import HubSettings
from timesyncd.daemon.hub_service import EXPIRES_AFTER_NS, HubService
from timesyncd.hub.barrier_plan import VERSIONS_SKIPPED
from timesyncd.hub.hub import GONE_AFTER_NS, LISTEN_NS
from timesyncd.messages.jobs import JobState
from timesyncd.model.grandmaster import Invalidation

START = Moment(realtime_ns=1_700_001_000 * NS_PER_S, boottime_ns=1_000 * NS_PER_S)


def after(seconds: float) -> Moment:
    since_ns = int(seconds * NS_PER_S)
    return START.at_boottime(START.boottime_ns + since_ns)


class Pair:
    """
    Hubs a and b, each second: what one publishes the other receives, unless it is dead. `published` holds (second, hub,
    job state), `cleared` (second, hub) of each job that is over. Of `nodes` that speak the clocks are known, so that
    barriers can be timed. Marks end at `marks_until_s`.
    """

    def __init__(self, dead_from_s: dict[str, int], nodes: tuple[str, ...] = (), marks_until_s: int = 10**9) -> None:
        settings = HubSettings(nodes=["node-0", "node-1"])
        self.services = {name: HubService(settings, name, START, alone=False) for name in ("a", "b")}
        self.published: list[tuple[int, str, JobState]] = []
        self.findings: dict[str, list[str]] = {}
        self.cleared: list[tuple[int, str]] = []
        self._dead_from_s = dead_from_s
        self._nodes = nodes
        self._marks_until_s = marks_until_s

    def run(self, seconds: int) -> None:
        for second in range(seconds):
            for name, service in self.services.items():
                if second < self._dead_from_s.get(name, seconds):
                    self._round(second, name, service)

    def _round(self, second: int, name: str, service: HubService) -> None:
        now = after(second)
        other = self.services["b" if name == "a" else "a"]
        for node in self._nodes:
            changes: dict[str, Any] = {
                "sequence": second,
                "boot_id": f"boot of {node}",
                "published_realtime_ns": now.realtime_ns,
            }
            service.accept_node(follower(node, **changes), now.boottime_ns, live=True)
        for rank in (0, 1) if second < self._marks_until_s else ():
            service.accept_marks(batch(rank, mark(second), sequence=second), now.boottime_ns)
        for job in service.advance(now, connected=True).jobs:
            if service.is_primary:
                self.published.append((second, name, job))
                other.accept_job(job, now, live=True)
        self.cleared += [(second, name) for _ in service.jobs_to_clear(now)]
        self.findings[name] = [id for id, _ in service.findings([], now)]
        if (state := service.state_if_due(now)) is not None:
            other.accept_hub(state, now.boottime_ns, live=True)


def test_one_hub_is_primary_and_the_other_takes_over() -> None:
    """
    The first by name is primary once it has listened; when it dies the other one is, and no step is published by both.
    """
    pair = Pair(dead_from_s={"a": 60})
    pair.run(100)
    speakers = {second: {name for at, name, _ in pair.published if at == second} for second, _, _ in pair.published}
    takes_over = min(second for second, names in speakers.items() if names == {"b"})

    assert all(len(names) == 1 for names in speakers.values())
    assert {name for second in range(10, 60) for name in speakers[second]} == {"a"}
    assert 60 + LISTEN_NS / NS_PER_S < takes_over <= 60 + GONE_AFTER_NS / NS_PER_S + 1


def test_a_plan_goes_on_from_where_the_other_hub_left_it() -> None:
    """
    Its version never goes back, and one version is one plan of either hub: a rank may receive it after the other hub's
    last state.
    """
    pair = Pair(dead_from_s={"a": 60}, nodes=("node-0", "node-1"))
    pair.run(100)
    plans = [job.plan for _, _, job in pair.published]
    versions = [plan.version for plan in plans]
    of_hub = {name: {job.plan.version for _, by, job in pair.published if by == name} for name in ("a", "b")}

    assert versions == sorted(versions)
    assert len(set(versions)) == len(set(plans))
    assert max(of_hub["a"]) > 0
    assert min(of_hub["b"]) == max(of_hub["a"]) + VERSIONS_SKIPPED


@pytest.mark.parametrize(
    ("dead_from_s", "cleared"),
    [({}, [(65, "a")]), ({"a": 60}, [(73, "b")]), ({"a": 60, "b": 70}, [])],
    ids=["by the primary", "by the one that takes over", "by no hub"],
)
def test_a_job_that_ended_is_cleared_once(dead_from_s: dict[str, int], cleared: list[tuple[int, str]]) -> None:
    """
    Also where the hub that would have done so died before: the broker would keep its copy for as long as it lives.
    """
    pair = Pair(dead_from_s, marks_until_s=6)
    pair.run(200)

    assert pair.cleared == cleared


def test_a_retained_job_state_does_not_count_and_is_cleared_in_time() -> None:
    """A single hub was down while the job ended; of a job that still runs, the ranks' marks arrive."""
    [job, *_] = _told_by_two()
    service = HubService(HubSettings(), "a", START, alone=False)
    accepted = [
        service.accept_job(job.model_copy(update={"job_id": id}), after(0), live=False) for id in (job.job_id, "over")
    ]
    cleared: list[tuple[int, str]] = []
    for second in range(90):
        for rank in (0, 1):
            service.accept_marks(batch(rank, mark(second), sequence=second), after(second).boottime_ns)
        service.advance(after(second), connected=True)
        cleared += [(second, id) for id in service.jobs_to_clear(after(second))]

    assert accepted == [False, False]
    assert cleared == [(60, "over")]


def test_a_job_state_counts_from_the_primary_hub() -> None:
    """
    A node receives two hubs' states while they change over: the first primary counts. Its own old state never does.
    """
    node = HubService(None, "n1", START, alone=False)
    [job, *_] = _told_by_two()
    first = node.accept_job(job.model_copy(update={"node": "b"}), after(0), live=True)
    for hub in ("b", "a"):
        state = HubService(HubSettings(), hub, START, alone=True)._state(after(0))
        node.accept_hub(state, after(0).boottime_ns, live=True)
    accepted = {
        name: node.accept_job(job.model_copy(update={"node": name}), after(1), live=True) for name in ("a", "b", "n1")
    }

    assert first
    assert accepted == {"a": True, "b": False, "n1": False}


def _told_by_two() -> list[JobState]:
    pair = Pair(dead_from_s={})
    pair.run(12)
    return [job for _, _, job in pair.published]


def test_both_hubs_judge_and_only_the_primary_publishes() -> None:
    """A standby that takes over knows at once what has held for long."""
    both, one = Pair(dead_from_s={}), Pair(dead_from_s={"a": 90})
    both.run(105)
    one.run(107)

    assert both.findings == {"a": ["hub-nodes-missing"], "b": []}
    assert one.findings["b"] == ["hub-nodes-missing"]


def test_without_a_broker_it_is_primary_at_once_and_lists_no_hub() -> None:
    """A daemon without a broker."""
    service = HubService(None, "n1", START, alone=True)
    service.advance(after(0), connected=True)

    assert (service.is_hub, service.is_primary, service.state_if_due(after(0)), service.hubs(after(0))) == (
        True,
        True,
        None,
        [],
    )


def test_a_daemon_that_is_no_hub_lists_the_hubs() -> None:
    """For clients that ask it for a hub's address."""
    node = HubService(None, "n1", START, alone=False)
    state = HubService(HubSettings(), "a", START, alone=True)._state(after(0))
    node.accept_hub(state, after(0).boottime_ns, live=True)

    assert not node.is_hub
    assert [hub.node for hub in node.hubs(after(1))] == ["a"]
    assert node.hubs(after(60)) == []


def test_a_retained_state_is_no_follower() -> None:
    """What a broker kept is of any age: no rule looks at it."""
    service = HubService(HubSettings(), "a", START, alone=False)
    service.accept_node(node_state("n1"), START.boottime_ns, live=False)
    before = service.followers(after(1))
    service.accept_node(node_state("n1"), START.boottime_ns, live=True)

    assert before == []
    assert [each.node for each in service.followers(after(1))] == ["n1"]


def test_a_node_that_left_expires_and_an_expected_one_does_not() -> None:
    """Else a machine that was taken away would leave the fleet's alignment unknown for ever."""
    service = HubService(HubSettings(nodes=["n2"]), "a", START, alone=False)
    for name in ("n1", "n2"):
        service.accept_node(node_state(name), START.boottime_ns, live=True)
    later = after(EXPIRES_AFTER_NS / NS_PER_S + 1)
    service.findings([], later)

    assert service.hub.fleet.names() == ["n2"]
    assert [each.node for each in service.followers(later)] == ["n2"]


def test_a_retained_state_decides_how_long_to_wait_for_a_node() -> None:
    """A node that publishes each minute is not missing after half of one."""
    service = HubService(HubSettings(nodes=["n1", "n2"]), "a", START, alone=True)
    seldom = follower("n1", published_realtime_ns=START.realtime_ns, every_ns=60 * NS_PER_S)
    service.accept_node(seldom, START.boottime_ns, live=False)
    published: list[dict[Any, Any]] = []
    for second in range(0, 60, 2):
        service.accept_node(follower("n2", sequence=second), after(second).boottime_ns, live=True)
        published.append(service.findings([], after(second)))

    assert published == [{}] * 30


def test_a_node_without_a_clock_source_is_not_on_the_map() -> None:
    """A mere hub would stand there as UNKNOWN for ever."""
    service = HubService(HubSettings(), "a", START, alone=False)
    service.accept_node(follower("n1"), START.boottime_ns, live=True)
    service.accept_node(
        node_state("a").model_copy(update={"age_ns": None, "sources": []}), START.boottime_ns, live=True
    )

    assert [[name for name, *_ in place] for place in service.map(after(0)).places.values()] == [["n1"]]


def test_a_grandmaster_s_event_invalidates_earlier_states_of_its_followers() -> None:
    """Their own daemons will publish the same; until then the hub rejects older states."""
    service = HubService(HubSettings(), "a", START, alone=True)
    for name in ("n1", "n2"):
        service.accept_node(follower(name, published_realtime_ns=START.realtime_ns), START.boottime_ns, live=True)
    before = service.alignment(None, None, after(1))
    service.invalidate([GM_A], Invalidation(1, after(1).boottime_ns, Reason.GRANDMASTER_JUMPED))
    since = service.alignment(None, None, after(1))

    assert before is not None and before.alignment_ns is not None
    assert since is not None and (since.alignment_ns, Reason.GRANDMASTER_JUMPED.text in since.reason) == (None, True)


def test_a_repeated_state_of_a_node_counts_once() -> None:
    """A broker delivers a message twice: neither the hub nor its findings take the second one for news."""
    service = HubService(HubSettings(nodes=["n1"]), "a", START, alone=True)
    service.accept_node(node_state("n1"), START.boottime_ns, live=True)
    before = service.hub.state(after(1), True, START.realtime_ns)
    service.accept_node(node_state("n1"), after(1).boottime_ns, live=True)

    assert service.hub.state(after(1), True, START.realtime_ns) == before
