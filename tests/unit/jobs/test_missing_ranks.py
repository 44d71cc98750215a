"""A hang: who waits where, who never came and why, and no rank accused of which nothing is known."""

from __future__ import annotations

import random

import pytest
from batches import NOW, batch
from batches import mark as batch_mark

from timesyncd.config import HubSettings
from timesyncd.hub.hub import Hub
from timesyncd.ipc.job_datagram import Kind, Mark
from timesyncd.jobs.missing_ranks import HangCause, Presence, find_hang, hang_text

S = 1_000_000_000


def mark(step: int, kind: Kind, end_s: float, arrival_s: float | None = None, sync: int = 0, bytes: int = 0) -> Mark:
    arrival_ns = round((end_s if arrival_s is None else arrival_s) * S)
    return Mark(step, sync, kind, arrival_ns, arrival_ns, round(end_s * S), bytes)


def rank(*marks: Mark) -> Presence:
    found = Presence()
    for each in marks:
        found = found.updated(each)
    return found


def waits(step: int, kind: Kind, since_s: float, until_s: float, number: int = 0) -> Mark:
    return mark(step, Kind.ARRIVAL, until_s, since_s, number, kind)


def test_a_rank_that_took_fewer_steps_never_came() -> None:
    """Rank 1 ended after 40 steps: the sentence names both ranks, the place, the wait, and the last mark."""
    hang = find_hang(
        {
            0: rank(mark(39, Kind.STEP, 100), waits(40, Kind.BUCKET, 100.1, 115.1)),
            1: rank(mark(39, Kind.STEP, 100), mark(39, Kind.LEFT, 100.2)),
        },
        2,
        S // 100,
    )

    assert hang is not None
    assert (hang.waiting, hang.missing, hang.absent[0].cause) == ((0,), (1,), HangCause.UNEQUAL_STEPS)
    assert hang_text(hang) == (
        "rank 0 waited 15.0 s in bucket 0 of step 40; rank 1 never came; its last mark: step 39, update; "
        "it ended: the ranks take unequal numbers of steps"
    )


@pytest.mark.parametrize(
    ("last", "sign", "cause"),
    [
        (mark(39, Kind.STEP, 100), mark(39, Kind.ALIVE, 112), HangCause.BUSY),
        (mark(39, Kind.STEP, 100), mark(39, Kind.LEFT, 101, bytes=1), HangCause.FAILED),
        (mark(40, Kind.BARRIER, 100), mark(40, Kind.LEFT, 101), HangCause.EXTRA_SYNCHRONIZATION),
        (mark(40, Kind.BARRIER, 100), mark(40, Kind.ALIVE, 112), HangCause.BUSY),
        (mark(39, Kind.STEP, 100), None, HangCause.NO_SIGN),
        (mark(39, Kind.STEP, 100), mark(39, Kind.ALIVE, 99), HangCause.NO_SIGN),
        (mark(39, Kind.STEP, 100), mark(39, Kind.ALIVE, 104), HangCause.NO_SIGN),
        (None, None, HangCause.NO_SIGN),
    ],
    ids=[
        "busy",
        "failed",
        "extra, ended",
        "busy within the step",
        "no sign",
        "an older sign",
        "a short sign",
        "no mark",
    ],
)
def test_the_cause_is_what_the_rank_s_own_sign_shows(last: Mark | None, sign: Mark | None, cause: HangCause) -> None:
    """Without a sign that is newer than its marks, and as long as half of the wait, nothing is known of a rank."""
    absent = rank(*(each for each in (last, sign) if each is not None))
    hang = find_hang({0: rank(waits(40, Kind.BARRIER, 100, 115, 1)), 1: absent}, 2, None)

    assert hang is not None
    assert hang.absent[0].cause is cause
    assert hang.missing == (() if cause is HangCause.NO_SIGN else (1,))
    assert ("never came" in hang_text(hang)) == (cause is not HangCause.NO_SIGN)
    assert ("it waits in a group or for a message, was killed, or" in hang_text(hang)) == (cause is HangCause.NO_SIGN)


def test_a_rank_that_ended_after_a_barrier_but_before_the_gradients_took_fewer_steps() -> None:
    """The barrier behind update 39 counts as step 40: what rank 0 waits in is still a step that rank 1 did not take."""
    ended = rank(mark(40, Kind.BARRIER, 100), mark(40, Kind.LEFT, 100.2))
    hang = find_hang({0: rank(mark(40, Kind.BARRIER, 100), waits(40, Kind.BUCKET, 100.1, 115.1)), 1: ended}, 2, None)

    assert hang is not None
    assert hang.absent[0].cause is HangCause.UNEQUAL_STEPS


def test_a_wait_that_failed_lasted_until_the_rank_s_end() -> None:
    """The group's time-out ends rank 0 by an error: it waited until then, while rank 1 ran."""
    failed = rank(mark(39, Kind.STEP, 100), waits(40, Kind.BUCKET, 100.1, 111.1), mark(40, Kind.LEFT, 115.1, bytes=1))
    hang = find_hang({0: failed, 1: rank(mark(39, Kind.STEP, 100), mark(39, Kind.ALIVE, 110))}, 2, None)

    assert hang is not None
    assert (hang.waiting, hang.waited_ns, hang.missing, hang.failed) == ((0,), 15 * S, (1,), True)
    assert hang_text(hang).startswith("rank 0 waited 15.0 s in bucket 0 of step 40, which failed; rank 1 never came;")


@pytest.mark.parametrize(
    ("signs", "missing"),
    [
        ([mark(60, Kind.LEFT, 100.2)], (1,)),
        ([mark(60, Kind.LEFT, 100.2, bytes=1)], None),
        ([mark(60, Kind.ALIVE, 105)], None),
        ([], None),
        ([waits(60, Kind.BARRIER, 100.1, 100.3, 1), mark(60, Kind.LEFT, 100.3, bytes=1)], None),
    ],
    ids=["ended", "failed too", "runs", "no sign", "inside too"],
)
def test_a_synchronization_that_fails_soon_names_a_rank_that_had_ended(
    signs: list[Mark], missing: tuple[int, ...] | None
) -> None:
    """Rank 0 calls a barrier more, which fails as rank 1 ends. Where an error ended both, no rank is named."""
    failed = rank(
        mark(60, Kind.BARRIER, 100), waits(60, Kind.BARRIER, 100, 100.2, 1), mark(60, Kind.LEFT, 100.3, bytes=1)
    )
    hang = find_hang({0: failed, 1: rank(mark(60, Kind.BARRIER, 100), *signs)}, 2, None)

    assert (hang.missing if hang is not None else None) == missing
    if hang is not None:
        assert hang.absent[0].cause is HangCause.EXTRA_SYNCHRONIZATION
        assert "which failed" in hang_text(hang)


def test_ranks_in_different_synchronizations_are_not_missing() -> None:
    """An extra barrier on rank 0 shifts its synchronizations: each rank waits, and none is named as missing."""
    hang = find_hang(
        {0: rank(waits(9, Kind.BARRIER, 100, 120)), 1: rank(waits(10, Kind.BUCKET, 100, 119))}, 2, S // 100
    )

    assert hang is not None
    assert (hang.missing, hang.absent, len(hang.elsewhere)) == ((), (), 1)
    assert "do not call the same synchronizations" in hang_text(hang)


@pytest.mark.parametrize(
    ("kind", "waited_s", "usual_s"),
    [(Kind.BUCKET, 9, 0), (Kind.BUCKET, 60, 7), (Kind.BROADCAST, 60, 1)],
    ids=["short", "slow steps", "a root may leave"],
)
def test_what_is_no_hang(kind: Kind, waited_s: int, usual_s: int) -> None:
    """Ten seconds and ten usual steps, in a synchronization that needs all ranks."""
    presence = {0: rank(waits(5, kind, 100, 100 + waited_s)), 1: rank(mark(4, Kind.STEP, 99), mark(4, Kind.ALIVE, 159))}

    assert find_hang(presence, 2, usual_s * S) is None


def test_a_slow_collective_of_all_ranks_is_no_hang() -> None:
    """All ranks are inside the same one: a transfer that takes long."""
    assert find_hang({n: rank(waits(5, Kind.BUCKET, 100, 160)) for n in range(3)}, 3, S) is None


def test_no_waiting_rank_is_missing_whatever_is_lost_or_late() -> None:
    """Jobs with one true absentee; signs and marks of all ranks are lost or come in any order: no other rank is named."""
    for seed in range(500):
        chance = random.Random(seed)
        ranks = chance.randint(2, 6)
        absent = chance.randrange(ranks)
        presence = {}
        for number in range(ranks):
            came_s = 100 + chance.random()
            sent = [mark(39, Kind.STEP, came_s - 0.5)] + [
                mark(39, Kind.ALIVE, 110 + n)
                if number == absent
                else waits(40, Kind.BUCKET, came_s, came_s + 1 + 5 * n)
                for n in range(4)
            ]
            kept = [each for each in sent if chance.random() < 0.7]
            chance.shuffle(kept)
            presence[number] = rank(*kept)
        hang = find_hang(presence, ranks, S // 10)

        assert hang is None or set(hang.missing) <= {absent}


def test_the_hub_finds_it_and_the_finding_ends() -> None:
    """The subject is the job; the evidence has user, ranks, place and last mark. It ends when the ranks go on."""
    hub = Hub(HubSettings(), "node-0")
    done = [batch_mark(step) for step in range(20)]
    end_ns = done[-1].end_ns
    hub.accept_marks(batch(0, *done, waits(20, Kind.BARRIER, end_ns / S, end_ns / S + 20)), NOW)
    hub.accept_marks(batch(1, *done, mark(19, Kind.ALIVE, end_ns / S + 12)), NOW)
    hub.advance(NOW, 0)

    assert {key: judged.evidence for key, judged in hub.findings().items()} == {
        (
            "rank-missing",
            "train",
        ): "job 'train' of user 1000: rank 0 waited 20.0 s in barrier 0 of step 20; rank 1 never came; "
        "its last mark: step 19, barrier; it runs, outside of any synchronization: fewer steps than the others, an evaluation, "
        "or a checkpoint"
    }
    for rank in (0, 1):
        late = mark(20, Kind.BARRIER, end_ns / S + 21, end_ns / S + 20.5)
        hub.accept_marks(batch(rank, late, sequence=2), NOW)
    hub.advance(NOW, 0)
    assert hub.findings() == {}
