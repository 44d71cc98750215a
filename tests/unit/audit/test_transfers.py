"""Waiting, latency and bandwidth separated, for synthetic jobs whose parts are known by arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from audit_lab import MS, job, late, noisy
from bucket_lab import DEFAULT, EVEN, trained, truly_exposed

from timesyncd.audit.build import comparable_runs, report
from timesyncd.audit.headline import exposed_part_lines, limit_text
from timesyncd.audit.html import html, summary
from timesyncd.audit.measured import measured
from timesyncd.audit.transfers import MIN_STEPS, TransferSplit, divide
from timesyncd.ipc.job_datagram import Kind
from timesyncd.ipc.network_record import Connection, Endpoint, NetworkRecord, PackingPart, PackingTime
from timesyncd.ipc.tcp_info import TcpInfo
from timesyncd.jobs.arrivals import StepMark, Sync, compare
from timesyncd.jobs.recording import Recording


def divided(recording: Recording) -> TransferSplit | str:
    now = measured(recording)
    return divide(now, comparable_runs(now))


def split_of(recording: Recording) -> TransferSplit:
    found = divided(recording)
    assert isinstance(found, TransferSplit), found
    return found


def total_ns(split: TransferSplit) -> float:
    return split.waiting.ns + split.latency.ns + split.bandwidth.ns + split.rest.ns


def test_a_slow_link_is_named_with_what_a_faster_one_saves() -> None:
    """Of 9.5 ms, 14 MiB at half a millisecond each and a queue of 0.5 ms are bandwidth; 2 ms are the last latency."""
    split = split_of(trained())

    assert truly_exposed(EVEN, DEFAULT, 2.0, 0.5) == 9.5
    assert split.exposed.ns == pytest.approx(9.5 * MS, abs=1_000)
    assert split.bandwidth.ns == pytest.approx(7.5 * MS, rel=0.03)
    assert split.latency.ns == pytest.approx(2 * MS, rel=0.03)
    assert split.waiting.ns == 0
    assert split.limit == "bandwidth"
    assert split.saved_by_bandwidth.ns == pytest.approx(
        9.5 * MS - truly_exposed(EVEN, DEFAULT, 2.0, 0.25) * MS, rel=0.03
    )


def test_a_long_latency_is_named_with_what_a_shorter_one_saves() -> None:
    """6 ms of latency and 0.05 ms a MiB: the last bucket of 14 MiB exposes 6.7 ms."""
    split = split_of(trained(latency_ms=6, ms_per_mib=0.05))

    assert split.limit == "latency"
    assert split.latency.ns == pytest.approx(6 * MS, rel=0.03)
    assert split.saved_by_latency.ns == pytest.approx(3 * MS, rel=0.03)
    assert split.bandwidth.ns == pytest.approx(0.7 * MS, rel=0.1)


@pytest.mark.parametrize("noise_ms", [0.0, 0.5, 3.0])
def test_the_parts_add_up_to_the_exposed_time(noise_ms: float) -> None:
    """What queues add by chance is in the rest, not in the latency or the bandwidth."""
    split = split_of(trained(noise_ms=noise_ms, steps=200))

    assert total_ns(split) == pytest.approx(split.exposed.ns, abs=10)
    cost, *others = split.costs
    assert not others and cost.kind == Kind.BUCKET and cost.sizes == 2
    assert abs(cost.latency.ns - 2 * MS) <= cost.latency.error_ns + 0.2 * MS
    assert cost.bytes_per_s_low <= cost.bytes_per_s <= (cost.bytes_per_s_high or float("inf"))


def test_a_late_rank_is_waiting_and_not_transfer() -> None:
    """Sizes of 1 and 4 MB; rank 1 is 20 ms late in every step, and the transfers are short."""
    split = split_of(
        of_sizes(job(computing=late(1, 20 * MS, noisy()), transfers_ns=(MS, 4 * MS)), (1_000_000, 4_000_000))
    )

    assert split.limit == "waiting"
    assert split.waiting.ns == pytest.approx(10 * MS, rel=0.1)
    assert split.saved_by_bandwidth.ns < 3 * MS


def of_sizes(recording: Recording, sizes: tuple[int, ...]) -> Recording:
    """The same marks, with these bytes by number of the synchronization."""

    def sized(sync: Sync) -> Sync:
        arrivals = {rank: replace(one, bytes=sizes[sync.sync]) for rank, one in sync.arrivals.items()}
        return replace(sync, arrivals=arrivals, comparison=compare(arrivals))

    return replace(recording, syncs=[sized(sync) for sync in recording.syncs])


def test_transfers_of_one_size_are_not_divided() -> None:
    """They cannot separate latency from bandwidth; the reason names the remedy."""
    found = divided(job(steps=60))

    assert isinstance(found, str)
    assert "bucket_cap_mb_list" in found


def test_too_few_steps_are_not_divided() -> None:
    """An error needs parts of the steps."""
    found = divided(trained(steps=MIN_STEPS - 1))

    assert isinstance(found, str)
    assert str(MIN_STEPS) in found


def test_ranks_that_do_not_compare_are_not_divided() -> None:
    """A wait for a rank would look like a slow transfer."""
    found = divide(measured(trained()), [])

    assert isinstance(found, str)
    assert "not comparable" in found


def test_a_period_of_two_kinds_fits_neither() -> None:
    """A gather that shares the link with the third bucket says nothing of the cost of either: the first two are fitted."""
    recording = trained(caps=(1.0, 4.0, 25.0))
    mixed = [replace(sync, kind=Kind.CUSTOM) if sync.sync == 3 else sync for sync in recording.syncs]
    split = split_of(replace(recording, syncs=mixed))

    assert [(cost.kind, cost.sizes) for cost in split.costs] == [(Kind.BUCKET, 2)]
    assert split.costs[0].latency.ns == pytest.approx(2 * MS, rel=0.01)
    assert total_ns(split) == pytest.approx(split.exposed.ns, abs=10)


def test_the_report_states_the_limit_and_the_price_of_another_link() -> None:
    """One sentence on the terminal, all parts on the page, and the numbers in report.json."""
    found = report(measured(trained()))

    assert limit_text(found) == "Most of the exposed time is bandwidth: fewer bytes or a faster link save most."
    assert limit_text(found) in summary(found, Path("out"))
    assert any("2 ms ± 0 ns plus the transfer at 2,097 MB/s" in line for line in exposed_part_lines(found))
    assert found.exposed_parts is not None and found.exposed_parts.exposed.ns == 9_500_000


def test_the_report_states_why_nothing_is_told_apart() -> None:
    """No limit is named, and the reason is in report.json and on the page."""
    found = report(measured(job(steps=60)))

    assert found.exposed_parts is None and limit_text(found) is None
    assert found.no_exposed_parts in exposed_part_lines(found)[0]


def networks(
    ns_per_byte: tuple[float, float] = (0.0, 0.0), retransmitted: int = 0, rto_ns: int = 200 * MS
) -> dict[int, NetworkRecord]:
    """Two ranks that packed by hooks, and one connection between them on which rank 0 sent segments again."""
    info = TcpInfo(1, rto_ns, MS, retransmitted, 10**6, 10**6, MS, 10_000, None, None, None, None, None)
    found = {}
    for rank, ns in enumerate(ns_per_byte):
        here, there = Endpoint(f"10.0.0.{rank}", 5), Endpoint(f"10.0.0.{1 - rank}", 5)
        packing = {PackingPart.HOOKS: PackingTime(round(ns * 10**9), 10**9)} if ns else {}
        found[rank] = NetworkRecord(
            0, 10**9, connections=(Connection(here, there, replace(info, retransmitted=retransmitted * (rank == 0))),)
        )
        found[rank] = replace(found[rank], packing=packing)
    return found


def test_packing_is_taken_out_of_the_bandwidth() -> None:
    """Of half a millisecond a MiB a hook spends 0.4: the link is not what limits the job, and its octets stay its own."""
    recording = trained(kind=Kind.HOOK)
    per_byte = 0.4 * MS / (1 << 20)
    plain = split_of(recording)
    split = split_of(replace(recording, networks=networks((per_byte, per_byte))))

    assert plain.serialization is None and plain.saved_by_serialization is None
    assert split.serialization is not None and split.saved_by_serialization is not None
    assert total_ns(split) + split.serialization.ns == pytest.approx(split.exposed.ns, abs=10)
    assert split.serialization.ns + split.bandwidth.ns == pytest.approx(plain.bandwidth.ns, rel=0.001)
    # 26 MiB of 0.4 ms are no longer queued, then 0.1 ms a MiB is left of the last 14 MiB.
    assert split.bandwidth.ns < split.serialization.ns
    assert split.limit == "serialization"


def test_ranks_that_pack_at_different_speeds_widen_the_error() -> None:
    """A third of the mean is half of their difference."""
    recording = replace(trained(kind=Kind.HOOK), networks=networks((0.0001, 0.0002)))
    split = split_of(recording)

    assert split.serialization is not None
    assert split.serialization.error_ns == pytest.approx(split.serialization.ns / 3, rel=0.1)


def test_packing_of_hooks_says_nothing_of_plain_buckets() -> None:
    """A model without a hook packs inside DDP, in its backward pass: no part of the transfer."""
    split = split_of(replace(trained(), networks=networks((0.0003, 0.0003))))

    assert split.serialization is not None and split.serialization.ns == 0
    assert split.limit == "bandwidth"


def stalling(recording: Recording, every: int = 4, stall_ms: int = 200) -> Recording:
    """In each so many steps the last transfer takes this much longer, as a lost segment makes it take."""
    moved: list[Sync] = []
    later_ns = 0
    for step in range(len(recording.steps[0])):
        mine = [sync for sync in recording.syncs if sync.step == step]
        grown_ns = later_ns + (stall_ms * MS if step % every == 0 else 0)
        moved += [_later(sync, later_ns, grown_ns if sync is mine[-1] else later_ns) for sync in mine]
        later_ns = grown_ns
    steps = {rank: _later_steps(marks, every, stall_ms * MS) for rank, marks in recording.steps.items()}
    return replace(recording, syncs=moved, steps=steps)


def _later(sync: Sync, begin_ns: int, end_ns: int) -> Sync:
    arrivals = {
        rank: replace(
            one, arrival_ns=one.arrival_ns + begin_ns, begin_ns=one.begin_ns + begin_ns, end_ns=one.end_ns + end_ns
        )
        for rank, one in sync.arrivals.items()
    }
    return replace(sync, arrivals=arrivals, comparison=compare(arrivals))


def _later_steps(marks: Sequence[StepMark], every: int, stall_ns: int) -> list[StepMark]:
    found, later_ns = [], 0
    for mark in marks:
        ready_ns = None if mark.ready_ns is None else mark.ready_ns + later_ns
        grown_ns = later_ns + (stall_ns if mark.step % every == 0 else 0)
        found.append(StepMark(mark.step, mark.arrival_ns + later_ns, ready_ns, mark.end_ns + grown_ns))
        later_ns = grown_ns
    return found


@pytest.mark.parametrize(
    ("retransmitted", "rto_ns", "limit"),
    [(0, 200 * MS, "unknown"), (9, 200 * MS, "unknown"), (20, 200 * MS, "loss"), (20, 10 * MS, "unknown")],
)
def test_loss_is_named_only_where_retransmissions_can_explain_the_rest(
    retransmitted: int, rto_ns: int, limit: str
) -> None:
    """15 of 60 steps stall for 200 ms: 20 timeouts of 200 ms can explain that, 20 of 10 ms cannot, and 9 show nothing."""
    recording = stalling(trained(steps=60))
    split = split_of(replace(recording, networks=networks(retransmitted=retransmitted, rto_ns=rto_ns)))

    assert split.rest.ns == pytest.approx(50 * MS, rel=0.1)
    assert split.limit == limit


def test_the_report_states_the_evidence_beside_the_limit() -> None:
    """In the one line of the terminal, with the best change against what limits the job, and in report.json."""
    now = measured(replace(trained(steps=200), networks=networks(retransmitted=310)))
    found = report(now)
    line = limit_text(found)

    assert line is not None and line in summary(found, Path("out"))
    assert line.startswith("Most of the exposed time is bandwidth: fewer bytes or a faster link save most.")
    assert "which saves " in line
    assert line.endswith(
        "Rank 0 retransmitted 3.1 % of its segments to rank 1 at 10.0.0.1; rtt 1 ms against a minimum of 1 ms."
    )
    assert found.network is not None and found.network.links[0].retransmitted == 310
    page = html(found, now)
    assert '<table id="links">' in page and "310 of 10,000 segments" in page and line.split(": ")[0] in page
    assert found.exposed_parts is not None and found.exposed_parts.limit == "bandwidth"


def test_retransmissions_without_a_fitted_model_are_a_fact_and_no_share() -> None:
    """Transfers of one size are not divided: the page has the fact, and names no limit."""
    found = report(measured(replace(job(steps=60), networks=networks(retransmitted=310))))

    assert found.exposed_parts is None and limit_text(found) is None
    assert "3.1 % of its segments" in exposed_part_lines(found)[1]
