"""Which ranks average together: all that live, without those that are lost, and with the newest parameters."""

from __future__ import annotations

import pytest

from timesyncd.training.policy.quorum import (
    AveragingOutcome,
    Process,
    Quorum,
    QuorumLimits,
    QuorumMember,
    SignsOfLife,
    complete_quorum,
    outcome_of,
    sign_text,
)

LIMITS = QuorumLimits(silent_ns=5, patience_ns=600)


def member(rank: int, rounds: int = 3, incarnation: int = 1) -> QuorumMember:
    return QuorumMember(rank, incarnation, rounds, 10 * rounds)


def processes(*ranks: int) -> set[Process]:
    return {(rank, 1) for rank in ranks}


def formed(
    waiting: list[QuorumMember], alive: set[Process], former: Quorum | None, waited_ns: int = 0
) -> list[int] | None:
    found = complete_quorum(waiting, alive, 3, former, waited_ns, LIMITS)
    return None if found is None else [each.rank for each in found.members]


FORMER = Quorum((member(0, 2), member(1, 2), member(2, 2)))


def test_all_that_live_average() -> None:
    """A rank that still computes is waited for; one that is lost is not."""
    waiting = [member(2), member(0)]

    assert formed(waiting, processes(0, 1, 2), FORMER) is None
    assert formed(waiting, processes(0, 2), FORMER) == [0, 2]
    assert formed([*waiting, member(1)], processes(0, 1, 2), FORMER) == [0, 1, 2]


def test_the_first_averaging_needs_all_ranks() -> None:
    """A rank that has not started gives no sign of life, and is no lost one."""
    waiting = [member(0, 0), member(1, 0)]

    assert formed(waiting, processes(0, 1), None) is None
    assert formed([*waiting, member(2, 0)], processes(0, 1, 2), None) == [0, 1, 2]
    assert formed(waiting, processes(0, 1), None, LIMITS.patience_ns) == [0, 1]


def test_patience_ends() -> None:
    """A rank that lives and never comes, as one in an endless loop, does not stop the others for good."""
    waiting = [member(0), member(2)]

    assert formed(waiting, processes(0, 1, 2), FORMER, LIMITS.patience_ns - 1) is None
    assert formed(waiting, processes(0, 1, 2), FORMER, LIMITS.patience_ns) == [0, 2]


def test_a_new_process_waits_for_those_with_the_newest_parameters() -> None:
    """However long they compute: alone it would begin another training."""
    new = member(1, 0, incarnation=2)

    assert formed([new], {(1, 2), (0, 1), (2, 1)}, FORMER, 10 * LIMITS.patience_ns) is None
    assert formed([new, member(0), member(2)], {(1, 2), (0, 1), (2, 1)}, FORMER) == [0, 1, 2]
    assert formed([new], {(1, 2)}, FORMER) == [1]


def test_a_lost_process_that_waited_is_no_member() -> None:
    """Its entry in the store outlives it, and a new process with its rank is another one."""
    waiting = [member(0), member(1), member(2)]

    assert formed(waiting, {(0, 1), (2, 1), (1, 2)}, FORMER) is None
    assert formed(waiting, processes(0, 2), FORMER) == [0, 2]


def test_the_parameters_of_the_newest_averaging_count() -> None:
    """A rank that was away takes them; before the first averaging they are the lowest rank's."""
    back = Quorum((member(0, 3), member(1, 0), member(2, 3)))

    assert [each.rank for each in back.present] == [0, 2]
    assert (back.rounds, back.step) == (3, 30)
    assert [each.rank for each in Quorum((member(1, 0), member(2, 0))).present] == [1]


def test_a_quorum_is_written_and_read() -> None:
    """The store holds text."""
    assert Quorum.parse(FORMER.text()) == FORMER


@pytest.mark.parametrize(
    ("done", "alive", "outcome"),
    [
        ((0, 1, 2), (0, 1, 2), AveragingOutcome.COMMITTED),
        ((0, 1, 2), (0,), AveragingOutcome.COMMITTED),
        ((0, 1), (0, 1, 2), None),
        ((0, 1), (0, 1), AveragingOutcome.ABORTED),
    ],
)
def test_an_averaging_counts_where_all_members_have_the_mean(
    done: tuple[int, ...], alive: tuple[int, ...], outcome: AveragingOutcome | None
) -> None:
    """One that is lost without it undoes it for all; one that is lost with it does not."""
    assert outcome_of(FORMER, processes(*done), processes(*alive)) is outcome


def test_a_process_that_came_again_has_not_the_mean() -> None:
    """A rank whose process was replaced within the averaging is lost to it, although its rank lives."""
    assert outcome_of(FORMER, processes(0, 1), {(0, 1), (1, 1), (2, 2)}) is AveragingOutcome.ABORTED


def test_a_rank_lives_while_its_signs_change() -> None:
    """By the observer's own clock; an equal sign is no new one, and an empty one ends it."""
    signs = SignsOfLife()
    signs.see(0, sign_text((0, 7), 1), 100)
    signs.see(0, sign_text((0, 7), 1), 104)
    signs.see(1, sign_text((1, 8), 1), 100)
    signs.see(1, sign_text((1, 8), 2), 104)

    assert signs.alive(104, 5) == {(0, 7), (1, 8)}
    assert signs.alive(106, 5) == {(1, 8)}
    signs.see(1, "", 106)
    assert signs.alive(106, 5) == frozenset()
