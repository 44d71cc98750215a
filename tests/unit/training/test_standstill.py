"""Which ranks wait for each other for good, by their positions; and where a thread of this process is."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from timesyncd.training.torch.standstill import Place, RankPosition, find_deadlocks, place_of

WAITING = RankPosition(rank=0, step=11, exchanges=6, place=Place.EXCHANGE)
OTHER = RankPosition(
    rank=1, step=11, exchanges=5, place=Place.COLLECTIVE, where="all_reduce (train.py, line 14)", needs=(0, 1)
)
ENDED = replace(WAITING, has_ended=True)
BACKWARD = replace(OTHER, place=Place.BACKWARD, where="the backward pass (train.py, line 9)")
REDUCING = replace(BACKWARD, rank=0, reductions=13)
BARRIER = replace(OTHER, where="barrier (train.py, line 14)", reductions=12)


@pytest.mark.parametrize(
    "positions",
    [
        (WAITING, replace(OTHER, exchanges=6)),  # its row is in transit
        (WAITING, replace(OTHER, needs=(1, 2))),  # another rank is the one that is late
        (WAITING, replace(OTHER, place=Place.ELSEWHERE, needs=())),  # it computes
        (WAITING, replace(BACKWARD, exchanges=5)),  # it is slow
        (ENDED, replace(BACKWARD, step=10)),  # it is slow in the last step of both
        (replace(WAITING, place=Place.ELSEWHERE), OTHER),
        (WAITING, replace(WAITING, rank=1)),
        (
            REDUCING,
            replace(BARRIER, reductions=13),
        ),  # it is slow: the other has reduced, and is behind its backward pass
        (REDUCING, replace(BARRIER, place=Place.ELSEWHERE, needs=())),
        (REDUCING, replace(BARRIER, needs=(1, 2))),
        (replace(REDUCING, needs=()), BARRIER),  # DDP does not reduce
        (replace(REDUCING, reductions=None), BARRIER),
        (REDUCING, replace(BARRIER, reductions=None)),
        (REDUCING, replace(BACKWARD, reductions=12)),
    ],
)
def test_a_slow_rank_is_not_accused(positions: tuple[RankPosition, RankPosition]) -> None:
    """Where a rank may still go on, nothing is reported."""
    assert list(find_deadlocks(positions)) == []


@pytest.mark.parametrize(
    ("positions", "text"),
    [
        ((WAITING, OTHER), "rank 1 has made no update in step 11: it waits for rank 0 in all_reduce (train.py, line 14), and"),
        ((WAITING, replace(OTHER, left_out=10)), "rank 1 left out an optimizer step in step 10: it waits for rank 0 in"),
        ((ENDED, BACKWARD), "rank 0 ended after 11 steps and rank 1 is in step 11, in the backward pass (train.py, line 9);"),
        ((REDUCING, BARRIER), "rank 1 for rank 0 in barrier (train.py, line 14) of step 11, and rank 0 for it in the backward"),
        ((ENDED, OTHER), "rank 0 ended after 11 steps and rank 1 is in step 11, in all_reduce (train.py, line 14);"),
    ],
)  # fmt: skip
def test_ranks_that_wait_for_each_other_are_reported(positions: tuple[RankPosition, RankPosition], text: str) -> None:
    """One waits for the other's rows, and the other waits elsewhere for the first: with the rank, its step and its line."""
    (found,) = find_deadlocks(positions)
    assert found.rank == 1
    assert text in found.text and "\n" not in found.text


def test_one_fault_is_reported_once() -> None:
    """However many ranks wait for the rank that waits elsewhere."""
    waiting = [replace(WAITING, rank=rank) for rank in (0, 2, 3)]
    (found,) = find_deadlocks([*waiting, replace(OTHER, needs=(0, 1, 2, 3))])
    assert found.rank == 1


def test_a_thread_that_computes_is_elsewhere() -> None:
    """So is one that has ended."""
    assert place_of(threading.get_ident(), [0]) == (Place.ELSEWHERE, "", ())
    assert place_of(-1, [0]) == (Place.ELSEWHERE, "", ())


def test_a_backward_pass_is_recognized() -> None:
    """With the script's line, and the ranks that reduce with it."""
    found = []

    def look(gradient: torch.Tensor) -> None:
        found.append(place_of(threading.get_ident(), [0, 3]))

    weight = torch.ones(2, requires_grad=True)
    weight.register_hook(look)  # type: ignore[no-untyped-call]
    torch.autograd.backward(weight.sum())
    ((place, where, needs),) = found
    assert (place, needs) == (Place.BACKWARD, (0, 3))
    assert where.startswith("the backward pass (test_standstill.py, line ")
