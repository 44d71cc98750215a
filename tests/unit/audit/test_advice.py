"""Advice with a price: each change is replayed, has an error over the steps, or a reason why it has no price."""

from __future__ import annotations

from dataclasses import replace

import pytest
from audit_lab import MS, job, late, noisy

from timesyncd.audit.build import advice_for, report
from timesyncd.audit.measured import measured
from timesyncd.audit.report import AdviceKind, AdviceReport, NoPrice
from timesyncd.jobs.recording import Recording


def on_nodes(recording: Recording, *nodes: str) -> Recording:
    """The same ranks, each on the node of that name."""
    ranks = {rank: replace(record, node=nodes[rank]) for rank, record in recording.ranks.items()}
    return replace(recording, ranks=ranks)


def advised(recording: Recording) -> dict[AdviceKind, AdviceReport]:
    """By kind, the first of each."""
    found: dict[AdviceKind, AdviceReport] = {}
    for one in advice_for(measured(recording)).advice:
        found.setdefault(one.kind, one)
    return found


SLOW = job(300, ranks=4, computing=late(3, 10 * MS, noisy()))


def test_a_slow_node_is_to_be_swapped() -> None:
    """Its rank alone is there and late: without its 10 ms of 21.3 a step takes 11.3 ms."""
    swap = advised(on_nodes(SLOW, "a", "a", "b", "c"))[AdviceKind.SWAP_NODE]

    assert swap.ranks == [3] and "Swap c" in swap.title and swap.reason_code is None
    assert swap.gain is not None and swap.gain.low is not None and swap.gain.high is not None
    assert swap.gain.low < 10 / 21.3 < swap.gain.high + 0.01
    assert swap.step_saved_ns == pytest.approx(10 * MS, rel=0.05)


def test_a_rank_whose_neighbours_are_fast_is_to_be_moved() -> None:
    """The node is not the cause, so the node stays."""
    found = advised(on_nodes(SLOW, "a", "a", "b", "b"))

    assert AdviceKind.SWAP_NODE not in found
    assert found[AdviceKind.MOVE_RANK].ranks == [3]
    assert found[AdviceKind.MOVE_RANK].gain is not None


def test_the_batch_is_shared_by_speed() -> None:
    """Three ranks of 10 ms and one of 20 ms: all compute 11.4 ms, with two sevenths for each fast one."""
    shares = advised(SLOW)[AdviceKind.BATCH_SHARES]

    assert shares.shares == pytest.approx([2 / 7, 2 / 7, 2 / 7, 1 / 7], abs=0.002)
    assert shares.gain is not None
    assert shares.gain.value == pytest.approx((20 - 4 * 20 / 7) / 21.3, abs=0.01)


def test_equal_ranks_have_nothing_to_gain_by_shares() -> None:
    """What noise alone would save is not above its error, or below a hundredth; and no rank is late."""
    found = advised(job(300, ranks=4, computing=noisy(spread_ns=20_000)))

    assert found[AdviceKind.BATCH_SHARES].gain is None
    assert found[AdviceKind.BATCH_SHARES].reason_code is NoPrice.NOT_WORTH_IT
    assert found[AdviceKind.SWAP_NODE].reason_code is NoPrice.NO_STRAGGLER


def test_what_the_recording_cannot_show_has_a_reason() -> None:
    """Transfers within groups are not recorded, one node shows no other, and equal buckets no cost by octet."""
    found = advised(SLOW)

    assert found[AdviceKind.GROUPS].reason_code is NoPrice.NO_OTHER_NODE
    assert advised(on_nodes(SLOW, "a", "b", "c", "d"))[AdviceKind.GROUPS].reason_code is NoPrice.NOT_RECORDED
    assert found[AdviceKind.HALF_PRECISION].reason_code is NoPrice.NOT_RECORDED
    assert "by octet is not known: all buckets have about the same size" in found[AdviceKind.HALF_PRECISION].reason
    assert found[AdviceKind.BUCKETS].reason_code is NoPrice.NOT_RECORDED


def test_few_steps_have_no_error_and_so_no_price() -> None:
    """A gain without its error could be chance."""
    found = advised(job(30, ranks=4, computing=late(3, 10 * MS, noisy())))

    assert all(one.gain is None for one in found.values())
    assert found[AdviceKind.BATCH_SHARES].reason_code is NoPrice.TOO_FEW_STEPS


def test_the_largest_gain_is_first_and_the_unknown_last() -> None:
    """In the report too."""
    found = report(measured(SLOW)).advice
    gains = [None if one.gain is None else one.gain.value for one in found]
    known = [gain for gain in gains if gain is not None]

    assert known == sorted(known, reverse=True) and len(known) >= 2
    assert gains[: len(known)] == known
    assert all((one.reason != "") == (one.gain is None) for one in found)


def test_incomparable_ranks_have_no_advice() -> None:
    """Without a common clock no step can be replayed."""
    recording = job(50, clocks_ahead_ns={0: 0, 1: 10**9})
    assert advice_for(measured(recording)).advice == [] or measured(recording).attribution.method is not None
