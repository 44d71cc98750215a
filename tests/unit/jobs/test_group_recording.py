"""The ranks' marks of their communicators, as they are recorded, joined over each communicator's ranks."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from timesyncd.audit.groups import group_reports, message_reports
from timesyncd.client import Job
from timesyncd.client.group_meter import GroupMeter
from timesyncd.ipc.group_marks import Communicator
from timesyncd.ipc.job_datagram import Kind
from timesyncd.jobs.group_recording import GroupRecording, recorded_groups
from timesyncd.jobs.recording_files import load

MS = 1_000_000
AT = 1_800_000_000_000_000_000

TP = Communicator("3", (0, 1), "tp")
PP = Communicator("5", (0, 1), "pp", tag=0)


class Ranks:
    """Two ranks of one node that record."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs = [Job("job", rank, 2, 0, "node-a", folder, folder / "marks") for rank in range(2)]

    def meter(self, rank: int) -> GroupMeter:
        meter = self.jobs[rank].open_group_meter()
        assert meter is not None
        return meter

    def mark(
        self, rank: int, communicator: int, number: int, kind: Kind, begin_ms: int, end_ms: int, step: int = 0
    ) -> None:
        begin_ns, end_ns = AT + begin_ms * MS, AT + end_ms * MS
        assert self.meter(rank).mark(communicator, step, number, kind, begin_ns, begin_ns, end_ns, 8)

    def recorded(self) -> GroupRecording:
        for rank, job in enumerate(self.jobs):
            job.meter.mark(0, 0, AT, AT, AT + MS, Kind.STEP)
            self.meter(rank).write()
            job.close()
        found = load(self.folder / "marks").groups
        assert found is not None
        return found


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path)


def test_a_collective_of_a_group_is_joined_over_its_ranks(ranks: Ranks) -> None:
    """By its number in the group; one that a rank lacks is left out, and the report has the skew of the others."""
    assert [ranks.meter(rank).add(TP) for rank in range(2)] == [0, 0]
    for number in range(3):
        ranks.mark(0, 0, number, Kind.ALL_REDUCE, 10 * number, 10 * number + 5)
    for number in (0, 2):
        ranks.mark(1, 0, number, Kind.ALL_REDUCE, 10 * number + 4, 10 * number + 5)
    found = ranks.recorded()

    assert [(sync.communicator, sync.number, sync.kind) for sync in found.syncs] == [
        (TP, 0, Kind.ALL_REDUCE),
        (TP, 2, Kind.ALL_REDUCE),
    ]
    assert [len(found.marks[rank]) for rank in range(2)] == [3, 2]
    (report,) = group_reports(found)
    assert (report.dimension, report.ranks, report.syncs, report.skew_p50_ns) == ("tp", [0, 1], 2, 4 * MS)
    assert report.waited_ns == 3 * 5 * MS + 2 * MS


def test_different_collectives_under_one_number_are_not_joined(ranks: Ranks) -> None:
    """Then the ranks' numbers do not belong together."""
    for rank, kind in enumerate((Kind.ALL_REDUCE, Kind.ALL_GATHER)):
        ranks.meter(rank).add(TP)
        ranks.mark(rank, 0, 0, kind, 0, 5)
        ranks.mark(rank, 0, 1, Kind.BARRIER, 6, 7)
    found = ranks.recorded()

    assert (list(found.syncs), list(found.unmatched)) == ([], [TP])


def test_a_message_has_a_one_way_delay_where_its_receiver_was_there_first(ranks: Ranks) -> None:
    """It takes 3 ms. For a receiver that came later, it is not known when the message had arrived."""
    for rank in range(2):
        ranks.meter(rank).add(PP)
    for number in range(4):
        ranks.mark(0, 0, number, Kind.SEND, 10 * number + 2, 10 * number + 2)
        came_ms = 0 if number else 9
        ranks.mark(1, 0, number, Kind.RECEIVE, 10 * number + came_ms, 10 * number + max(5, came_ms))
    (report,) = message_reports(ranks.recorded())

    assert (report.sender, report.receiver, report.dimension, report.count, report.waited) == (0, 1, "pp", 4, 3)
    assert (report.delay_p50_ns, report.delay_min_ns, report.reason) == (3 * MS, 3 * MS, "")
    assert report.error_ns is not None
    assert report.error_ns < MS


def test_of_a_receiver_that_came_later_no_delay_is_known(ranks: Ranks) -> None:
    """It was inside for long, but the message may have been there all the time."""
    for rank in range(2):
        ranks.meter(rank).add(PP)
    ranks.mark(0, 0, 0, Kind.SEND, 2, 2)
    ranks.mark(1, 0, 0, Kind.RECEIVE, 3, 30)
    (report,) = message_reports(ranks.recorded())

    assert (report.count, report.waited, report.delay_p50_ns) == (1, 0, None)
    assert "never surely waited" in report.reason


def test_a_message_that_arrives_before_it_is_sent_shows_a_wrong_clock(ranks: Ranks) -> None:
    """No delay is stated then."""
    for rank in range(2):
        ranks.meter(rank).add(PP)
    ranks.mark(0, 0, 0, Kind.SEND, 9, 9)
    ranks.mark(1, 0, 0, Kind.RECEIVE, 0, 5)
    (report,) = message_reports(ranks.recorded())

    assert (report.delay_p50_ns, report.delay_min_ns) == (None, None)
    assert "a clock is wrong" in report.reason


def test_messages_to_a_rank_that_receives_from_any_are_not_paired(ranks: Ranks) -> None:
    """Their numbers are not those of the sender."""
    for rank in range(2):
        ranks.meter(rank).add(PP)
    ranks.meter(1).receive_from_any(PP.name)
    ranks.mark(0, 0, 0, Kind.SEND, 2, 2)
    ranks.mark(1, 0, 0, Kind.RECEIVE, 0, 5)
    found = ranks.recorded()

    assert list(found.syncs) == []
    (report,) = message_reports(found)
    assert (report.count, report.delay_p50_ns) == (0, None)
    assert "from any rank" in report.reason


def test_the_newest_marks_are_read(ranks: Ranks, tmp_path: Path) -> None:
    """A recording that is longer than what is read loses its oldest datagrams; a damaged or missing file is absent."""
    for rank in range(2):
        ranks.meter(rank).add(TP)
        for number in range(1_100):
            ranks.mark(rank, 0, number, Kind.BARRIER, number, number)
    ranks.recorded()
    paths = {rank: next((tmp_path / "marks").glob(f"rank-{rank}-*.groups")) for rank in range(2)}
    found = recorded_groups(paths, 2, 1_200, 1 << 20)

    assert found is not None
    assert 0 < len(found.marks[0]) <= 600
    assert found.marks[0][-1].number == 1_099
    paths[1].write_bytes(b"\x08\0\0\0TSJG{]  ")
    os.mkfifo(tmp_path / "fifo")
    found = recorded_groups(paths | {2: tmp_path / "absent", 3: tmp_path / "fifo"}, 4, 5_000, 1 << 20)
    assert found is not None
    assert list(found.marks) == [0]
    assert found.after(0).marks == {0: []}
    assert recorded_groups({0: tmp_path / "absent"}, 2, 1, 1) is None


def test_ranks_outside_the_job_are_ignored(ranks: Ranks) -> None:
    """A communicator of ranks that the job does not have, or of others alone, is damage."""
    for communicator in (replace(TP, ranks=(0, 7)), replace(TP, ranks=(1,))):
        number = ranks.meter(0).add(communicator)
        assert number is not None
        ranks.mark(0, number, 0, Kind.BARRIER, 0, 1)
    for job in ranks.jobs:
        job.meter.mark(0, 0, AT, AT, AT + MS, Kind.STEP)
        job.close()

    assert load(ranks.folder / "marks").groups is None
