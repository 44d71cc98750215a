"""Which groups of a job's ranks are published, and when they change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from batches import NOW, batch, mark
from grandmaster_states import follower

from timesyncd.clocks import NS_PER_S
from timesyncd.config import HubSettings
from timesyncd.hub.groups import (
    BY_DELAY,
    BY_TOPOLOGY,
    MIN_DELAYS,
    NO_GROUPS,
    SEARCH_EVERY_NS,
    Delays,
    GroupsExplanation,
    RankGroups,
    decide,
    group_numbers,
)
from timesyncd.hub.hub import Hub
from timesyncd.ipc.job_datagram import Kind, Mark
from timesyncd.ipc.job_segment import MAX_RANKS
from timesyncd.ipc.wire_types import CodedReason
from timesyncd.messages.jobs import GroupsReason, JobState

US = 1_000

#: Ranks 0 and 1 share a node, 0 to 3 a rack.
PLACES = ("h/r1/a", "h/r1/a", "h/r1/b", "h/r1/b", "h/r2/c", "h/r2/c")
BY_PLACES = ((0, 0, 1, 1, 2, 2), (0, 0, 0, 0, 1, 1))


def delays(*groups: Iterable[int], near_ns: int = 10 * US, far_ns: int = 100 * US, error_ns: int = US) -> Delays:
    """All pairs; those within a group are near."""
    of = {rank: number for number, group in enumerate(groups) for rank in group}
    return {(a, b): (near_ns if of[a] == of[b] else far_ns, error_ns) for a in of for b in of if a != b}


ODD_AND_EVEN = delays((0, 2, 4), (1, 3, 5))
NONE = delays((0, 1, 2, 3, 4, 5))

ONE_OF_SIX = CodedReason(GroupsReason.RANKS_MISSING, "1 of 6 ranks reporting")


def decisions(*rounds: tuple[int, tuple[str, ...] | GroupsExplanation, Delays | None]) -> list[RankGroups]:
    """What is decided, round by round, of (run, places, delays)."""
    decided: list[RankGroups] = []
    measured: RankGroups | None = None
    for run, labels, of_pairs in rounds:
        decided.append(decide(decided[-1] if decided else None, measured, run, labels, of_pairs))
        measured = decided[-1] if decided[-1].reason == BY_DELAY else measured
    return decided


def test_groups_are_there_as_soon_as_the_places_are() -> None:
    """Until then there is the reason why not; nodes first, then racks; the one group of all is left out."""
    decided = decisions((0, ONE_OF_SIX, None), (0, PLACES, None))

    assert [(each.groups, each.reason) for each in decided] == [((), ONE_OF_SIX), (BY_PLACES, BY_TOPOLOGY)]


@pytest.mark.parametrize("labels", [("/a", "/b", "/c"), ("/a", "/a")], ids=["all apart", "all together"])
def test_without_a_difference_there_are_no_groups(labels: tuple[str, ...]) -> None:
    """Every rank alone, or all ranks together, is no grouping."""
    (decided,) = decisions((0, labels, None))

    assert (decided.groups, decided.reason) == ((), NO_GROUPS)


def test_more_ranks_than_the_segment_holds_have_no_groups() -> None:
    """The segment has room for so many; half a grouping is none."""
    (decided,) = decisions((0, ("/a", "/b") * MAX_RANKS, None))

    assert (decided.groups, decided.reason.code, str(MAX_RANKS) in decided.reason.text) == (
        (),
        GroupsReason.TOO_MANY_RANKS,
        True,
    )


def test_a_gap_in_the_delays_changes_them_once() -> None:
    """Places state what should be near, delays what is near. Later measurements change nothing: the ranks have built their groups."""
    decided = decisions(
        (0, PLACES, None), (0, PLACES, NONE), (0, PLACES, ODD_AND_EVEN), (0, PLACES, delays((0, 1), (2, 3), (4, 5)))
    )

    assert [each.groups for each in decided] == [BY_PLACES, BY_PLACES, ((0, 1, 0, 1, 0, 1),), ((0, 1, 0, 1, 0, 1),)]
    assert [each.reason for each in decided] == [BY_TOPOLOGY, BY_TOPOLOGY, BY_DELAY, BY_DELAY]


@pytest.mark.parametrize("far_ns", [20 * US, 23 * US], ids=["no gap", "within the errors"])
def test_what_is_not_clear_changes_nothing(far_ns: int) -> None:
    """Twice as long is not enough, with the errors counted against it."""
    decided = decisions((0, PLACES, delays((0, 2, 4), (1, 3, 5), far_ns=far_ns)))

    assert decided[-1].groups == BY_PLACES


@pytest.mark.parametrize("near", [((0, 1), (2, 3), (4, 5)), ((0, 1, 2, 3), (4, 5))], ids=["nodes", "racks"])
def test_delays_that_show_one_of_the_levels_leave_both(near: tuple[tuple[int, ...], ...]) -> None:
    """They do not contradict the other level."""
    decided = decisions((0, PLACES, delays(*near)))

    assert (decided[-1].groups, decided[-1].reason) == (BY_PLACES, BY_TOPOLOGY)


def test_delays_that_agree_with_the_places_leave_a_change_for_later() -> None:
    """The same groups are no change."""
    labels = ("/a", "/b", "/a", "/b", "/a", "/b")
    decided = decisions((0, labels, ODD_AND_EVEN), (0, labels, delays((0, 1, 2), (3, 4, 5))))

    assert [each.groups for each in decided] == [((0, 1, 0, 1, 0, 1),), ((0, 0, 0, 1, 1, 1),)]


def test_a_new_run_begins_with_what_was_measured_in_the_same_places() -> None:
    """Its ranks read them when they start; elsewhere the places count again. Until all are known there are none."""
    moved = (*PLACES[2:], *PLACES[:2])
    decided = decisions(
        (0, PLACES, ODD_AND_EVEN),
        (1, ONE_OF_SIX, None),
        (1, PLACES, None),
        (2, moved, None),
        (2, moved, ODD_AND_EVEN),
    )

    assert [(each.run, each.groups) for each in decided] == [
        (0, ((0, 1, 0, 1, 0, 1),)),
        (1, ()),
        (1, ((0, 1, 0, 1, 0, 1),)),
        (2, ((0, 0, 1, 1, 2, 2), (0, 0, 1, 1, 0, 0))),
        (2, ((0, 1, 0, 1, 0, 1),)),
    ]


def test_groups_are_numbered_by_their_lowest_ranks() -> None:
    """Rank 0 is of group 0 on every level."""
    assert group_numbers((((0, 3), (1, 2)), ((0, 1, 2, 3),))) == ((0, 1, 1, 0),)


class FourRanks:
    """Four ranks on two nodes of two racks, in a hub that receives their marks."""

    def __init__(self) -> None:
        self.hub = Hub(HubSettings(), "hub")
        self.now_ns = NOW
        self._sequence = 0

    def report_nodes(self, *names: str) -> None:
        for number, name in enumerate(names):
            state = follower(name).model_copy(update={"topology": f"hall/rack-{number}", "sequence": self._sequence})
            self.hub.accept_node(state, self.now_ns, live=True)

    def round(self, *marks: tuple[int, Mark]) -> JobState:
        """`marks`: of these ranks, beside a step of each."""
        self._sequence += 1
        self.now_ns += NS_PER_S
        for rank in range(4):
            own = [each for of, each in marks if of == rank]
            message = batch(
                rank, mark(self._sequence), *own, node=f"n{rank // 2}", world_size=4, sequence=self._sequence
            )
            self.hub.accept_marks(message, self.now_ns)
        (state,) = self.hub.advance(self.now_ns, self.now_ns).jobs
        return state


def messages(near: set[frozenset[int]], number: int) -> list[tuple[int, Mark]]:
    """Each pair's two messages of a step, both ends of them."""
    decided, began_ns = [], mark(number).arrival_ns
    for a in range(4):
        for b in range(4):
            if a != b:
                key = number * 100 + a * 10 + b
                took_ns = US if frozenset((a, b)) in near else 100_000 * US
                for rank, kind, at_ns in ((a, Kind.SEND, began_ns), (b, Kind.RECEIVE, began_ns + took_ns)):
                    decided.append(
                        (
                            rank,
                            Mark(step=1, sync=key, kind=kind, arrival_ns=at_ns, begin_ns=at_ns, end_ns=at_ns, bytes=0),
                        )
                    )
    return decided


def test_a_hub_publishes_groups_by_the_nodes() -> None:
    """Once every node has published its topology; before, the reason names a node that has not."""
    job = FourRanks()
    job.report_nodes("n0")
    before = job.round()
    job.report_nodes("n0", "n1")
    after, again = job.round(), job.round()

    assert (before.plan.groups, before.groups_reason) == ((), "n1: this hub has received no state of this node")
    assert (after.plan.groups, after.groups_reason) == (((0, 0, 1, 1),), BY_TOPOLOGY.text)
    assert after.plan.version == before.plan.version + 1
    assert again.plan == after.plan


def test_a_hub_publishes_groups_by_the_measured_delays() -> None:
    """Delays of every pair, often enough; it looks for them now and then."""
    job = FourRanks()
    job.report_nodes("n0", "n1")
    decided = [job.round(*messages({frozenset((0, 2)), frozenset((1, 3))}, number)) for number in range(1, MIN_DELAYS)]
    decided += [job.round(*messages({frozenset((0, 2)), frozenset((1, 3))}, MIN_DELAYS))]
    decided += [job.round() for _ in range(SEARCH_EVERY_NS // NS_PER_S)]

    assert {tuple(map(tuple, state.plan.groups)) for state in decided[: MIN_DELAYS - 1]} == {((0, 0, 1, 1),)}
    assert (decided[-1].plan.groups, decided[-1].groups_reason) == (((0, 1, 0, 1),), BY_DELAY.text)


def test_one_direction_that_was_not_measured_leaves_the_places() -> None:
    """Messages of a rank to itself replace no other pair's: an unknown delay must not count as long."""
    job = FourRanks()
    job.report_nodes("n0", "n1")
    for number in range(1, MIN_DELAYS + SEARCH_EVERY_NS // NS_PER_S + 2):
        to_itself = [replace(mark(number), kind=kind, sync=999) for kind in (Kind.SEND, Kind.RECEIVE)]
        others = [(rank, each) for rank, each in messages({frozenset((0, 2))}, number) if each.sync % 100 != 31]
        state = job.round(*others, *((0, each) for each in to_itself))

    assert len(state.delays) == 12
    assert (state.plan.groups, state.groups_reason) == (((0, 0, 1, 1),), BY_TOPOLOGY.text)


def test_a_hub_that_takes_over_leaves_the_groups_alone() -> None:
    """The ranks have built them, by whatever the other hub knew."""
    job = FourRanks()
    job.report_nodes("n0", "n1")
    state = job.round()
    taking = FourRanks()
    taking.report_nodes("n0", "n1")
    taking.hub.adopt(state.model_copy(update={"plan": replace(state.plan, groups=((0, 1, 1, 0),))}))
    decided = [taking.round() for _ in range(3)]

    assert [each.plan.groups for each in decided] == [((0, 1, 1, 0),)] * 3
    assert decided[-1].groups_reason == "as another hub planned"
