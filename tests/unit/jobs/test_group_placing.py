"""Which process group a collective of gloo ran in: by its thread, by what all members call, and by when they leave."""

from __future__ import annotations

from dataclasses import replace

from timesyncd.jobs.group_placing import placed
from timesyncd.traces.operations import EndKind, ProcessGroup, RankTrace, UnplacedCall, UnusableTrace

STEPS = 6
DATA = {0: (0, 2), 1: (1, 3), 2: (0, 2), 3: (1, 3)}
MODEL = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}


def call(kind: str, begin: int, end: int, lane: int | None, peer: int | None = None) -> UnplacedCall:
    how = EndKind.SEEN if kind in ("send", "recv") else EndKind.OWN
    return UnplacedCall(kind, begin, end, lane, peer, None, how)


def trace(rank: int, calls: list[UnplacedCall]) -> RankTrace:
    groups = (ProcessGroup("0", (0, 1, 2, 3)), ProcessGroup("1 dp", DATA[rank]), ProcessGroup("3 tp", MODEL[rank]))
    return RankTrace(f"rank{rank}.json", rank, 4, "node", (), (), unplaced=tuple(calls), groups=groups)


def mesh() -> list[RankTrace]:
    """Both groups call the same collective; the pairs of a model leave at moments of their own."""
    found = []
    for rank in range(4):
        calls = []
        for step in range(STEPS):
            at = step * 10_000_000
            pair = 300_000 * (MODEL[rank] == (2, 3))
            calls.append(call("all_reduce", at + rank, at + 2_000_000 + pair + rank, 100 * rank + 12))
            column = 300_000 * (DATA[rank] == (1, 3))
            calls.append(call("all_reduce", at + 4_000_000, at + 6_000_000 + column + rank, 100 * rank + 11))
        found.append(trace(rank, calls))
    return found


def groups_of(found: RankTrace | UnusableTrace) -> list[tuple[int, ...]]:
    assert isinstance(found, RankTrace)
    return [each.ranks for each in found.communications]


def test_threads_serve_groups_in_the_order_in_which_these_were_made() -> None:
    """The lower thread is that of the data's group, though both call the same kind equally often."""
    for rank, found in enumerate(placed(mesh())):
        assert groups_of(found) == [MODEL[rank], DATA[rank]] * STEPS


def test_two_threads_at_most_serve_a_group() -> None:
    """All groups call the same at nearly the same moments, so that the number of threads tells them apart."""
    lanes = (11, 12, 21, 22) * 2
    traces = []
    for rank in range(4):
        later = {1: 50_000 * (DATA[rank] == (1, 3)), 2: 50_000 * (MODEL[rank] == (2, 3))}
        calls = [
            call("all_reduce", number * 1_000_000, number * 1_000_000 + 500_000 + later[lane // 10], lane)
            for number, lane in enumerate(lanes)
        ]
        traces.append(trace(rank, calls))

    for rank, found in enumerate(placed(traces)):
        assert groups_of(found) == [DATA[rank], DATA[rank], MODEL[rank], MODEL[rank]] * 2


def test_a_message_names_a_rank_of_its_group() -> None:
    """Rank 0 of the group of (1, 3) is rank 1 of the job."""
    found = []
    for rank in range(4):
        kind, peer = ("send", 1) if rank < 2 else ("recv", 0)
        calls = [call("all_reduce", 10, 20 + rank % 2 * 1_000, 5), call(kind, 30, 40, None, peer)]
        found.append(trace(rank, calls))

    ends = [groups_of(each)[1] for each in placed(found)]

    assert ends == [(0, 2), (1, 3), (0, 2), (1, 3)]


def test_many_groups_and_threads_do_not_take_all_combinations() -> None:
    """Rank 0 is in twelve groups, each with two threads: 800 million ways in their order, and one with two threads each."""
    pairs = {number: ProcessGroup(f"{number} pair", (0, number)) for number in range(1, 13)}
    calls = {
        number: [
            call("all_reduce", at, at + 1_000, 10 * number + thread)
            for thread in range(2)
            for at in [100_000 * number + 10_000 * thread]
        ]
        for number in pairs
    }
    first = RankTrace(
        "rank0.json",
        0,
        13,
        "node",
        (),
        (),
        unplaced=tuple(each for own in calls.values() for each in own),
        groups=tuple(pairs.values()),
    )
    others = [
        RankTrace(f"rank{number}.json", number, 13, "node", (), (), unplaced=tuple(own), groups=(pairs[number],))
        for number, own in calls.items()
    ]

    found = placed([first, *others])

    assert groups_of(found[0]) == [(0, number) for number in pairs for _ in range(2)]


def test_ranks_that_do_not_call_the_same_leave_the_groups_open() -> None:
    """A guess would accuse a wrong rank, so all traces are unusable, with the reason."""
    traces = mesh()
    traces[3] = replace(traces[3], unplaced=traces[3].unplaced[:2])

    reasons = [each.reason for each in placed(traces) if isinstance(each, UnusableTrace)]

    assert len(reasons) == 4
    assert "in which of 3 process groups a collective ran" in reasons[0]


def test_a_peer_that_is_not_recorded_states_what_to_record() -> None:
    """In a group of four ranks only shapes show the peer."""
    calls = [call("send", 1, 2, None, None)]
    traces = [replace(trace(rank, calls), groups=(ProcessGroup("0", (0, 1, 2, 3)),)) for rank in range(4)]

    (first, *_) = placed(traces)

    assert isinstance(first, UnusableTrace)
    assert "profile with record_shapes=True" in first.reason
