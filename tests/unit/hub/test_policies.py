"""A job's policy in its plan: requested, configured, and kept by every hub that plans."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from batches import batch, mark
from fake_clocks import FakeClocks
from grandmaster_states import follower
from publisher_lab import PublisherLab
from wire import hub_state

from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.config import parse
from timesyncd.daemon.hub_service import REFUSAL_LOGGED_EVERY_NS, HubService
from timesyncd.daemon.node_state import NodeView
from timesyncd.driver import options_of
from timesyncd.hub.barrier_plan import VERSIONS_SKIPPED
from timesyncd.hub.hub import GONE_AFTER_NS, LISTEN_NS
from timesyncd.ipc.clock_segment import Epoch
from timesyncd.ipc.job_datagram import job_id
from timesyncd.ipc.job_segment import Plan
from timesyncd.messages.jobs import JobState, PolicyRequest

START = Moment(realtime_ns=1_700_001_000 * NS_PER_S, boottime_ns=1_000 * NS_PER_S)
TRAIN = job_id(1000, "train", 0)


def request(policy: str, uid: int = 1000, job: str = TRAIN, sequence: int = 1) -> PolicyRequest:
    return PolicyRequest(node="node-0", incarnation=1, sequence=sequence, uid=uid, job_id=job, policy=policy)


class JobRounds:
    """A hub, second by second, and the job `train` of user 1000 with a rank on each of two nodes, whose clocks are known."""

    def __init__(self, name: str = "a", alone: bool = True, **configured: str) -> None:
        self.service = HubService(None if alone else _settings(), name, START, alone, configured)
        self.plans: list[Plan] = []
        self.second = 0

    @property
    def now(self) -> Moment:
        since_ns = self.second * NS_PER_S
        return START.at_boottime(START.boottime_ns + since_ns)

    def request_policy(self, policy: str, uid: int = 1000) -> None:
        self.service.accept_request(request(policy, uid), self.now.boottime_ns)

    def round(self, *, pid: int = 10, with_clocks: bool = True) -> JobState:
        for rank in (0, 1):
            if with_clocks:
                published: dict[str, Any] = {"sequence": self.second, "published_realtime_ns": self.now.realtime_ns}
                published["boot_id"] = f"boot of node-{rank}"
                self.service.accept_node(follower(f"node-{rank}", **published), self.now.boottime_ns, live=True)
            self.service.accept_marks(
                batch(rank, mark(self.second), sequence=self.second, pid=pid), self.now.boottime_ns
            )
        (state,) = self.service.advance(self.now, connected=True).jobs
        self.plans.append(state.plan)
        self.second += 1
        return state

    def rounds(self, count: int, **how: Any) -> JobState:
        return [self.round(**how) for _ in range(count)][-1]


def _settings() -> Any:
    return parse({"node": {"name": "a"}, "hub": {}}, options_of, "test").hub


def policy_of(state: JobState) -> tuple[str, int]:
    return state.plan.policy, state.plan.policy_version


def test_what_a_user_asks_for_is_in_the_next_plan() -> None:
    """Each change counts, also back to what was there before; what is there already changes nothing."""
    rounds_of_job = JobRounds()
    published = [policy_of(rounds_of_job.round())]
    for requested in ("bsp", "local_sgd(h=8)", "local_sgd(h=8)", "bsp"):
        rounds_of_job.request_policy(requested)
        published.append(policy_of(rounds_of_job.round()))
        published.append(policy_of(rounds_of_job.round()))

    assert published == [("", 0)] + [("bsp", 1)] * 2 + [("local_sgd(h=8)", 2)] * 4 + [("bsp", 3)] * 2


def test_one_version_is_one_plan_whatever_changes() -> None:
    """Barriers that begin to be timed and cease, a new run, and a policy that changes at the same moments or between."""
    rounds_of_job = JobRounds()
    for number in range(6):
        rounds_of_job.rounds(12, with_clocks=number % 2 == 0, pid=10 + number // 4)
        rounds_of_job.request_policy(f"local_sgd(h={number + 1})")
    rounds_of_job.rounds(3)
    versions = [plan.version for plan in rounds_of_job.plans]

    assert versions == sorted(versions)
    assert len(set(versions)) == len(set(rounds_of_job.plans))
    assert {plan.mode for plan in rounds_of_job.plans} == {"plain", "timed"}
    assert rounds_of_job.plans[-1].policy_version == 6


def test_a_policy_outlives_the_run_that_it_was_asked_in() -> None:
    """The same job after a restart has it again."""
    rounds_of_job = JobRounds()
    rounds_of_job.round()
    rounds_of_job.request_policy("bsp")
    rounds_of_job.round()
    again = rounds_of_job.rounds(5, pid=77)

    assert again.run == 1
    assert policy_of(again) == ("bsp", 1)


def test_the_configuration_s_policy_is_there_from_the_first_plan() -> None:
    """For the jobs of that name alone; a user's word comes after it, and a plan that has one is not gone over again."""
    rounds_of_job = JobRounds(train="asp")
    published = [policy_of(rounds_of_job.round())]
    rounds_of_job.request_policy("bsp")
    published += [policy_of(rounds_of_job.round()), policy_of(rounds_of_job.round())]

    assert published == [("asp", 1), ("bsp", 2), ("bsp", 2)]
    assert policy_of(JobRounds(other="asp").round()) == ("", 0)


@pytest.mark.parametrize(
    ("requested", "refused"),
    [
        (request("bsp", uid=1000), ""),
        (request("bsp", uid=0), ""),
        (
            request("bsp", uid=1001),
            "user 1001 on node-0 requested bsp for job 'train' of user 1000; only that user and user 0 may",
        ),
        (request("bsp", job="0" * 16), "no job 0000000000000000 sends marks to this hub"),
    ],
    ids=["its user", "root", "another user", "no such job"],
)
def test_only_its_user_and_root_change_a_job(
    requested: PolicyRequest, refused: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No other user, and no unknown job; the log states what was refused, and why."""
    rounds_of_job = JobRounds()
    rounds_of_job.round()
    with caplog.at_level(logging.WARNING):
        rounds_of_job.service.accept_request(requested, rounds_of_job.now.boottime_ns)
    state = rounds_of_job.round()

    assert policy_of(state) == (("", 0) if refused else ("bsp", 1))
    assert [record.getMessage() for record in caplog.records] == (
        [f"policy request refused: {refused}"] if refused else []
    )


def test_a_flood_of_refused_requests_is_a_line_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    """Anybody may ask, and the log belongs to all."""
    rounds_of_job = JobRounds()
    rounds_of_job.round()
    with caplog.at_level(logging.WARNING):
        for tenth in range(200):
            at_ns = START.boottime_ns + tenth * REFUSAL_LOGGED_EVERY_NS // 100
            rounds_of_job.service.accept_request(request("bsp", uid=1001), at_ns)

    assert len(caplog.records) == 2


def test_a_hub_that_takes_over_keeps_the_policy() -> None:
    """Also where its own configuration names another; then a change continues the count."""
    first, second = JobRounds("a"), JobRounds("b", alone=False, train="asp")
    first.round()
    first.request_policy("local_sgd(h=8)")
    received = first.round()
    published = []
    for _ in range(LISTEN_NS // NS_PER_S + 3):
        if not second.service.is_primary:
            second.service.accept_job(received, second.now, live=True)
        published.append(policy_of(second.round()))
    took_over = second.plans[-1]
    second.request_policy("bsp")
    changed = second.round().plan

    assert second.service.is_primary
    assert set(published) == {("local_sgd(h=8)", 1)}
    assert took_over.version == received.plan.version + VERSIONS_SKIPPED
    assert (changed.policy, changed.policy_version, changed.version) == ("bsp", 2, took_over.version + 1)


def test_a_hub_that_does_not_speak_does_nothing_about_it(caplog: pytest.LogCaptureFixture) -> None:
    """Nor later, when it becomes primary: the sender has long stopped repeating. The primary hub logs a refusal."""
    standby = JobRounds("b", alone=False)
    standby.round()
    standby.request_policy("bsp")
    standby.request_policy("bsp", uid=1001)
    published = {policy_of(standby.round()) for _ in range(LISTEN_NS // NS_PER_S + 3)}

    assert standby.service.is_primary
    assert published == {("", 0)}
    assert caplog.records == []


def test_what_a_hub_was_asked_for_as_it_ceased_to_speak_is_forgotten() -> None:
    """When it becomes primary again, hours later maybe, the request is obsolete."""
    hub = JobRounds("b", alone=False)
    hub.rounds(LISTEN_NS // NS_PER_S + 3)
    spoke = hub.service.is_primary
    hub.request_policy("bsp")
    hub.service.accept_hub(hub_state("a"), hub.now.boottime_ns, live=True)
    hub.round()
    ceased = not hub.service.is_primary
    hub.rounds(GONE_AFTER_NS // NS_PER_S + LISTEN_NS // NS_PER_S)

    assert (spoke, ceased, hub.service.is_primary) == (True, True, True)
    assert {plan.policy for plan in hub.plans} == {""}


@pytest.mark.parametrize(("live", "policy"), [(True, "bsp"), (False, "")])
def test_a_request_off_the_broker_counts_once(live: bool, policy: str) -> None:
    """A retained copy on the broker would arrive again with each connection."""
    clocks = FakeClocks(START.realtime_ns, START.boottime_ns)
    config = parse({"node": {"name": "b"}}, options_of, "test")
    hub = PublisherLab(config, NodeView(config, Epoch(1, 2), 1), clocks)
    for rank in (0, 1):
        hub.service.accept_marks(batch(rank, mark(1)), clocks.boottime_ns())
    hub.publisher.tick()
    hub.publisher.receive(request("bsp"), clocks.boottime_ns(), live=live)
    hub.publisher.tick()

    assert [job.plan.policy for job in hub.publisher.own_jobs] == [policy]
