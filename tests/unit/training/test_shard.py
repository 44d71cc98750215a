"""A parameter server's shard without a network: when it replies to a rank, and with what."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.training.policy.policies import ASP, SSP, Policy
from timesyncd.training.torch.shard import (
    FlatParameters,
    JobSignature,
    Overdue,
    RejectedRequest,
    ServerParameters,
    Shard,
    join_shards,
    sizes_of,
    split_shards,
)

SIGNATURE = JobSignature(1, "job", 0, 2, (("torch.float32", 2),))


def joined(ranks: int, policy: Policy, parameters: torch.Tensor | None = None, **more: Any) -> Shard:
    shard = Shard(ranks, **more)
    shard.use(policy)
    start = torch.zeros(ranks, dtype=torch.float64) if parameters is None else parameters
    for rank in reversed(range(ranks)):
        shard.join(rank, SIGNATURE, 0, ServerParameters(0, [start]) if rank == 0 else None)
    return shard


def one(rank: int, ranks: int) -> list[torch.Tensor]:
    """An update that makes the parameters count the updates of each rank."""
    return [torch.nn.functional.one_hot(torch.tensor(rank), ranks).double()]


def parameters_of(reply: torch.futures.Future[ServerParameters | RejectedRequest]) -> ServerParameters:
    value = reply.value()
    assert isinstance(value, ServerParameters)
    return value


def rejection(reply: torch.futures.Future[Any]) -> str:
    value = reply.value()
    assert isinstance(value, RejectedRequest)
    return value.reason


@given(
    ranks=st.integers(1, 4),
    staleness=st.integers(0, 3) | st.none(),
    turns=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60),
)
def test_a_reply_contains_all_updates_up_to_the_bound(
    ranks: int, staleness: int | None, turns: list[tuple[int, bool]]
) -> None:
    """In any order: a reply contains all updates up to clock - s and the rank's own, and no rank waits longer than needed."""
    shard = joined(ranks, ASP() if staleness is None else SSP(staleness))
    clocks = [0] * ranks
    waiting: dict[int, torch.futures.Future[ServerParameters | RejectedRequest]] = {}
    for turn, pull_comes_first in turns:
        rank = turn % ranks
        if rank not in waiting:
            clocks[rank] += 1
            if pull_comes_first:
                waiting[rank] = shard.pull(rank, clocks[rank])
                assert not waiting[rank].done(), "its own update has not arrived yet"
            shard.push(rank, clocks[rank], one(rank, ranks))
            waiting.setdefault(rank, shard.pull(rank, clocks[rank]))
        bound = -1 if staleness is None else staleness
        for waiting_rank, reply in list(waiting.items()):
            may_continue = staleness is None or min(clocks) >= clocks[waiting_rank] - bound
            assert reply.done() == may_continue
            if may_continue:
                counts = parameters_of(waiting.pop(waiting_rank)).parameters[0].tolist()
                assert counts[waiting_rank] == clocks[waiting_rank]
                assert staleness is None or min(counts) >= clocks[waiting_rank] - bound
    final = [shard.finish(rank) for rank in range(ranks)]
    assert [parameters_of(reply).parameters[0].tolist() for reply in final] == [clocks] * ranks


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_the_bound_holds_among_threads(staleness: int) -> None:
    """Three ranks at random speeds, each in a thread: none gets parameters that lack more updates than the policy allows."""
    ranks, updates = 3, 60
    shard = joined(ranks, SSP(staleness))
    lacking: list[float] = []
    finals: list[list[float]] = []

    def work(rank: int) -> None:
        delays = random.Random(rank)
        for clock in range(1, updates + 1):
            time.sleep(delays.random() * 1e-3)
            shard.push(rank, clock, one(rank, ranks))
            reply = shard.pull(rank, clock).wait()
            assert isinstance(reply, ServerParameters)
            lacking.append(clock - reply.parameters[0].min().item())
        last = shard.finish(rank).wait()
        assert isinstance(last, ServerParameters)
        finals.append(last.parameters[0].tolist())

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lacking) == ranks * updates
    assert max(lacking) <= staleness
    assert finals == [[float(updates)] * ranks] * ranks


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (0, 2, 1)])
def test_one_clock_is_added_in_the_order_of_the_ranks(order: tuple[int, int, int]) -> None:
    """Under `s=0`, in any order of arrival: 2^60 + 1 - 2^60 is 0 in the order of the ranks, and 1 where the 1 is last."""
    shard = joined(3, SSP(0), torch.zeros(1, dtype=torch.float64))
    values = [2.0**60, 1.0, -(2.0**60)]
    for rank in order:
        shard.push(rank, 1, [torch.tensor([values[rank]], dtype=torch.float64)])

    assert parameters_of(shard.pull(0, 1)) == ServerParameters(3, [torch.zeros(1, dtype=torch.float64)])


def test_a_fast_rank_s_next_update_is_not_in_a_slow_one_s_reply() -> None:
    """Under `s=0` all ranks get the parameters of one clock, also a rank that pulls late."""
    shard = joined(2, SSP(0))
    for rank in (0, 1):
        shard.push(rank, 1, one(rank, 2))
    quick = parameters_of(shard.pull(0, 1))
    shard.push(0, 2, one(0, 2))

    assert parameters_of(shard.pull(1, 1)) is quick


def test_a_push_returns_the_version_before_it() -> None:
    """Under `s=0` that of the round, otherwise that of all updates that arrived before it."""
    shard = joined(2, SSP(0))
    assert [shard.push(rank, 1, one(rank, 2)).value() for rank in (1, 0)] == [0, 0]
    shard.use(SSP(3))

    assert [shard.push(1, clock, one(1, 2)).value() for clock in (2, 3)] == [2, 3]
    assert shard.push(0, 2, one(0, 2)).value() == 4


def test_another_policy_applies_at_once() -> None:
    """Waiting ranks are evaluated again, and pending updates are added."""
    shard = joined(2, SSP(0))
    shard.push(0, 1, one(0, 2))
    reply = shard.pull(0, 1)
    shard.use(SSP(0))
    assert not reply.done()
    shard.use(SSP(1))

    assert parameters_of(reply).parameters[0].tolist() == [1, 0]
    shard.push(0, 2, one(0, 2))
    assert not (second := shard.pull(0, 2)).done()
    shard.use(SSP(0))
    shard.push(1, 1, one(1, 2))
    assert not second.done()
    shard.push(1, 2, one(1, 2))
    assert parameters_of(second).parameters[0].tolist() == [2, 2]


def test_no_rank_waits_for_one_that_is_done() -> None:
    """The reply to its own finish comes when all are done."""
    shard = joined(2, SSP(0))
    done = shard.finish(1)
    shard.push(0, 1, one(0, 2))

    assert parameters_of(shard.pull(0, 1)).version == 1
    assert not done.done() and not shard.finished.is_set()
    assert parameters_of(shard.finish(0)) is parameters_of(done)
    assert shard.finished.is_set()


def test_a_failure_rejects_all_requests() -> None:
    """Waiting and later requests, with the first reason."""
    shard = joined(2, SSP(0))
    shard.push(0, 1, one(0, 2))
    waiting = shard.pull(0, 1)
    shard.fail("rank 1 has ended")
    shard.fail("rank 7 has ended")
    later: list[Any] = [shard.push(1, 1, one(1, 2)), shard.pull(1, 1), shard.finish(1), shard.read(0)]

    assert {rejection(reply) for reply in (waiting, *later)} == {"rank 1 has ended"}
    assert shard.finished.is_set()


def test_an_unexpected_update_fails_the_job() -> None:
    """A rank that repeats or omits an update is out of step, and all later parameters would be wrong."""
    shard = joined(2, ASP())
    waiting = shard.finish(0)

    assert (
        rejection(shard.push(1, 2, one(1, 2)))
        == "rank 1 pushed update 2, and update 1 was expected: the ranks are out of step"
    )
    assert "out of step" in rejection(waiting)
    assert shard.read(0).done()


@pytest.mark.parametrize(
    ("rank", "signature", "expected"),
    [
        (1, JobSignature(1, "other", 0, 2, SIGNATURE.model), "job 'other'"),
        (1, JobSignature(1, "job", 1, 2, SIGNATURE.model), "attempt 1"),
        (1, JobSignature(2, "job", 0, 2, SIGNATURE.model), "protocol 2"),
        (1, JobSignature(1, "job", 0, 2, (("torch.float64", 2),)), "2 torch.float64"),
        (0, SIGNATURE, "two processes join as rank 0"),
    ],
)
def test_ranks_with_another_signature_are_rejected(rank: int, signature: JobSignature, expected: str) -> None:
    """Another job, an older attempt or protocol, another model, a rank that joined already: all ranks get the reason."""
    shard = Shard(2)
    waiting = shard.join(0, SIGNATURE, 0, ServerParameters(0, [torch.zeros(2)]))

    assert expected in rejection(shard.join(rank, signature, 0, None))
    assert expected in rejection(waiting)


def test_a_restart_continues_at_each_rank_s_clock() -> None:
    """All join again: with the version and parameters that one provides, and their own clocks."""
    shard = joined(2, SSP(1))
    first = shard.join(1, SIGNATURE, 5, None)
    assert not first.done()
    second = shard.join(0, SIGNATURE, 6, ServerParameters(11, [torch.tensor([6.0, 5.0])]))

    assert parameters_of(first) is parameters_of(second)
    assert shard.push(0, 7, [torch.ones(2)]).value() == 11
    assert not shard.pull(0, 7).done(), "two ahead of rank 1"


class Clock:
    """In nanoseconds."""

    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def test_a_silent_rank_is_named() -> None:
    """Silent for longer than allowed while another rank waits for it; not after a request, nor while no rank waits."""
    clock = Clock()
    shard = joined(3, SSP(1), now_ns=clock)
    clock.now_ns = 100
    assert shard.overdue(10) is None, "no rank waits"
    for number in (1, 2):
        shard.push(0, number, one(0, 3))
    shard.pull(0, 2)
    clock.now_ns = 109
    shard.push(1, 1, one(1, 3))
    clock.now_ns = 110
    assert shard.overdue(10) is None
    clock.now_ns = 111

    assert shard.overdue(10) == Overdue(2, "rank 2 pushed no update for 0 s, while rank 0 waited")
    shard.finish(2)
    assert shard.overdue(10) is None, "rank 1 made a request, rank 2 waits for the end"


def test_ranks_that_all_wait_are_out_of_step() -> None:
    """One loads a state while the other trains: no update will arrive."""
    clock = Clock()
    shard = joined(2, SSP(0), now_ns=clock)
    shard.join(1, SIGNATURE, 0, None)
    clock.now_ns = 5
    shard.push(0, 1, one(0, 2))
    shard.pull(0, 1)
    clock.now_ns = 15
    assert shard.overdue(10) is None
    clock.now_ns = 16

    assert shard.overdue(10) == Overdue(None, "all ranks wait for each other: the ranks are out of step")


@given(elements=st.lists(st.integers(0, 20), min_size=1, max_size=3), shards=st.integers(1, 5))
def test_shards_are_contiguous_and_even(elements: list[int], shards: int) -> None:
    """Split and joined they are unchanged; no two pieces of a buffer differ by more than one element."""
    flats = [torch.arange(float(count)) for count in elements]
    pieces = split_shards(flats, shards)

    assert all(map(torch.equal, join_shards(pieces), flats))
    for number in range(len(flats)):
        counts = [piece[number].numel() for piece in pieces]
        assert len(pieces) == shards and max(counts) - min(counts) <= 1


def test_parameters_become_flat_and_back() -> None:
    """One buffer a type, in the order of the parameters; a copy, and written back in place."""
    matrix, scalar, vector = torch.arange(6.0).view(2, 3).t(), torch.tensor(7.0), torch.arange(2.0).double()
    flat = FlatParameters([matrix, vector, scalar])
    read = flat.read()

    assert flat.sizes == sizes_of(read) == (("torch.float32", 7), ("torch.float64", 2))
    assert flat.nbytes == 7 * 4 + 2 * 8
    assert read[0].tolist() == [0, 3, 1, 4, 2, 5, 7]
    flat.write([part + 1 for part in read])
    assert matrix.tolist() == [[1, 4], [2, 5], [3, 6]] and scalar.item() == 8 and vector.tolist() == [1, 2]
    assert read[0][0] == 0


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ([], "the model has no parameters that require gradients"),
        ([torch.ones(2, dtype=torch.int64)], r"parameters of type torch\.int64; all must be floating-point"),
    ],
)
def test_a_model_without_floats_is_rejected(parameters: list[torch.Tensor], expected: str) -> None:
    """A difference of whole numbers cannot be divided by the number of ranks."""
    with pytest.raises(ValueError, match=expected):
        FlatParameters(parameters)
