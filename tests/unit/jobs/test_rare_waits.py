"""A few steps that hold most of the waiting: how many, for which rank, how regular, and no rank by chance."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from audit_lab import MS, job, noisy

from timesyncd.jobs.rare_waits import RareWaits, rare_waits


def found(pause_ms: Callable[[int, int], float], ranks: int = 2, steps: int = 99, seed: int = 1) -> RareWaits | None:
    computing = noisy(seed)
    recording = job(steps, ranks, lambda rank, step: computing(rank, step) + round(pause_ms(rank, step) * MS), (MS,))
    return rare_waits(recording.syncs)


def test_a_rank_that_saves_every_twenty_steps_is_named() -> None:
    """Rank 0 writes 2 s in 4 of 99 steps: they hold nearly all waiting, 2 s each, every 20 steps."""
    rare = found(lambda rank, step: 2_000 * (rank == 0 and step % 20 == 19))

    assert rare is not None
    assert rare.steps == (19, 39, 59, 79)
    assert (rare.compared_steps, rare.rank, rare.rank_steps, rare.every) == (99, 0, 4, 20)
    assert rare.share > 0.96
    assert rare.wait_ns == pytest.approx(2_000 * MS, rel=0.01)


def test_a_regular_rank_is_named_beside_one_chance_pause() -> None:
    """Rank 1 pauses every 20th step, and another rank once: ten of eleven rare steps are of rank 1."""
    rare = found(lambda rank, step: 300 * ((rank == 1 and step % 20 == 3) or (rank == 0 and step == 50)), steps=200)

    assert rare is not None
    assert (rare.rank, rare.rank_steps, rare.every, len(rare.steps)) == (1, 10, 20, 11)


def test_four_irregular_pauses_of_one_of_two_ranks_name_none() -> None:
    """Equal ranks come so one time in eight: the steps and their cost are certain, the rank is not."""
    rare = found(lambda rank, step: 500 * (rank == 0 and step in (11, 18, 52, 77)))

    assert rare is not None
    assert (rare.steps, rare.rank, rare.rank_steps, rare.every) == ((11, 18, 52, 77), None, 4, None)


def test_many_irregular_pauses_of_one_of_eight_ranks_name_it() -> None:
    """Seven pauses, all of rank 5 of eight: chance does that one time in 260,000."""
    rare = found(lambda rank, step: 500 * (rank == 5 and step in (11, 18, 30, 52, 60, 77, 95)), ranks=8, steps=100)

    assert rare is not None
    assert (rare.rank, rare.every) == (5, None)


def test_a_pause_over_many_steps_is_one() -> None:
    """One of eight equal ranks is held up for seven steps, as by one full disk: the steps are stated, and no rank is named."""
    rare = found(lambda rank, step: 500 * (rank == 5 and 40 <= step < 47), ranks=8, steps=100)

    assert rare is not None
    assert (rare.steps, rare.rank, rare.rank_steps) == (tuple(range(40, 47)), None, 7)


def test_pauses_of_several_steps_count_once_each() -> None:
    """Five pauses of two steps, all of one rank of eight, are as many chances for another: it is named."""
    rare = found(lambda rank, step: 500 * (rank == 5 and step % 37 in (3, 4)), ranks=8, steps=180)

    assert rare is not None
    assert (rare.rank, rare.rank_steps, rare.every) == (5, 10, 37)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("apart", [3, 7])
def test_regular_pauses_of_all_ranks_name_none(ranks: int, apart: int) -> None:
    """Each rank collects garbage every 50 steps, `apart` steps after the one before it: rank 0 has one pause more."""

    def pause_ms(rank: int, step: int) -> float:
        return (120 + rank) * (step % 50 == apart * rank)

    rare = found(pause_ms, ranks, steps=202)

    assert rare is not None
    assert (rare.rank, rare.every) == (None, None)
    assert "they are of several ranks" in rare.text


def test_a_small_pause_beside_a_long_one_hides_no_rank() -> None:
    """Rank 0 saves for 1 s every 20 steps; rank 1 pauses 60 ms, once, and three steps before."""
    rare = found(
        lambda rank, step: 1_000 * (rank == 0 and step % 20 == 10) + 60 * (rank == 1 and step == 47), steps=119
    )

    assert rare is not None
    assert (rare.rank, rare.every, rare.steps) == (0, 20, (10, 30, 50, 70, 90, 110))


@pytest.mark.parametrize("of", [0, 1])
def test_a_pause_just_before_a_longer_one_leaves_it_regular(of: int) -> None:
    """Of the rank itself, or of another one: 400 ms three steps before one of six pauses of 1 s, which are 20 steps apart."""
    rare = found(
        lambda rank, step: 1_000 * (rank == 0 and step % 20 == 10) + 400 * (rank == of and step == 47), steps=119
    )

    assert rare is not None
    assert (rare.rank, rare.every, len(rare.steps)) == (0, 20, 7)


def test_many_small_pauses_do_not_hide_a_rare_cause() -> None:
    """Ranks pause 60 ms in one step of eight, each: 1 s of rank 0 every 20 steps is named, with its own length."""
    chance = random.Random(5)
    small = {(rank, step) for rank in (1, 2) for step in range(119) if chance.random() < 0.12}
    rare = found(lambda rank, step: 1_000 * (rank == 0 and step % 20 == 10) + 60 * ((rank, step) in small), 3, 119)

    assert rare is not None
    assert (rare.rank, rare.every, len(rare.steps)) == (0, 20, 6)
    assert rare.wait_ns == pytest.approx(1_000 * MS, rel=0.01)


def test_one_long_stall_does_not_hide_a_regular_rank() -> None:
    """Rank 1 stands still for 20 s, once: rank 0, which saves for 1 s every 20 steps, is named with its own second."""
    rare = found(
        lambda rank, step: 1_000 * (rank == 0 and step % 20 == 10) + 20_000 * (rank == 1 and step == 73), steps=119
    )

    assert rare is not None
    assert (rare.rank, rare.rank_steps, rare.every, len(rare.steps)) == (0, 6, 20, 7)
    assert rare.wait_ns == pytest.approx(1_000 * MS, rel=0.01)


@pytest.mark.parametrize("pause_ms", [0, 5])
def test_waiting_in_every_step_is_not_rare(pause_ms: int) -> None:
    """Equal ranks, and one that is late throughout, have no rare steps."""
    assert found(lambda rank, step: pause_ms * (rank == 1)) is None


def test_no_rank_is_named_by_chance() -> None:
    """Ranks that are alike pause rarely, at random steps and by random amounts: none of 600 jobs names a rank."""
    named = some = 0
    for seed in range(600):
        chance = random.Random(seed)
        ranks = chance.choice((2, 2, 3, 4))
        pauses = {
            (chance.randrange(ranks), step): chance.uniform(100, 2_000)
            for step in chance.sample(range(100), chance.randint(1, 10))
        }
        rare = found(lambda rank, step, of=pauses: of.get((rank, step), 0), ranks, 100, seed)  # type: ignore[misc]
        some += rare is not None
        named += rare is not None and rare.rank is not None

    assert some > 500
    assert named <= 3
