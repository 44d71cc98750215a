"""Who is late, judged against jobs of which the truth is known."""

from __future__ import annotations

import random

import pytest
from simulated_job import BEGAN_NS, BOOTED_NS, MS, US, Late, SimulatedClock, SimulatedJob, clocks, untrusted

from timesyncd.clocks import NS_PER_S
from timesyncd.config import HubSettings
from timesyncd.hub.hub import Hub
from timesyncd.ipc.job_segment import Method
from timesyncd.jobs.collective_ends import clock_offsets
from timesyncd.jobs.stragglers import attribute
from timesyncd.messages.jobs import JobState

#: Transfers of eight milliseconds a bucket hide a late rank behind the bucket before; short ones do not.
HIDDEN, EXPOSED = 8 * MS, MS

SEEDS = range(12)


def state_of(job: SimulatedJob, seed: int, steps: int = 60) -> JobState:
    """The hub's state of the job."""
    hub = Hub(HubSettings(), "hub")
    for batch in job.batches(steps, random.Random(seed)):
        hub.accept_marks(batch, NS_PER_S)
    return hub.advance(NS_PER_S, BEGAN_NS).jobs[0]


def test_the_hidden_straggler_is_named_with_its_bucket() -> None:
    """Five milliseconds in one rank's backward, in no duration: the state names rank and place, and that it cost hardly anything."""
    chance = random.Random(7)
    late = state_of(SimulatedJob(clocks(2, 50 * US, chance), late=[Late(1, 2, 5 * MS)]), 1)
    level = state_of(SimulatedJob(clocks(2, 50 * US, chance)), 1)
    (found,) = late.stragglers

    assert (found.rank, found.node, found.where, found.verdict) == (1, "n1", "bucket 2", "straggler")
    assert found.lateness_p50_ns == pytest.approx(5 * MS, abs=2 * MS // 10)
    assert found.exposed_ns < 60 * 5 * MS // 20
    assert (late.straggler_rank, late.method, late.trusted) == (1, "clock_bounds", True)
    assert (level.stragglers, level.straggler_rank) == ([], None)


def test_lateness_and_cost_are_two_numbers() -> None:
    """The same delay costs most of itself where nothing hides it."""
    found = {
        transfer_ns: state_of(
            SimulatedJob([SimulatedClock()] * 2, transfer_ns=transfer_ns, late=[Late(1, 2, 5 * MS)]), 3
        )
        for transfer_ns in (HIDDEN, EXPOSED)
    }
    lateness = [state.stragglers[0].lateness_p50_ns for state in found.values()]

    assert lateness == pytest.approx([5 * MS] * 2, rel=0.1)
    assert found[EXPOSED].stragglers[0].exposed_ns > 60 * 5 * MS * 0.7
    assert found[HIDDEN].stragglers[0].exposed_ns < 60 * 5 * MS * 0.05


@pytest.mark.parametrize("transfer_ns", [HIDDEN, EXPOSED])
@pytest.mark.parametrize("by_ns", [5 * MS, MS])
def test_stragglers_are_named_right(by_ns: int, transfer_ns: int) -> None:
    """Whatever the clocks do within their bounds, and in whichever bucket it is."""
    for seed in SEEDS:
        chance = random.Random(seed)
        late = Late(chance.randrange(4), chance.randrange(4), by_ns)
        job = SimulatedJob(clocks(4, 100 * US, chance), transfer_ns=transfer_ns, late=[late])
        seen = attribute(job.syncs(60, chance), {})

        assert [(s.rank, s.where, s.verdict) for s in seen.stragglers] == [
            (late.rank, f"bucket {late.bucket}", "straggler")
        ]


def test_a_job_of_equal_ranks_has_no_straggler() -> None:
    """Two hundred windows of chance alone, each judged at sixteen places: the stated false-alarm rate allows one in a thousand."""
    named = 0
    for seed in range(200):
        chance = random.Random(seed)
        named += bool(attribute(SimulatedJob(clocks(4, 50 * US, chance)).syncs(25, chance), {}).stragglers)

    assert named <= 2


def test_a_fixed_order_of_some_microseconds_names_no_rank() -> None:
    """Ranks always have some order; on one clock it would be sure, and is of no interest."""
    job = SimulatedJob(
        [SimulatedClock()], ranks_of_a_node=4, jitter_ns=500, order_ns={1: 5 * US, 2: 10 * US, 3: 30 * US}
    )
    seen = attribute(job.syncs(100, random.Random(1)), {})

    assert (seen.method, seen.stragglers) == (Method.ONE_CLOCK, ())


def test_clocks_that_are_off_within_their_bounds_accuse_no_rank() -> None:
    """One node's clock is ahead by nearly its bound, so its rank seems late in every step: inconclusive, and by which rank."""
    for seed in SEEDS:
        ahead = [SimulatedClock(0, 0, 600 * US), SimulatedClock(590 * US, 0, 600 * US)]
        seen = attribute(SimulatedJob(ahead, jitter_ns=10 * US).syncs(60, random.Random(seed)), {})

        assert [(s.rank, s.verdict) for s in seen.stragglers] == [(1, "inconclusive")]
        assert not seen.trusted
        assert seen.suspicion is None


def test_a_slow_node_is_named_with_all_its_ranks() -> None:
    """Its ranks are last by turns, so that none of them is last in most steps; each is late in all."""
    late = [Late(rank, 1, 4 * MS) for rank in range(8, 12)]
    job = SimulatedJob(clocks(4, 50 * US, random.Random(1)), ranks_of_a_node=4, late=late)
    seen = attribute(job.syncs(60, random.Random(2)), {})

    assert sorted((s.rank, s.where, s.verdict) for s in seen.stragglers) == sorted(
        (rank, "bucket 1", "straggler") for rank in range(8, 12)
    )


def test_a_rank_that_is_late_in_half_of_the_steps_is_named() -> None:
    """It need not be late every time."""
    job = SimulatedJob(clocks(8, 50 * US, random.Random(1)), late=[Late(5, 0, 5 * MS, share=0.6)])
    seen = attribute(job.syncs(100, random.Random(2)), {})

    assert [(s.rank, s.where) for s in seen.stragglers] == [(5, "bucket 0")]


def test_without_trusted_clocks_the_ends_align_them() -> None:
    """Clocks that are off by up to a second, and drift: the job's own collectives show it, and the state names the method and its error."""
    for seed in SEEDS:
        chance = random.Random(seed)
        job = SimulatedJob(untrusted(3, chance), transfer_ns=EXPOSED, late=[Late(1, 2, 5 * MS)])
        state = state_of(job, seed)
        found = [(s.rank, s.where, s.verdict) for s in state.stragglers]

        assert (state.method, found) == ("collective_ends", [(1, "bucket 2", "straggler")])
        assert state.arrival_skew_error_ns is not None and state.clock_bound_ns is not None
        assert state.verdict.endswith("; by collective ends, without trusted clocks")


def test_the_ends_are_right_within_their_uncertainty() -> None:
    """Against the true offsets of the clocks, at each moment of the window; the uncertainty is three standard errors and the unknown asymmetry."""
    outside = total = 0
    for seed in range(60):
        chance = random.Random(seed)
        job = SimulatedJob(untrusted(4, chance), exit_part=0.2)
        syncs = job.syncs(40, chance)
        offsets = clock_offsets(syncs)
        reference = next(clock for clock, offset in offsets.items() if offset.error_ns == 0)
        truth = {f"n{node}": clock for node, clock in enumerate(job.clocks)}
        for at_ns in (BEGAN_NS, BEGAN_NS + 40 * 40 * MS):
            for clock, offset in offsets.items():
                read_ns = truth[reference].read(at_ns)
                true_ns = truth[clock].read(at_ns) - read_ns
                outside += abs(offset.at(read_ns - BOOTED_NS) - true_ns) > offset.error_ns
                total += 1

    assert total == 60 * 8
    assert outside <= total // 100


def test_ends_that_show_too_little_name_no_rank() -> None:
    """A millisecond is less than the asymmetry of an eight-millisecond transfer may be: inconclusive, never wrong."""
    for seed in SEEDS:
        chance = random.Random(seed)
        job = SimulatedJob(untrusted(2, chance), late=[Late(1, 2, MS)])
        seen = attribute(job.syncs(60, chance), {})

        assert {s.verdict for s in seen.stragglers} <= {"inconclusive"}


def test_a_clock_beyond_its_bound_is_caught_by_the_job() -> None:
    """One of three is ahead by more than its bound and the collective's length: no rank leaves before the last arrives, so that clock is wrong."""
    wrong = [SimulatedClock(0, 0, 20 * US), SimulatedClock(0, 0, 20 * US), SimulatedClock(9 * MS, 0, 20 * US)]
    nodes = {0: "a", 1: "b", 2: "c"}
    for seed in SEEDS:
        right = SimulatedJob(clocks(3, 20 * US, random.Random(seed)), transfer_ns=EXPOSED)
        suspicion = attribute(SimulatedJob(wrong, transfer_ns=EXPOSED).syncs(20, random.Random(seed)), nodes).suspicion

        assert suspicion is not None
        assert (suspicion.nodes, suspicion.steps) == (("c",), 20)
        assert attribute(right.syncs(20, random.Random(seed)), nodes).suspicion is None
