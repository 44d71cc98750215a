"""Marks recorded in a file: whole datagrams, with or without a daemon; the end of a recording does no harm."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from timesyncd.client import Job, Kind
from timesyncd.client import meter as meter_module
from timesyncd.client import recorder as recorder_module
from timesyncd.client.recorder import LENGTH
from timesyncd.ipc.job_datagram import SOCKET_NAME, Datagram, decode, job_id
from timesyncd.jobs import missing_ranks, recording_files


def recorded(path: Path) -> list[Datagram]:
    """All of a file; it ends where a datagram does."""
    data, found = path.read_bytes(), []
    while data:
        (length,) = LENGTH.unpack_from(data)
        found.append(decode(data[LENGTH.size : LENGTH.size + length]))
        assert len(data) >= LENGTH.size + length
        data = data[LENGTH.size + length :]
    return found


def file_of(folder: Path, rank: int = 0) -> Path:
    """The one file of this process' rank."""
    (path,) = folder.glob(f"rank-{rank}-{os.getpid()}-*.marks")
    return path


def train(job: Job, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        with job.meter.sync(step, Kind.ALL_REDUCE):
            pass
        job.meter.announce()


def test_an_error_in_one_job_s_reading_does_not_end_that_of_another(folder: Path) -> None:
    """All jobs of a process share the thread that reports presence; the failed reading is counted."""
    failing, other = (Job(name, 0, 1, 0, runtime_dir=folder) for name in ("failing", "other"))
    read: list[str] = []

    def fail() -> None:
        read.append("failing")
        raise RuntimeError("no network")

    for job in (failing, other):
        train(job, 1)
    failing.meter.each_second, other.meter.each_second = fail, lambda: read.append("other")
    deadline = time.monotonic() + 30
    while min(read.count("failing"), read.count("other")) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    failing.close()
    other.close()

    assert min(read.count("failing"), read.count("other")) >= 2
    assert failing.meter.lost >= other.meter.lost + 2


def test_what_is_sent_is_recorded_too(folder: Path) -> None:
    """Datagram by datagram, in a file of this rank and process, in a folder that is made."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(str(folder / SOCKET_NAME))
        job = Job("job", 1, 2, 0, runtime_dir=folder, record=folder / "a" / "b")
        train(job, 3)
        job.close()
        daemon.setblocking(False)
        sent = [daemon.recv(65_536) for _ in range(4)]

    path = file_of(folder / "a" / "b", rank=1)
    assert path.stem.endswith(f"-{job_id(os.getuid(), 'job', 0)[:8]}")
    assert [(d.header, d.marks) for d in recorded(path)] == [(d.header, d.marks) for d in map(decode, sent)]
    assert job.meter.unrecorded == 0


def test_a_recording_needs_no_daemon(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment asks for it; what no daemon took is not lost in the recording, what never was in a datagram is."""
    monkeypatch.setenv("TIMESYNCD_RECORD", str(folder / "record"))
    job = Job("job", 0, 1, 0, runtime_dir=folder)
    job.meter.mark(-1, 0, 0, 0, 0)
    train(job, 3)
    job.close()

    datagrams = recorded(file_of(folder / "record"))
    assert [mark.step for datagram in datagrams for mark in datagram.marks] == [0, 1, 2]
    assert {datagram.header.lost for datagram in datagrams} == {1}
    assert (job.meter.lost, job.meter.unrecorded) == (4, 0)


def test_nothing_is_recorded_unasked(folder: Path) -> None:
    """No file and no folder."""
    job = Job("job", 0, 1, 0, runtime_dir=folder)
    train(job, 1)
    job.close()

    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_costs_the_recording_alone(folder: Path) -> None:
    """The folder's path is a file: training and the marks to the daemon continue."""
    (folder / "file").touch()
    job = Job("job", 0, 1, 0, runtime_dir=folder, record=folder / "file" / "x")
    train(job, 3)
    job.close()

    assert job.meter.unrecorded == 3


def test_a_full_disk_ends_the_recording_with_a_whole_datagram(folder: Path) -> None:
    """The one that did not fit is taken back, and what comes later is counted and never tried again."""
    job = Job("job", 0, 1, 0, runtime_dir=folder, record=folder)
    train(job, 2)
    path = file_of(folder)
    size, limits = path.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, limits[1]))
    try:
        train(job, 1, first=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    train(job, 1, first=3)
    job.close()

    assert [mark.step for datagram in recorded(path) for mark in datagram.marks] == [0, 1]
    assert job.meter.unrecorded == 2


def test_a_recording_has_a_largest_size(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that runs for weeks does not fill the disk."""
    monkeypatch.setattr(recorder_module, "MAX_RECORD_BYTES", 500)
    job = Job("job", 0, 1, 0, runtime_dir=folder, record=folder)
    train(job, 9)
    job.close()

    path = file_of(folder)
    kept = sum(len(datagram.marks) for datagram in recorded(path))
    assert 0 < path.stat().st_size <= 500
    assert (kept > 0, kept + job.meter.unrecorded) == (True, 9)


def test_a_forked_child_writes_nothing(folder: Path) -> None:
    """The file is its parent's, and closing there does not close it here."""
    job = Job("job", 0, 1, 0, runtime_dir=folder, record=folder)
    train(job, 1)
    child = os.fork()
    if child == 0:
        try:
            train(job, 2, first=10)
            job.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    train(job, 1, first=1)
    job.close()

    datagrams = recorded(file_of(folder))
    assert [mark.step for datagram in datagrams for mark in datagram.marks] == [0, 1]


@pytest.mark.parametrize("name", ["pp-0", "dp-0"])
def test_two_jobs_of_a_process_write_to_two_files(folder: Path, name: str) -> None:
    """With one rank, and with one name too: what the one cannot write, or takes back, is never the other's."""
    jobs = [Job(each, 0, 1, 0, runtime_dir=folder, record=folder) for each in ("dp-0", name)]
    for step in range(3):
        for number, job in enumerate(jobs):
            train(job, 1, first=10 * number + step)
    for job in jobs:
        job.close()

    found = [recorded(path) for path in sorted(folder.glob("*.marks"))]
    steps = sorted([mark.step for datagram in datagrams for mark in datagram.marks] for datagrams in found)
    assert steps == [[0, 1, 2], [10, 11, 12]]
    assert {len({datagram.header.joined_ns for datagram in datagrams}) for datagrams in found} == {1}


WAITING_RANK = """
import sys, time
from timesyncd.client import Job, Kind

rank, folder = int(sys.argv[1]), sys.argv[2]
job = Job("job", rank=rank, world_size=2, record=folder)
for step in range(5 + (rank == 0)):
    time.sleep(0.1)
    with job.meter.sync(step, Kind.BARRIER):
        if step == 5:
            time.sleep(600)
"""


def test_a_killed_job_s_recording_ends_in_a_hang(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 ends after five steps, and rank 0 is killed inside the sixth barrier: its recording has where it waited."""
    monkeypatch.setattr(missing_ranks, "MIN_WAIT_NS", 500_000_000)
    script = folder / "script.py"
    script.write_text(WAITING_RANK)
    waiting = subprocess.Popen([sys.executable, script, "0", folder])
    try:
        subprocess.run([sys.executable, script, "1", folder], check=True)
        while not any(
            mark.kind == Kind.ARRIVAL
            for path in folder.glob("rank-0-*.marks")
            for each in recorded(path)
            for mark in each.marks
        ):
            assert waiting.poll() is None
            time.sleep(0.05)
    finally:
        waiting.kill()
        waiting.wait()
    recording = recording_files.load(folder)
    hang = missing_ranks.find_hang({rank: each.presence for rank, each in recording.ranks.items()}, 2, None)

    assert hang is not None
    assert (hang.waiting, hang.missing, hang.step, hang.where) == ((0,), (1,), 5, "barrier 0")
    assert hang.absent[0].cause is missing_ranks.HangCause.UNEQUAL_STEPS
    assert hang.absent[0].last is not None and hang.absent[0].last.step == 4


def test_a_rank_that_computes_says_that_it_lives(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without another mark for five seconds a sign follows; a rank inside a synchronization says where, once."""
    job = Job("job", rank=1, world_size=2, record=folder)
    train(job, 2)
    monkeypatch.setattr(meter_module, "SIGN_EVERY_NS", 0)
    job.meter.report_presence()
    monkeypatch.setattr(meter_module, "SIGN_EVERY_NS", 10**18)
    monkeypatch.setattr(meter_module, "ARRIVAL_AFTER_NS", 0)
    with job.meter.sync(2, Kind.BARRIER):
        job.meter.report_presence()
        job.meter.report_presence()
    job.meter.report_presence()
    job.meter.report_left()
    job.close()
    marks = [mark for each in recorded(file_of(folder, 1)) for mark in each.marks]

    assert [(mark.step, mark.kind, mark.bytes) for mark in marks if mark.kind in missing_ranks.SIGNS] == [
        (1, Kind.ALIVE, 0),
        (2, Kind.ARRIVAL, Kind.BARRIER),
        (2, Kind.LEFT, 0),
    ]
    assert job.meter.unrecorded == 0


def test_a_synchronization_that_fails_leaves_no_arrival(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank is no longer inside it."""
    monkeypatch.setattr(meter_module, "ARRIVAL_AFTER_NS", 0)
    job = Job("job", rank=1, world_size=2, record=folder)
    train(job, 1)
    with pytest.raises(OSError), job.meter.sync(1, Kind.BARRIER):
        raise OSError
    job.meter.report_presence()
    job.close()

    assert Kind.ARRIVAL not in [mark.kind for each in recorded(file_of(folder, 1)) for mark in each.marks]


def signs(job: Job, folder: Path) -> list[int]:
    """The kinds of the signs in the recording, after the end of the job."""
    job.close()
    return [
        mark.kind for each in recorded(file_of(folder, 1)) for mark in each.marks if mark.kind in missing_ranks.SIGNS
    ]


@pytest.mark.parametrize(
    ("inside", "sign"), [(True, [Kind.ARRIVAL]), (False, [Kind.ALIVE]), (None, [])], ids=["inside", "over", "unknown"]
)
def test_a_synchronization_that_ends_unseen_is_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, inside: bool | None, sign: list[Kind]
) -> None:
    """A device's queue is asked. Without an answer nothing is reported: neither that the rank waits nor that it does not."""
    for name in ("ARRIVAL_AFTER_NS", "SIGN_EVERY_NS"):
        monkeypatch.setattr(meter_module, name, 0)
    job = Job("job", rank=1, world_size=2, record=folder)
    train(job, 1)
    job.meter.arrive(job.meter.step_key(1), Kind.BUCKET).is_inside = lambda: inside
    job.meter.report_presence()

    assert signs(job, folder) == sign


def test_a_rank_that_may_wait_unseen_does_not_say_that_it_does_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it is inside leaves no trace here, so another rank that waits for it cannot accuse it of running."""
    monkeypatch.setattr(meter_module, "SIGN_EVERY_NS", 0)
    job = Job("job", rank=1, world_size=2, record=folder)
    train(job, 1)
    job.meter.hide_presence()
    job.meter.report_presence()

    assert signs(job, folder) == []


def test_the_first_of_several_failed_synchronizations_is_where_the_rank_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost connection fails all buckets in flight, in any order; the rank waited in the first."""
    monkeypatch.setattr(sys, "last_type", OSError, raising=False)
    job = Job("job", rank=1, world_size=2, record=folder)
    train(job, 1)
    key = job.meter.step_key(1)
    buckets = [job.meter.arrive(key, Kind.BUCKET) for _ in range(3)]
    for number in (1, 0, 2):
        job.meter.leave(buckets[number], failed=True)
    job.meter.report_left()
    job.close()
    marks = [mark for each in recorded(file_of(folder, 1)) for mark in each.marks]

    assert [(mark.kind, mark.sync) for mark in marks[-2:]] == [(Kind.ARRIVAL, 0), (Kind.LEFT, 0)]


def test_a_forgotten_arrival_takes_no_room_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of handles that are never waited for only so many are kept."""
    monkeypatch.setattr(meter_module, "MAX_ARRIVALS", 3)
    job = Job("job", rank=1, world_size=2, record=folder)
    for _ in range(10):
        job.meter.arrive(job.meter.step_key(0), Kind.BUCKET)

    assert [each.ordinal for each in job.meter._arrivals.values()] == [7, 8, 9]
