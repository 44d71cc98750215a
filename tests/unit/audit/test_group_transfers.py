"""Waiting, latency and bandwidth of traced collectives, for ranks whose times are known by arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from pipeline_job import SimulatedJob, run
from pipeline_traces import inspector_log

from timesyncd.audit.blame import blame_lines, blame_report
from timesyncd.audit.blame_page import blame_html
from timesyncd.audit.group_transfers import MIN_CALLS, GroupTransfers, group_transfers
from timesyncd.traces.nccl_inspector import inspected_ranks, read_inspector_log
from timesyncd.traces.operations import Communication, EndKind, RankTrace

US, MS = 1_000, 1_000_000
MB = 1_000_000

#: 50 us and an octet a nanosecond; each rank's clock has an epoch of its own.
LATENCY_NS, APART_NS = 50 * US, 10**9


def traces(
    sizes: Sequence[int] = (MB, 4 * MB), late_ns: Sequence[int] = (0, 0), calls: int = 60, kind: str = "all_reduce"
) -> list[RankTrace]:
    """By rank: `late_ns` after the first, it comes to each call, whose transfer then takes what its size takes."""
    ranks = tuple(range(len(late_ns)))
    found: list[list[Communication]] = [[] for _ in ranks]
    at_ns = 0
    for call in range(calls):
        size = sizes[call % len(sizes)]
        end_ns = at_ns + max(late_ns) + LATENCY_NS + size
        for rank, late in enumerate(late_ns):
            epoch = rank * APART_NS
            found[rank].append(Communication(kind, "world", ranks, None, epoch + at_ns + late, epoch + end_ns, size))
        at_ns = end_ns + MS
    return [RankTrace(f"{rank}", rank, len(ranks), "node", tuple(own), None) for rank, own in enumerate(found)]


def only(found: Sequence[GroupTransfers]) -> GroupTransfers:
    (one,) = found
    return one


def test_latency_and_bandwidth_are_those_of_the_transfer() -> None:
    """Equal ranks: 50 us of a mean of 2.55 ms are latency, the octets are the rest."""
    found = only(group_transfers(traces()))

    assert (found.kind, found.ranks, found.calls, found.inside_ns) == ("all_reduce", 2, 60, 2_550_000)
    assert found.latency is not None and found.bandwidth is not None
    assert (found.latency_ns, found.bytes_per_s) == (LATENCY_NS, 10**9)
    assert found.latency.value == pytest.approx(0.05 / 2.55)
    assert found.bandwidth.value == pytest.approx(2.5 / 2.55)
    assert found.waiting.value == 0 == found.waiting.error


def test_a_late_rank_is_waiting_without_any_clock() -> None:
    """Three ranks wait 4 ms for the fourth: three quarters of the ranks, and no slower link."""
    found = only(group_transfers(traces(late_ns=(0, 0, 4 * MS, 0))))

    assert found.ranks == 4
    assert found.waiting.value == pytest.approx(3 * 4 / (3 * 4 + 4 * 2.55))
    assert found.bytes_per_s == 10**9


def test_sizes_that_are_alike_separate_waiting_alone() -> None:
    """What a transfer costs by octet is not known from one size."""
    found = only(group_transfers(traces(sizes=(MB,), late_ns=(0, MS))))

    assert (found.latency, found.bandwidth, found.bytes_per_s) == (None, None, None)
    assert found.waiting.value == pytest.approx(1 / (1 + 2 * 1.05))


def test_what_no_size_explains_stays_unexplained() -> None:
    """A transfer of fifteen that takes 30 ms longer is in no part, and its share has an error."""
    slow = [
        replace(
            trace,
            communications=tuple(
                replace(one, end_ns=one.end_ns + 30 * MS * (number % 15 == 0), begin_ns=one.begin_ns)
                for number, one in enumerate(trace.communications)
            ),
        )
        for trace in traces()
    ]
    found = only(group_transfers(slow))

    assert found.latency is not None and found.bandwidth is not None
    assert found.latency.value + found.bandwidth.value == pytest.approx(2.55 / 4.55, rel=0.01)
    assert found.bandwidth.error > 0.01


@pytest.mark.parametrize("change", [{"bytes": None}, {"end": EndKind.SEEN}, {"kind": "broadcast"}, {"number": 7}])
def test_what_is_not_recorded_is_not_summed_up(change: dict[str, object]) -> None:
    """A size, an own end, a collective that waits for all; and a call that the other rank numbers otherwise."""
    first, second = traces()
    changed = replace(first, communications=tuple(replace(one, **change) for one in first.communications))  # type: ignore[arg-type]

    assert group_transfers([changed, second]) == []


def test_a_rank_without_a_trace_may_be_the_last_one() -> None:
    """So nothing is said of its group's waiting; nor of a few calls."""
    assert group_transfers(traces()[:1]) == []
    assert group_transfers(traces(calls=MIN_CALLS - 1)) == []


def test_the_report_states_it_in_a_line() -> None:
    """On the terminal and on the page, with the errors."""
    report = blame_report(["a", "b"], traces(late_ns=(0, 4 * MS)))

    assert report.transfers == group_transfers(traces(late_ns=(0, 4 * MS)))
    assert (
        "  all_reduce of 2 ranks: inside for 4.55 ms, 44 % ± 0 % waiting for ranks, 1 % ± 0 % latency, "
        "55 % ± 0 % bandwidth; it takes 50 µs plus its octets at 1 GB/s"
    ) in blame_lines(report)
    assert "55 % ± 0 % bandwidth" in blame_html(report)


def test_a_log_of_nccl_inspector_shows_the_wait_for_the_slow_rank() -> None:
    """Rank 5 computes half as long again: the others wait for it inside their kernels, and the link is no slower."""
    job = SimulatedJob(dp=8, pp=1, tp=1, slow={5: 1.5}, steps=24)
    runs = run(job)
    calls = [
        call
        for rank in range(job.world_size)
        for call in read_inspector_log(inspector_log(job, runs, rank).encode(), f"{rank}.log")
    ]
    slow = blame_report(["logs"], inspected_ranks(calls, "logs"))

    assert slow.causes and slow.causes[0].rank == 5
    assert slow.transfers and slow.transfers[0].ranks == 8
    assert slow.transfers[0].waiting.value - slow.transfers[0].waiting.error > 0.5
