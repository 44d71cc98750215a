"""Waiting, latency and bandwidth separated, for synthetic jobs whose parts are known by arithmetic."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from audit_lab import MS, job, late, noisy
from bucket_lab import DEFAULT, EVEN, trained, truly_exposed

from timesyncd.audit.build import comparable_runs, report
from timesyncd.audit.headline import exposed_part_lines, limit_text
from timesyncd.audit.html import summary
from timesyncd.audit.measured import measured
from timesyncd.audit.transfers import MIN_STEPS, TransferSplit, divide
from timesyncd.ipc.job_datagram import Kind
from timesyncd.jobs.arrivals import Sync, compare
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
