"""Recordings read: the files that ranks write, and the JSON of a daemon, make the same job."""

from __future__ import annotations

import json
import os
import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from audit_lab import MS, START_NS, job

from timesyncd.audit.build import report
from timesyncd.audit.measured import measured
from timesyncd.bound import ClockStatus
from timesyncd.client.meter import Meter
from timesyncd.client.recorder import Recorder
from timesyncd.config import NAME_PATTERN
from timesyncd.errors import TraceError
from timesyncd.ipc.job_datagram import MARK_SIZE, Header, Kind, encode_header, job_id, pack_mark, split_step
from timesyncd.ipc.job_segment import Method
from timesyncd.jobs import recording_files
from timesyncd.jobs.arrivals import StepMark
from timesyncd.jobs.ranks import node_name
from timesyncd.jobs.recording import Recording, RecordingMessage, positions
from timesyncd.jobs.recording_files import load


def header_of(rank: int, world_size: int = 2, name: str = "train") -> Header:
    return Header(
        job=name,
        attempt=0,
        rank=rank,
        world_size=world_size,
        node="n1",
        boot_id=7,
        time_namespace=1,
        real_minus_boot_ns=START_NS - 10**12,
        status=ClockStatus.UNKNOWN,
        gm_bound_ns=None,
        utc_bound_ns=None,
        utc_seconds_removed=None,
        grandmaster_identity=None,
        lost=0,
        joined_ns=10**12,
        past_growth_ppb=500_000,
    )


class Rank:
    """A real meter that records, of a rank on one node."""

    def __init__(self, folder: Path, rank: int, world_size: int = 2, name: str = "train") -> None:
        self.header = header_of(rank, world_size, name)
        self.meter = Meter(folder / "no.sock", self._header, Recorder(folder, rank, job_id(0, name, 0)))

    def _header(self, lost: int, own_overhead_ns: int) -> Header:
        return replace(self.header, lost=lost, own_overhead_ns=own_overhead_ns)

    def step(self, step: int, late_ns: int = 0, duration_ns: int = 10 * MS) -> None:
        begin_ns = START_NS + step * 20 * MS
        arrival_ns = begin_ns + 5 * MS + late_ns
        self.meter.mark(step, 0, arrival_ns, arrival_ns, begin_ns + duration_ns, Kind.BUCKET, 1_000)
        self.meter.mark(step, 0, begin_ns, arrival_ns, begin_ns + duration_ns + MS, Kind.STEP)


def recorded(folder: Path, steps: int = 300, late_ns: int = 2 * MS) -> Recording:
    ranks = [Rank(folder, rank) for rank in (0, 1)]
    for step in range(steps):
        for rank, one in enumerate(ranks):
            one.step(step, late_ns if rank == 1 else 0)
            if step % 37 == rank:
                one.meter.announce()
    for one in ranks:
        one.meter.close()
    return load(folder)


def test_a_folder_is_a_job(tmp_path: Path) -> None:
    """What two meters wrote, whatever their batches, is every step of both ranks, joined and compared on their one clock."""
    found = recorded(tmp_path)

    assert (found.job, found.world_size, found.nodes) == ("train", 2, {0: "n1", 1: "n1"})
    assert [sync.step for sync in found.syncs] == list(range(300))
    assert {sync.comparison.last_rank for sync in found.syncs if sync.comparison} == {1}
    assert found.step_mark(1, 7) == StepMark(7, START_NS + 140 * MS, START_NS + 147 * MS, START_NS + 151 * MS)
    assert positions(found.syncs[:1]) == ["bucket 0"]


def test_metering_is_counted_against_the_time_since_the_rank_joined(tmp_path: Path) -> None:
    """A rank's record contains the cost of its meter, and over which time."""
    record = recorded(tmp_path, steps=100).ranks[0]

    assert record.own_overhead_ns > 0
    assert record.metered_ns == 99 * 20 * MS + 11 * MS


def test_json_holds_all_of_it(tmp_path: Path) -> None:
    """A recording that goes through its JSON is the same recording."""
    found = recorded(tmp_path, steps=30)
    path = tmp_path / "recording.json"
    path.write_text(RecordingMessage.of(found).model_dump_json())

    assert load(path) == found


def one_batch(folder: Path, rank: int, steps: int) -> None:
    """All marks of a rank in one datagram, of a node whose clock is known to 1 us."""
    header = replace(
        header_of(rank),
        node=f"n{rank}",
        boot_id=rank,
        status=ClockStatus.SYNCHRONIZED,
        gm_bound_ns=1_000,
        grandmaster_identity="000001.fffe.000001",
        utc_seconds_removed=37,
    )
    marks = bytearray(steps * MARK_SIZE)
    for step in range(steps):
        at_ns = START_NS + step * MS
        pack_mark(marks, step * MARK_SIZE, step, 0, Kind.BARRIER, at_ns, at_ns, at_ns, 0)
    recorder = Recorder(folder, rank, job_id(0, "train", 0))
    assert recorder.write(encode_header(header, steps), memoryview(marks))
    recorder.close()


def test_a_batch_that_is_joined_in_parts_keeps_its_bound(tmp_path: Path) -> None:
    """A bound is of the time at which its batch was sent: for an older mark it is wider by what a slew may have removed since."""
    for rank in (0, 1):
        one_batch(tmp_path, rank, 350)

    for sync in load(tmp_path).syncs:
        error_ns = sync.arrivals[0].error_ns
        assert error_ns is not None
        assert 0 <= error_ns - (1_000 + (349 - sync.step) * MS // 2_000) <= 2


def test_a_killed_rank_s_last_datagram_is_left_out(tmp_path: Path) -> None:
    """A file that ends within a datagram gives what is before that."""
    recorded(tmp_path, steps=100)
    path = next(tmp_path.glob("rank-1-*.marks"))
    path.write_bytes(path.read_bytes()[:-5])

    assert 0 < len(load(tmp_path).steps[1]) < 100


def test_steps_without_the_marks_of_a_rank_are_not_compared(tmp_path: Path) -> None:
    """With one of two ranks recorded every synchronization is there, and compared with nothing."""
    one = Rank(tmp_path, 0)
    for step in range(5):
        one.step(step)
    one.meter.close()

    assert [sync.comparison for sync in load(tmp_path).syncs] == [None] * 5


def test_steps_of_two_epochs_stay_apart(tmp_path: Path) -> None:
    """A step number in a later epoch is another step, not the same one twice."""
    ranks = [Rank(tmp_path, rank) for rank in (0, 1)]
    for epoch in range(2):
        for step in range(10):
            for one in ranks:
                one.meter.set_epoch(epoch)
                one.step(step)
    for one in ranks:
        one.meter.close()

    assert [split_step(key) for key in load(tmp_path).step_keys] == [(e, s) for e in range(2) for s in range(10)]


def test_pushes_and_pulls_are_requests(tmp_path: Path) -> None:
    """What a rank asked a parameter server for is its own time, kept by step."""
    one = Rank(tmp_path, 0, world_size=1)
    one.meter.record_push(0, START_NS, START_NS + MS)
    one.meter.record_pull(0, START_NS + 2 * MS, START_NS + 5 * MS)
    one.meter.close()

    assert [request.end_ns - request.begin_ns for request in load(tmp_path).requests[0]] == [MS, 3 * MS]


def test_of_several_jobs_the_one_with_the_most_marks_counts(tmp_path: Path) -> None:
    """A script that makes a job of its own beside the audit's is no confusion."""
    other = Rank(tmp_path, 0, world_size=1, name="other")
    other.step(0)
    other.meter.close()
    other_file = next(tmp_path.glob("*.marks"))
    other_file.rename(tmp_path / "rank-0-1.marks")
    recorded(tmp_path, steps=20)

    assert load(tmp_path).job == "train"


def test_another_job_in_a_file_is_left_out(tmp_path: Path) -> None:
    """What a former release wrote of two jobs to one file of a process is read as the job that wrote last."""
    for rank in (0, 1):
        for name, steps in (("other", 40), ("train", 30)):
            one = Rank(tmp_path, rank, name=name)
            for step in range(steps):
                one.step(step)
                one.meter.announce()
            one.meter.close()
        other, own = sorted(tmp_path.glob(f"rank-{rank}-{os.getpid()}-*.marks"), key=_is_of_train)
        own.write_bytes(other.read_bytes() + own.read_bytes())
        other.unlink()
    found = load(tmp_path)

    assert (found.job, len(found.syncs), [len(marks) for marks in found.steps.values()]) == ("train", 30, [30, 30])
    assert all(sync.comparison for sync in found.syncs)


def _is_of_train(path: Path) -> bool:
    return path.stem.endswith(job_id(0, "train", 0)[:8])


def test_the_process_of_a_file_is_in_its_name(tmp_path: Path) -> None:
    """The number after the rank, whatever follows; a name without one is of process 0."""
    file = recording_files.RankFile(tmp_path, [], 0, header_of(0), 0, 0)
    names = ("rank-3-77.marks", "rank-3-77-0a1b2c3d.marks", "rank-3-77-01234567-2.marks", "rank-3.marks", "x.marks")

    assert [replace(file, path=tmp_path / name).pid for name in names] == [77, 77, 77, 0, 0]


def test_marks_from_before_their_rank_s_start_are_read(tmp_path: Path) -> None:
    """A clock that was set back after the start: the rank is of its own run all the same."""
    one = Rank(tmp_path, 0)
    one.header = replace(one.header, joined_ns=10**12 + 3_600_000 * MS)
    one.step(0)
    one.meter.close()

    assert [sync.step for sync in load(tmp_path).syncs] == [0]


def test_the_newest_run_of_a_folder_counts(tmp_path: Path) -> None:
    """A folder that run-audit wrote twice holds two runs, and the second is meant."""
    for name, steps in (("marks-20250101T000000-1", 5), ("marks-20250102T000000-2", 7)):
        recorded(tmp_path / name, steps)

    assert len(load(tmp_path).step_keys) == 7


@pytest.mark.parametrize("sizes", [(2, 2), (4, 2)])
def test_two_runs_in_one_folder_are_not_joined(tmp_path: Path, sizes: tuple[int, int]) -> None:
    """Of a folder with two runs, an hour apart, only the newest is read, and the report names the other."""
    for run, world_size in enumerate(sizes):
        ranks = [Rank(tmp_path, rank, world_size) for rank in range(world_size if run == 0 else 1)]
        for rank, one in enumerate(ranks):
            one.header = replace(one.header, joined_ns=10**12 + run * 3_600_000 * MS)
            for step in range(run * 180_000, run * 180_000 + 30):
                one.step(step)
            one.meter.close()
            next(tmp_path.glob(f"rank-{rank}-{os.getpid()}-*.marks")).rename(tmp_path / f"rank-{rank}-{run + 1}.marks")
    found = load(tmp_path)

    assert (found.world_size, sorted(found.ranks), len(found.syncs)) == (2, [0], 30)
    assert {sync.comparison for sync in found.syncs} == {None}
    assert (
        report(measured(found))
        .notes[0]
        .startswith(f"{sizes[0]} *.marks files of this folder were not read: they are of another run")
    )


@pytest.mark.parametrize("later_steps", [0, 10, 30])
def test_two_jobs_at_once_are_not_mixed(tmp_path: Path, later_steps: int) -> None:
    """One command may start two jobs with the same ranks together: nothing tells their files apart. A rank that is started again is no other job."""
    for pid in (1, 2):
        for rank in (0, 1):
            one = Rank(tmp_path, rank)
            first = (pid - 1) * later_steps
            one.header = replace(one.header, joined_ns=10**12 + first * 20 * MS)
            for step in range(first, first + 30):
                one.step(step)
            one.meter.close()
            next(tmp_path.glob(f"rank-{rank}-{os.getpid()}-*.marks")).rename(tmp_path / f"rank-{rank}-{pid}.marks")

    if later_steps == 30:
        assert load(tmp_path).world_size == 2
    else:
        with pytest.raises(TraceError, match=r"rank 0 has marks of two processes at the same time \(1 and 2\)"):
            load(tmp_path)


def test_what_is_too_much_is_cut_for_all_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more marks than are read the newest steps remain, whole and with all their marks, and a note says so."""
    whole = recorded(tmp_path)
    monkeypatch.setattr(recording_files, "MAX_RECORDING_MARKS", 400)
    found = load(tmp_path)
    first = found.step_keys[0]

    assert 60 <= len(found.step_keys) <= 100
    assert all([mark.step for mark in marks] == list(range(first, 300)) for marks in found.steps.values())
    assert found.syncs == [sync for sync in whole.syncs if sync.step >= first]
    assert found.notes == (
        f"Steps up to {first - 1} were not read: the newest 400 marks of a job are read, equally many of each rank.",
    )


def test_steps_of_many_synchronizations_and_late_marks_are_joined(tmp_path: Path) -> None:
    """More synchronizations in a step than a hub keeps open, and a mark that comes a batch late: every one is whole."""
    ranks = [Rank(tmp_path, rank) for rank in (0, 1)]
    for step in range(3):
        for one in ranks:
            for sync in [*range(1, 1_100), 0]:
                at_ns = START_NS + (step * 1_100 + sync) * MS
                one.meter.mark(step, sync, at_ns, at_ns, at_ns + MS, Kind.ALL_REDUCE, 1)
                if sync % 100 == 99:
                    one.meter.announce()
    for one in ranks:
        one.meter.close()
    syncs = load(tmp_path).syncs

    assert [(sync.step, sync.sync) for sync in syncs] == [(step, sync) for step in range(3) for sync in range(1_100)]
    assert all(sync.comparison for sync in syncs)


@pytest.mark.parametrize(
    ("name", "content", "reported"),
    [
        ("rank-0-1.marks", struct.pack("<I", 4) + b"abcd", "job datagram of 4 bytes"),
        ("nothing.txt", b"", "contains no marks"),
    ],
)
def test_a_folder_without_a_recording_is_an_error(tmp_path: Path, name: str, content: bytes, reported: str) -> None:
    """A folder without marks, or with a file that is none, is one line that names it."""
    (tmp_path / name).write_bytes(content)

    with pytest.raises(TraceError, match=reported):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "reported"),
    [
        ("{", "Invalid JSON"),
        ("{}", "job: missing"),
        ("VERSION", "version 9"),
        ("RANK", "rank 7 is outside the world of 2 ranks"),
        ("NO_ARRIVAL", r"syncs\[0\].arrivals = \[\]: List should have at least 1 item"),
    ],
)
def test_a_file_that_is_no_recording_is_an_error(tmp_path: Path, content: str, reported: str) -> None:
    """JSON of something else, of another version, or with a rank that cannot be, is an error of one line."""
    published = json.loads(RecordingMessage.of(job(2)).model_dump_json())
    if content == "VERSION":
        content = json.dumps(published | {"version": 9})
    if content == "RANK":
        published["ranks"][0]["rank"] = 7
        content = json.dumps(published)
    if content == "NO_ARRIVAL":
        published["syncs"][0]["arrivals"] = []
        content = json.dumps(published)
    path = tmp_path / "recording.json"
    path.write_text(content)

    with pytest.raises(TraceError, match=reported) as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_a_missing_path_is_an_error(tmp_path: Path) -> None:
    """One line that names it."""
    with pytest.raises(TraceError, match="no such file or folder"):
        load(tmp_path / "gone")


@pytest.mark.parametrize("content", [b"", struct.pack("<I", 400) + b"cut"])
def test_a_rank_that_was_killed_before_its_first_datagram_is_left_out(tmp_path: Path, content: bytes) -> None:
    """Its file holds nothing that is whole; the other ranks are read all the same."""
    recorded(tmp_path, steps=30)
    (tmp_path / "rank-9-1.marks").write_bytes(content)

    assert sorted(load(tmp_path).ranks) == [0, 1]


def test_a_mark_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """One line that names the file and the system's reason."""
    (tmp_path / "rank-0-1.marks").mkdir()

    with pytest.raises(TraceError, match=r"^\S+/rank-0-1\.marks: Is a directory$"):
        load(tmp_path)


def test_ranks_of_clients_that_do_not_send_their_start_are_one_run(tmp_path: Path) -> None:
    """Without the time of joining, a rank's run begins with its first mark, an hour after the other run's."""
    for rank, run in ((0, 0), (0, 1), (1, 1)):
        one = Rank(tmp_path, rank)
        one.header = replace(one.header, joined_ns=0)
        for step in range(run * 180_000, run * 180_000 + 30):
            one.step(step)
        one.meter.close()
        next(tmp_path.glob(f"rank-{rank}-{os.getpid()}-*.marks")).rename(tmp_path / f"rank-{rank}-{run + 1}.marks")
    found = load(tmp_path)

    assert sorted(found.ranks) == [0, 1]
    assert [sync.step for sync in found.syncs] == list(range(180_000, 180_030))


@pytest.mark.parametrize("apart_s", [-60, 0, 60, 3_600])
@pytest.mark.parametrize("runs", [1, 2])
def test_clocks_that_are_apart_give_one_run_compared_by_ends(tmp_path: Path, apart_s: int, runs: int) -> None:
    """Two nodes whose clocks differ by more than the run lasts: the newest run of each clock is joined by its steps."""
    for run in range(runs):
        for rank in (0, 1):
            one = Rank(tmp_path, rank)
            ahead_ns = rank * apart_s * 1_000 * MS + run * 20_000 * MS
            one.header = replace(one.header, boot_id=rank, time_namespace=rank, joined_ns=10**12 + ahead_ns)
            for step in range(run * 300, run * 300 + 40):
                at_ns = START_NS + ahead_ns + (step - run * 300) * 20 * MS + 5 * MS
                one.meter.mark(step, 0, at_ns + 3 * MS * rank, at_ns + 3 * MS * rank, at_ns + 5 * MS, Kind.BUCKET, 1)
            one.meter.close()
            next(tmp_path.glob(f"rank-{rank}-{os.getpid()}-*.marks")).rename(tmp_path / f"rank-{rank}-{run + 1}.marks")
    found = load(tmp_path)

    assert [sync.step for sync in found.syncs] == list(range((runs - 1) * 300, (runs - 1) * 300 + 40))
    assert {len(sync.arrivals) for sync in found.syncs} == {2}
    attribution = measured(found).attribution
    assert (attribution.method, [one.rank for one in attribution.stragglers]) == (Method.COLLECTIVE_ENDS, [1])
    assert sum(note.startswith("The nodes' clocks are") for note in found.notes) == bool(apart_s)
    assert len(found.notes) == bool(apart_s) + runs - 1


def test_a_run_that_one_node_did_not_record_is_not_mixed_with_another(tmp_path: Path) -> None:
    """One node has the marks of two runs and the other of one: which run that is follows from the times, not from their number."""
    for rank, runs in ((0, (0, 1)), (1, (0,))):
        for run in runs:
            one = Rank(tmp_path, rank)
            one.header = replace(one.header, boot_id=rank, joined_ns=10**12 + run * 3_600_000 * MS)
            for step in range(run * 180_000, run * 180_000 + 30):
                one.step(step)
            one.meter.close()
            next(tmp_path.glob(f"rank-{rank}-{os.getpid()}-*.marks")).rename(tmp_path / f"rank-{rank}-{run + 1}.marks")

    assert sorted(load(tmp_path).ranks) == [0]


def test_a_node_may_have_any_name(tmp_path: Path) -> None:
    """A rank of a container names its node as it likes: the recording keeps the label, and its JSON does too."""
    labels = ("rack 1/gpu:3", "rack 1 gpu:3", "n\u00f6rd", "node-a")
    for rank, label in enumerate(labels):
        one = replace(header_of(rank, len(labels)), node=label, boot_id=rank)
        recorder = Recorder(tmp_path, rank, job_id(0, "train", 0))
        marks = bytearray(MARK_SIZE)
        pack_mark(marks, 0, 0, 0, Kind.BARRIER, START_NS, START_NS, START_NS + MS, 0)
        assert recorder.write(encode_header(one, 1), memoryview(marks))
        recorder.close()
    found = load(tmp_path)
    document = tmp_path / "recording.json"
    document.write_text(RecordingMessage.of(found).model_dump_json())

    assert found.nodes == dict(enumerate(labels))
    assert load(document) == found


def test_labels_become_names_that_stay_apart() -> None:
    """Two labels that differ in what a name may not have are two nodes."""
    names = [node_name(label) for label in ("rack 1/gpu:3", "rack 1 gpu:3", "", "\n", "x" * 200, "node-a")]

    assert len(set(names)) == len(names)
    assert all(re.fullmatch(NAME_PATTERN, name) for name in names)
    assert names[0].startswith("rack-1-gpu-3-")
    assert names[-1] == "node-a"


def test_calls_of_threads_beside_the_step_are_a_note(tmp_path: Path) -> None:
    """They have no mark, and are no missing part of the account."""
    (tmp_path / "rank-0-1.calls").write_text('{"metered": 3, "unmetered": [], "beside": 1200}')
    found = recorded(tmp_path, steps=3)

    assert found.notes[0].startswith("1,200 calls were made by threads beside the one that trains.")
    assert found.calls is not None
    assert found.calls.is_account


def test_what_ranks_could_not_meter_is_a_note(tmp_path: Path) -> None:
    """Lines of the ranks' note files are notes of the recording, and so of the report; equal ones count once."""
    for rank in (0, 1):
        (tmp_path / f"rank-{rank}-{rank + 7}.note").write_text("this module is not metered (torch 2)\n" + "x\n" * rank)
    (tmp_path / os.fsdecode(b"rank-\xff-1.note")).write_text("of no rank\n")

    assert recorded(tmp_path, steps=3).notes == ("Rank 0, 1: this module is not metered (torch 2)", "Rank 1: x")
