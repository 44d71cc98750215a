"""A parameter server's shard without a network: who is answered when, and with what."""

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
    RejectedRequest,
    ServerParameters,
    Shard,
    join_shards,
    sizes_of,
    split_shards,
)

US = JobSignature(1, "job", 0, 2, (("torch.float32", 2),))


def entered(ranks: int, policy: Policy, parameters: torch.Tensor | None = None, **more: Any) -> Shard:
    shard = Shard(ranks, **more)
    shard.follow(policy)
    start = torch.zeros(ranks, dtype=torch.float64) if parameters is None else parameters
    for rank in reversed(range(ranks)):
        shard.enter(rank, US, 0, ServerParameters(0, [start]) if rank == 0 else None)
    return shard


def one(rank: int, ranks: int) -> list[torch.Tensor]:
    """What counts the updates of each rank in the parameters."""
    return [torch.nn.functional.one_hot(torch.tensor(rank), ranks).double()]


def held(answer: torch.futures.Future[ServerParameters | RejectedRequest]) -> ServerParameters:
    value = answer.value()
    assert isinstance(value, ServerParameters)
    return value


def refusal(answer: torch.futures.Future[Any]) -> str:
    value = answer.value()
    assert isinstance(value, RejectedRequest)
    return value.reason


@given(
    ranks=st.integers(1, 4),
    staleness=st.integers(0, 3) | st.none(),
    turns=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60),
)
def test_an_answer_holds_all_up_to_the_bound(ranks: int, staleness: int | None, turns: list[tuple[int, bool]]) -> None:
    """In whatever order: all updates of clock - s and before are in, the rank's own too, and nobody waits without need."""
    shard = entered(ranks, ASP() if staleness is None else SSP(staleness))
    clocks = [0] * ranks
    waiting: dict[int, torch.futures.Future[ServerParameters | RejectedRequest]] = {}
    for turn, pull_comes_first in turns:
        rank = turn % ranks
        if rank not in waiting:
            clocks[rank] += 1
            if pull_comes_first:
                waiting[rank] = shard.pull(rank, clocks[rank])
                assert not waiting[rank].done(), "its own update is not there yet"
            shard.push(rank, clocks[rank], one(rank, ranks))
            waiting.setdefault(rank, shard.pull(rank, clocks[rank]))
        bound = -1 if staleness is None else staleness
        for asking, answer in list(waiting.items()):
            may_go = staleness is None or min(clocks) >= clocks[asking] - bound
            assert answer.done() == may_go
            if may_go:
                counts = held(waiting.pop(asking)).parameters[0].tolist()
                assert counts[asking] == clocks[asking]
                assert staleness is None or min(counts) >= clocks[asking] - bound
    final = [shard.finish(rank) for rank in range(ranks)]
    assert [held(answer).parameters[0].tolist() for answer in final] == [clocks] * ranks


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_the_bound_holds_among_threads(staleness: int) -> None:
    """Three ranks at random paces, each in a thread: none ever gets parameters that lack more than the policy allows."""
    ranks, updates = 3, 60
    shard = entered(ranks, SSP(staleness))
    lacking: list[float] = []
    finals: list[list[float]] = []

    def work(rank: int) -> None:
        pace = random.Random(rank)
        for clock in range(1, updates + 1):
            time.sleep(pace.random() * 1e-3)
            shard.push(rank, clock, one(rank, ranks))
            answer = shard.pull(rank, clock).wait()
            assert isinstance(answer, ServerParameters)
            lacking.append(clock - answer.parameters[0].min().item())
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
    """Under `s=0`, whoever comes first: 2^60 + 1 - 2^60 is 0 in this order, and 1 where the 1 comes last."""
    shard = entered(3, SSP(0), torch.zeros(1, dtype=torch.float64))
    values = [2.0**60, 1.0, -(2.0**60)]
    for rank in order:
        shard.push(rank, 1, [torch.tensor([values[rank]], dtype=torch.float64)])

    assert held(shard.pull(0, 1)) == ServerParameters(3, [torch.zeros(1, dtype=torch.float64)])


def test_a_fast_rank_s_next_update_is_not_in_a_slow_one_s_answer() -> None:
    """Under `s=0` all get the parameters of one clock, also who asks for them late."""
    shard = entered(2, SSP(0))
    for rank in (0, 1):
        shard.push(rank, 1, one(rank, 2))
    quick = held(shard.pull(0, 1))
    shard.push(0, 2, one(0, 2))

    assert held(shard.pull(1, 1)) is quick


def test_an_update_tells_how_old_its_parameters_were() -> None:
    """The version as it came: that of a round under `s=0`, of all that came before it otherwise."""
    shard = entered(2, SSP(0))
    assert [shard.push(rank, 1, one(rank, 2)).value() for rank in (1, 0)] == [0, 0]
    shard.follow(SSP(3))

    assert [shard.push(1, clock, one(1, 2)).value() for clock in (2, 3)] == [2, 3]
    assert shard.push(0, 2, one(0, 2)).value() == 4


def test_another_policy_counts_at_once() -> None:
    """Who waits under the former one is asked about anew, and what was held back is added."""
    shard = entered(2, SSP(0))
    shard.push(0, 1, one(0, 2))
    answer = shard.pull(0, 1)
    shard.follow(SSP(0))
    assert not answer.done()
    shard.follow(SSP(1))

    assert held(answer).parameters[0].tolist() == [1, 0]
    shard.push(0, 2, one(0, 2))
    assert not (second := shard.pull(0, 2)).done()
    shard.follow(SSP(0))
    shard.push(1, 1, one(1, 2))
    assert not second.done()
    shard.push(1, 2, one(1, 2))
    assert held(second).parameters[0].tolist() == [2, 2]


def test_who_is_done_holds_nobody_up() -> None:
    """Its clock is behind every other's for good; its own last answer comes when all are done."""
    shard = entered(2, SSP(0))
    done = shard.finish(1)
    shard.push(0, 1, one(0, 2))

    assert held(shard.pull(0, 1)).version == 1
    assert not done.done() and not shard.over.is_set()
    assert held(shard.finish(0)) is held(done)
    assert shard.over.is_set()


def test_a_failure_answers_all() -> None:
    """Who waits and who comes later, with the first reason."""
    shard = entered(2, SSP(0))
    shard.push(0, 1, one(0, 2))
    waiting = shard.pull(0, 1)
    shard.fail("rank 1 is gone")
    shard.fail("rank 7 is gone")
    later: list[Any] = [shard.push(1, 1, one(1, 2)), shard.pull(1, 1), shard.finish(1), shard.read(0)]

    assert {refusal(answer) for answer in (waiting, *later)} == {"rank 1 is gone"}
    assert shard.over.is_set()


def test_an_update_that_is_not_due_fails_the_job() -> None:
    """A rank that repeats or leaves out an update is out of step, and no parameters after that are right."""
    shard = entered(2, ASP())
    waiting = shard.finish(0)

    assert refusal(shard.push(1, 2, one(1, 2))) == "rank 1 pushed update 2 where 1 was due: its ranks are out of step"
    assert "out of step" in refusal(waiting)
    assert shard.read(0).done()


@pytest.mark.parametrize(
    ("rank", "identity", "said"),
    [
        (1, JobSignature(1, "other", 0, 2, US.model), "job 'other'"),
        (1, JobSignature(1, "job", 1, 2, US.model), "attempt 1"),
        (1, JobSignature(2, "job", 0, 2, US.model), "protocol 2"),
        (1, JobSignature(1, "job", 0, 2, (("torch.float64", 2),)), "2 torch.float64"),
        (0, US, "two of rank 0"),
    ],
)
def test_who_is_of_something_else_is_refused(rank: int, identity: JobSignature, said: str) -> None:
    """Another job, an older attempt or code, another model, a rank that is there: all are told what does not fit."""
    shard = Shard(2)
    waiting = shard.enter(0, US, 0, ServerParameters(0, [torch.zeros(2)]))

    assert said in refusal(shard.enter(rank, identity, 0, None))
    assert said in refusal(waiting)


def test_a_restart_goes_on_at_each_rank_s_clock() -> None:
    """All enter again: with the version and parameters that one brings, and their own clocks."""
    shard = entered(2, SSP(1))
    first = shard.enter(1, US, 5, None)
    assert not first.done()
    second = shard.enter(0, US, 6, ServerParameters(11, [torch.tensor([6.0, 5.0])]))

    assert held(first) is held(second)
    assert shard.push(0, 7, [torch.ones(2)]).value() == 11
    assert not shard.pull(0, 7).done(), "two ahead of rank 1"


class Clock:
    """In nanoseconds."""

    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def test_a_silent_rank_is_named() -> None:
    """Silent while somebody waits for it, for longer than the patience; with a sign of life, or with nobody waiting, it is left alone."""
    clock = Clock()
    shard = entered(3, SSP(1), now_ns=clock)
    clock.now_ns = 100
    assert shard.overdue(10) == "", "nobody waits"
    for number in (1, 2):
        shard.push(0, number, one(0, 3))
    shard.pull(0, 2)
    clock.now_ns = 109
    shard.push(1, 1, one(1, 3))
    clock.now_ns = 110
    assert shard.overdue(10) == ""
    clock.now_ns = 111

    assert shard.overdue(10) == "rank 2 pushed no update for 0 s, while rank 0 waited"
    shard.finish(2)
    assert shard.overdue(10) == "", "rank 1 was heard, rank 2 waits for the end"


def test_ranks_that_all_wait_are_out_of_step() -> None:
    """One restores a state while the other trains: nothing will ever come."""
    clock = Clock()
    shard = entered(2, SSP(0), now_ns=clock)
    shard.enter(1, US, 0, None)
    clock.now_ns = 5
    shard.push(0, 1, one(0, 2))
    shard.pull(0, 1)
    clock.now_ns = 15
    assert shard.overdue(10) == ""
    clock.now_ns = 16

    assert shard.overdue(10) == "all ranks wait for each other: they are out of step"


@given(elements=st.lists(st.integers(0, 20), min_size=1, max_size=3), shards=st.integers(1, 5))
def test_shards_are_contiguous_and_even(elements: list[int], shards: int) -> None:
    """Cut and joined is what it was; no two pieces of a buffer differ by more than one element."""
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


@pytest.mark.parametrize("parameters", [[], [torch.ones(2, dtype=torch.int64)]])
def test_a_model_without_floats_is_refused(parameters: list[torch.Tensor]) -> None:
    """A difference of whole numbers cannot be divided by the number of ranks."""
    with pytest.raises(ValueError, match="parameters of floats"):
        FlatParameters(parameters)
