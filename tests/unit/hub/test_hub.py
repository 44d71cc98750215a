"""The hub: node states and marks in, signals out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count, groupby
from typing import Literal

import pytest
from batches import MS, NOW, REAL_MINUS_BOOT, batch, mark
from node_states import node_state

from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.config import HubSettings
from timesyncd.findings.catalogue import Judgement
from timesyncd.hub.barrier_plan import STEPS_AHEAD, VERSIONS_SKIPPED
from timesyncd.hub.hub import MAX_RECEIVED_PLANS, Hub
from timesyncd.ipc.job_datagram import Kind, job_id
from timesyncd.ipc.job_segment import Plan
from timesyncd.messages.jobs import VerdictCode


def fed_hub(
    slow_ns: int, steps: int = 100, nodes: Sequence[str] = ("node-0", "node-1"), hub_name: str = "node-0"
) -> Hub:
    hub = Hub(HubSettings(nodes=["node-0", "node-1"]), hub_name)
    for name in nodes:
        hub.accept_node(node_state(name), NOW, live=True)
    for n in range(steps):
        hub.accept_marks(batch(0, mark(n), sequence=n), NOW)
        hub.accept_marks(batch(1, mark(n, slow_ns), sequence=n), NOW)
    return hub


def test_a_job_gets_its_signals() -> None:
    """Overhead, waits, skew with its error, the slow rank and the alignment come out of one round."""
    (state,) = fed_hub(slow_ns=6 * MS).advance(NOW, 7).jobs

    assert (state.job_id, state.published_realtime_ns, state.step) == (job_id(1000, "train", 0), 7, 99)
    assert state.sync_overhead == pytest.approx((10 + 4) / 200, rel=1e-3)
    assert (state.arrival_skew_ns, state.arrival_skew_p50_ns, state.transfer_p50_ns) == (6 * MS, 6 * MS, 4 * MS)
    assert state.arrival_skew_error_ns == 200_000 + 1_000 + (10 + 4) * MS // 2_000
    assert (state.last_rank, state.straggler_rank) == (1, 1)
    assert [(rank.node, rank.wait_p50_ns) for rank in state.ranks] == [("node-0", 6 * MS), ("node-1", 0)]
    assert (state.alignment_ns, state.alignment_growth_ppb) == (200_000, 100_000)
    assert state.verdict == (
        "rank 1 (node-1) is late before barrier 0: 6.00 ms after the median rank; it cost 600 ms in the window"
    )
    assert state.verdict_code is VerdictCode.STRAGGLER


def test_a_rare_cause_is_in_the_verdict() -> None:
    """Rank 0 pauses 80 ms in every 20th of 99 steps: no rank is late persistently, and these steps hold all waiting."""
    hub = fed_hub(slow_ns=0, steps=0)
    for n in range(99):
        late_ns = 80 * MS if n % 20 == 19 else 0
        for rank in (0, 1):
            hub.accept_marks(batch(rank, mark(n, late_ns * (rank == 0), 10 * MS + late_ns), sequence=n), NOW)
    (state,) = hub.advance(NOW, 0).jobs

    assert (state.straggler_rank, state.verdict_code) == (None, VerdictCode.SKEW_WITHIN_CLOCK_ERROR)
    assert state.verdict.endswith("; 4 of 99 steps hold 100 % of the waiting, for rank 0, 80.0 ms each, every 20 steps")


def test_the_barrier_after_a_collective_does_not_hide_the_late_rank() -> None:
    """The step's widest sync speaks for the newest step too: a barrier behind an all-reduce finds the ranks level."""
    hub = fed_hub(slow_ns=6 * MS, steps=1)
    for rank in (0, 1):
        hub.accept_marks(batch(rank, mark(0, 20 * MS, 21 * MS, sync=1), sequence=2), NOW)
    (state,) = hub.advance(NOW, 0).jobs

    assert (state.step, state.arrival_skew_ns, state.last_rank) == (0, 6 * MS, 1)


def test_without_one_rank_s_marks_no_rank_is_a_straggler() -> None:
    """Of three ranks, on untrusted clocks, one has lost its marks: it may be the late one."""
    hub = Hub(HubSettings(), "node-0")
    for n in range(100):
        for rank, marks in enumerate(([mark(n)], [mark(n, 6 * MS)], [])):
            hub.accept_marks(batch(rank, *marks, sequence=n, world_size=3, gm_bound_ns=None), NOW)
    hub.advance(NOW, 7)
    (state,) = hub.advance(NOW + 10 * NS_PER_S, 7).jobs

    assert (state.steps_complete, state.straggler_rank, state.stragglers) == (0, None, [])
    assert state.verdict == "inconclusive: no step has the marks of all 3 ranks yet"


def test_releases_are_judged_by_the_nodes_own_clocks() -> None:
    """Where lateness is compared by collective ends, the shifted ends of ranks that held to one instant are not equal."""
    hub = Hub(HubSettings(nodes=["node-0", "node-1"]), "node-0")
    for name in ("node-0", "node-1"):
        hub.accept_node(node_state(name), NOW, live=True)

    def slack_after(steps: range, duration_ns: int) -> int:
        for n in steps:
            for rank, moved_ns in enumerate((0, 7 * n % 1_500)):
                marked = mark(n, rank * MS // 10, duration_ns)
                epoch_ns = REAL_MINUS_BOOT + moved_ns
                one = batch(rank, marked, sequence=n, real_minus_boot_ns=epoch_ns, gm_bound_ns=900_000)
                hub.accept_marks(one, NOW)
        (state,) = hub.advance(NOW, 7).jobs
        assert (state.method, state.plan.mode) == ("collective_ends", "timed")
        return state.plan.slack_ns

    planned_ns = slack_after(range(100), MS // 5)

    assert slack_after(range(160, 260), 2 * MS) <= planned_ns


@pytest.mark.parametrize(("took_ms", "again_after_s"), [(50, 1), (100, 2), (700, 14)])
def test_a_window_that_takes_long_is_analysed_less_often(took_ms: int, again_after_s: int) -> None:
    """At most a twentieth of the time, whatever takes so long."""
    cpu_ns = count(0, took_ms * MS)
    hub = Hub(HubSettings(), "node-0", lambda: next(cpu_ns))
    observed = []
    for n in range(16):
        for rank in (0, 1):
            hub.accept_marks(batch(rank, mark(n), sequence=n), NOW)
        (state,) = hub.advance(NOW + n * NS_PER_S, 7).jobs
        observed.append(state.step)

    assert [step for step, _ in groupby(observed)] == list(range(0, 16, again_after_s))


def test_a_skew_within_the_error_names_no_rank() -> None:
    """A skew within the clocks' error is inconclusive, and the verdict states why."""
    (state,) = fed_hub(slow_ns=150_000).advance(NOW, 0).jobs

    assert (state.last_rank, state.straggler_rank) == (None, None)
    assert state.verdict == "inconclusive: the skew of 150 us is within the clocks' error of 211 us"
    assert state.verdict_code is VerdictCode.SKEW_WITHIN_CLOCK_ERROR


def test_a_message_s_way_counts() -> None:
    """One that was 1 s on its way is that old, whether or not the hub is a node whose own clock is watched."""
    (state,) = fed_hub(0, steps=1, hub_name="hub").advance(NOW, NS_PER_S + 7).jobs

    assert state.alignment_ns == 300_000


@pytest.mark.parametrize(("kind", "mode"), [(Kind.BARRIER, "timed"), (Kind.ALL_REDUCE, "plain")])
def test_only_barriers_plan_a_barrier(kind: Kind, mode: str) -> None:
    """The length of an all-reduce does not show that of rank 0's broadcast: a job without barriers gets no timed plan."""
    hub = fed_hub(0, steps=0)
    for n in range(20):
        for rank in (0, 1):
            hub.accept_marks(batch(rank, replace(mark(n), kind=kind), sequence=n), NOW)

    assert hub.advance(NOW, 0).jobs[0].plan.mode == mode


def test_alignment_names_the_node_that_was_never_seen() -> None:
    """A node that the configuration expects, and a job uses, is named when it never sent its state."""
    (state,) = fed_hub(0, nodes=["node-0"]).advance(NOW, 0).jobs

    assert state.alignment_ns is None
    assert state.alignment_reason == "node-1: expected (hub.nodes), but has never reported to this hub"


def test_alignment_waits_for_all_ranks() -> None:
    """The first rank is on one clock with itself; the others are unknown."""
    hub = Hub(HubSettings(), "node-0")
    hub.accept_node(node_state("node-0"), NOW, live=True)
    hub.accept_marks(batch(0, mark(0)), NOW)

    assert hub.advance(NOW, 0).jobs[0].alignment_reason == "1 of 2 ranks reporting"


def test_ranks_of_one_clock_are_aligned_without_ptp() -> None:
    """Ranks of one boot and time namespace read one clock, whatever is known of it."""
    hub = Hub(HubSettings(), "hub")
    for rank in (0, 1):
        hub.accept_marks(batch(rank, mark(0), node="a", status="UNKNOWN", gm_bound_ns=None), NOW)
    (state,) = hub.advance(NOW, 0).jobs

    assert (state.alignment_ns, state.alignment_reason, state.arrival_skew_error_ns) == (0, "one clock", 1_000)


def test_marks_of_another_boot_than_the_node_state_are_not_aligned() -> None:
    """Two machines that both call themselves node-1 do not lend each other a bound."""
    hub = fed_hub(0, steps=1)
    other = node_state("node-1", sequence=2).model_copy(update={"boot_id": "another"})
    hub.accept_node(other, NOW, live=True)

    assert hub.advance(NOW, 0).jobs[0].alignment_reason == (
        "node-1: the marks of rank 1 and the node's state are of different boots"
    )


@pytest.mark.parametrize(
    ("bound_ns", "sequence", "incarnation", "live", "later_ns", "taken"),
    [
        (5, 2, 1, True, 0, True),
        (5, 1, 1, True, 0, False),
        (5, 0, 1, True, 0, False),
        (5, 0, 2, True, 0, True),
        (5, 0, 0, True, 24 * NS_PER_S, False),
        (5, 0, 0, True, 25 * NS_PER_S, True),
    ],
    ids=["next", "repeated", "late", "restarted", "old incarnation", "store lost"],
)
def test_node_states_are_accepted_in_order(
    bound_ns: int, sequence: int, incarnation: int, live: bool, later_ns: int, taken: bool
) -> None:
    """Order is (incarnation, sequence); a node that was silent may restart."""
    hub = fed_hub(0, steps=1)
    hub.accept_node(node_state("node-0", sequence=9), NOW + later_ns, live=True)
    hub.accept_node(node_state("node-1", bound_ns, sequence, incarnation), NOW + later_ns, live)
    (state,) = hub.advance(NOW, 0).jobs

    assert state.alignment_ns == (100_005 if taken else 200_000)


def test_a_retained_copy_does_not_make_a_live_node_unknown_again() -> None:
    """After a reconnection the broker repeats what is known already; a newer retained copy is only last known."""
    hub = fed_hub(0, steps=1)
    hub.accept_node(node_state("node-1"), NOW, live=False)
    repeated = hub.advance(NOW, 0).jobs[0].alignment_ns
    hub.accept_node(node_state("node-1", sequence=2), NOW, live=False)
    newer = hub.advance(NOW, 0).jobs[0].alignment_ns
    hub.accept_node(node_state("node-1", sequence=2), NOW, live=True)

    assert (repeated, newer, hub.advance(NOW, 0).jobs[0].alignment_ns) == (200_000, None, 200_000)


def test_a_job_state_names_the_pair_and_how_long_the_alignment_holds() -> None:
    """The two nodes that may be the furthest apart, and when the first would be silent."""
    (state,) = fed_hub(0, steps=1).advance(NOW, 0).jobs

    assert (state.alignment_pair, state.alignment_holds_for_ns) == (["node-0", "node-1"], 25 * NS_PER_S)


def test_the_alignment_of_a_job_is_that_of_its_signals() -> None:
    """With each node's part; of a job that does not run there is none."""
    hub = fed_hub(0, steps=1)
    job = hub.advance(NOW, 7).jobs[0]
    published = hub.alignment_state(job.job_id, Moment(realtime_ns=7, boottime_ns=NOW))

    assert published is not None
    assert (published.alignment_ns, published.pair, published.published_realtime_ns) == (
        job.alignment_ns,
        job.alignment_pair,
        7,
    )
    assert [each.node for each in published.nodes] == ["node-0", "node-1"]
    assert hub.alignment_state("another", Moment(realtime_ns=7, boottime_ns=NOW)) is None


def test_a_hub_publishes_its_own_state() -> None:
    """Nodes that report, known and expected nodes, and jobs."""
    state = fed_hub(0, steps=1, nodes=["node-0", "unknown"]).state(
        Moment(realtime_ns=7, boottime_ns=NOW), True, 5, "http://hub/"
    )

    assert (state.node, state.primary, state.published_realtime_ns, state.started_realtime_ns) == ("node-0", True, 7, 5)
    assert (state.nodes_live, state.nodes_known, state.nodes_expected, state.missing) == (2, 2, 2, ["node-1"])
    assert (state.jobs, state.url) == (1, "http://hub/")


def adopted_plan(hub: Hub, version: int, mode: Literal["timed", "plain"] = "timed") -> Plan:
    """Another hub publishes its plan for the job."""
    plan = Plan(version=version, from_step=70, mode=mode, slack_ns=MS, guard_ns=600_000, reason="the other hub's")
    state = fed_hub(0, steps=1).advance(NOW, 0).jobs[0]
    hub.adopt(state.model_copy(update={"node": "other", "plan": plan}))
    return plan


def test_a_hub_that_is_not_primary_plans_nothing() -> None:
    """It publishes the plan of the primary hub as soon as it has received it."""
    hub = fed_hub(0)
    nothing = hub.advance(NOW, 0, primary=False).jobs[0].plan
    received = adopted_plan(hub, 7)

    assert (nothing.version, hub.advance(NOW, 0, primary=False).jobs[0].plan) == (0, received)


@pytest.mark.parametrize("before", [0, 2])
def test_a_hub_that_takes_over_continues_the_plan(before: int) -> None:
    """The same plan, under a version and from a step that the former primary cannot have used; then it is its own."""
    hub = fed_hub(0)
    for _ in range(before):
        hub.advance(NOW, 0, primary=False)
    received = adopted_plan(hub, 7)
    taken, again = (hub.advance(NOW, 0).jobs[0].plan for _ in range(2))

    assert taken == again == replace(received, version=7 + VERSIONS_SKIPPED, from_step=99 + STEPS_AHEAD)


def test_no_plan_goes_back() -> None:
    """A late plan, or that of a hub that restarted, changes nothing."""
    hub = fed_hub(0)
    adopted_plan(hub, 7)
    adopted_plan(hub, 6, "plain")
    own = hub.advance(NOW, 0).jobs[0].plan
    adopted_plan(hub, own.version)
    versions = [hub.advance(NOW, 0, primary).jobs[0].plan.version for primary in (True, False, True)]

    assert versions == [7 + VERSIONS_SKIPPED] * 3


def test_plans_are_kept_of_so_many_jobs_alone() -> None:
    """Anybody can name jobs to a broker."""
    hub = fed_hub(0)
    state = hub.advance(NOW, 0).jobs[0]
    adopted_plan(hub, 7)
    for n in range(MAX_RECEIVED_PLANS):
        hub.adopt(state.model_copy(update={"job_id": f"job {n}"}))

    assert hub.advance(NOW, 0).jobs[0].plan.version == 1


def test_ended_jobs_are_reported_once() -> None:
    """A job that fell silent leaves the list, and its id is given for clean-up."""
    hub = fed_hub(0, steps=1)
    output = hub.advance(NOW + 60 * NS_PER_S, 0)

    assert (output.jobs, output.ended) == ([], [job_id(1000, "train", 0)])
    assert hub.advance(NOW + 61 * NS_PER_S, 0).ended == []


def causality(*nodes: str, boot: str = "") -> dict[tuple[str, str], Judgement]:
    """What a hub finds when rank 1 of node-1 arrives 5 ms after everybody else has left, in each of ten steps."""
    hub = Hub(HubSettings(), "node-0")
    ranks = range(len(nodes))
    for name in nodes:
        state = node_state(name)
        hub.accept_node(state.model_copy(update={"boot_id": boot or state.boot_id}), NOW, live=True)
    for n in range(10):
        for rank in ranks:
            marks = mark(n, 20 * MS, 25 * MS) if rank == 1 else mark(n, 0, MS)
            hub.accept_marks(batch(rank, marks, sequence=n, world_size=len(nodes)), NOW)
    hub.advance(NOW, 0)
    return hub.findings()


def test_a_job_is_a_witness_against_a_clock() -> None:
    """Of three nodes the one that contradicts the others; of two both, since either may be wrong. The evidence names whose marks they are."""
    three, two = causality("node-0", "node-1", "node-2"), causality("node-0", "node-1")

    assert list(three) == [("clock-causality", "node-1")]
    assert list(two) == [("clock-causality", "node-0, node-1")]
    assert three["clock-causality", "node-1"].evidence.startswith(
        "in 10 steps of job 'train' of user 1000 a rank left a collective before another arrived, by up to 18.8 ms more"
    )


def test_unverified_marks_accuse_no_clock() -> None:
    """Any process can claim a node's name: the node's own live state must have the same boot id."""
    assert causality("node-0", "node-1", "node-2", boot="another") == {}
    assert fed_hub(0).findings() == {}
