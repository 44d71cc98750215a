"""When a communication ended for each rank, where the trace shows it only indirectly."""

from __future__ import annotations

from timesyncd.jobs.trace_clocks import TraceClockOffset
from timesyncd.jobs.trace_ends import call_ends
from timesyncd.traces.operations import Communication, EndKind, RankTrace

MS = 1_000_000
ONE_CLOCK = {0: TraceClockOffset(0.0, 0.0), 1: TraceClockOffset(0.0, 0.0)}


def trace(rank: int, *calls: Communication, busy: tuple[tuple[int, int], ...] = ()) -> RankTrace:
    return RankTrace(f"rank{rank}.json", rank, 2, "node", calls, busy)


def message(kind: str, begin_ms: float, end_ms: float) -> Communication:
    begin, end = round(begin_ms * MS), round(end_ms * MS)
    return Communication(kind, "messages", (0, 1), None, begin, end, end=EndKind.SEEN)


def collective(begin_ms: float, end_ms: float, end: EndKind = EndKind.OWN) -> Communication:
    return Communication("all_reduce", "all", (0, 1), None, round(begin_ms * MS), round(end_ms * MS), end=end)


def test_a_sender_that_computes_on_did_not_wait_until_it_looked() -> None:
    """It sends at 1 ms, computes until 9 ms, and sees then that the message had long arrived."""
    by_rank = {
        0: trace(0, message("send", 1, 9), busy=((2 * MS, 9 * MS),)),
        1: trace(1, message("recv", 0, 1.1)),
    }

    found = call_ends(by_rank, [[(0, 0), (1, 0)]], ONE_CLOCK)

    assert found.ends_ns[0, 0] == round(1.1 * MS)
    assert found.seen_ns == {(0, 0): 9 * MS}
    assert found.durations_ns == {(0, 0): round(0.1 * MS), (1, 0): round(0.1 * MS)}


def test_a_receiver_that_only_waits_ends_when_it_went_on() -> None:
    """It receives from 0 ms, the sender comes at 5 ms, and it goes on at 5.3 ms: what it waited is the sender's."""
    by_rank = {0: trace(0, message("send", 5, 5.1)), 1: trace(1, message("recv", 0, 5.3))}

    found = call_ends(by_rank, [[(0, 0), (1, 0)]], ONE_CLOCK)

    assert found.seen_ns == {}
    assert found.durations_ns == {(0, 0): round(0.1 * MS), (1, 0): round(0.3 * MS)}


def test_two_messages_that_end_together_are_one_wait() -> None:
    """A rank sends and receives in one batch and waits for both in order: only the last one kept it."""
    received = Communication("recv", "messages", (1, 0), None, 0, round(0.1 * MS), end=EndKind.SEEN)
    answer = Communication("recv", "messages", (1, 0), None, 0, round(7.01 * MS), end=EndKind.SEEN)
    sent = Communication("send", "messages", (1, 0), None, 0, round(0.1 * MS), end=EndKind.SEEN)
    by_rank = {
        0: trace(0, received, message("send", 0, 7), answer),
        1: trace(1, sent, message("recv", 6.9, 7), sent),
    }
    met = [[(1, 0), (0, 0)], [(0, 1), (1, 1)], [(1, 2), (0, 2)]]

    found = call_ends(by_rank, met, ONE_CLOCK)

    assert found.seen_ns == {(0, 2): round(7.01 * MS)}
    assert found.durations_ns[0, 1] == round(0.1 * MS)


def test_each_rank_leaves_a_collective_at_its_own_end() -> None:
    """The last one comes at 4 ms; one rank goes on at 5 ms, and a busy host lets the other one sleep until 6 ms."""
    by_rank = {0: trace(0, collective(0, 6)), 1: trace(1, collective(4, 5))}

    found = call_ends(by_rank, [[(0, 0), (1, 0)]], ONE_CLOCK)

    assert found.durations_ns == {(0, 0): 2 * MS, (1, 0): 1 * MS}


def test_without_aligned_clocks_the_shortest_time_inside_is_the_transfer() -> None:
    """Then only durations count, each by one clock."""
    by_rank = {0: trace(0, collective(0, 6)), 1: trace(1, collective(4, 5))}

    found = call_ends(by_rank, [[(0, 0), (1, 0)]], {})

    assert found.durations_ns == {(0, 0): 1 * MS, (1, 0): 1 * MS}


def test_a_collective_without_an_end_lasts_until_the_last_rank_came() -> None:
    """Gloo annotates no barrier: rank 0 calls it at 1 ms, rank 1 at 3 ms."""
    by_rank = {0: trace(0, collective(1, 1, EndKind.NONE)), 1: trace(1, collective(3, 3, EndKind.NONE))}

    found = call_ends(by_rank, [[(0, 0), (1, 0)]], ONE_CLOCK)

    assert found.ends_ns == {(0, 0): 3 * MS, (1, 0): 3 * MS}
    assert set(found.durations_ns.values()) == {0}
