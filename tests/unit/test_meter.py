"""Marks: kept, numbered and sent in batches, and never in the way of the training process."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from timesyncd.bound import ClockStatus
from timesyncd.client import meter as meter_module
from timesyncd.client.job import Job, Place, place_from
from timesyncd.client.meter import SEND_EVERY_NS, Meter
from timesyncd.joblink import MAX_MARKS, SOCKET_NAME, Datagram, Header, Kind, Mark, decode

QUEUE_LENGTH = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())


def header(lost: int) -> Header:
    return Header("job", 0, 1, 2, "node", 1, 1, 0, ClockStatus.UNKNOWN, None, None, None, None, lost)


class Daemon:
    """A socket bound where the daemon binds its own."""

    def __init__(self, folder: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.bind(str(folder / SOCKET_NAME))

    def receive(self) -> list[Datagram]:
        """All that is queued."""
        received = []
        while True:
            try:
                received.append(decode(self.socket.recv(65_536)))
            except BlockingIOError:
                return received

    def stop(self, folder: Path) -> None:
        self.socket.close()
        (folder / SOCKET_NAME).unlink()


class Ticks:
    """CLOCK_MONOTONIC as the meter reads it, moved by the test."""

    def __init__(self) -> None:
        self.now_ns = 10**9

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a UNIX socket's address holds 107 octets."""
    path = tempfile.mkdtemp(prefix="ts-")
    yield Path(path)
    shutil.rmtree(path)


@pytest.fixture
def daemon(folder: Path) -> Iterator[Daemon]:
    running = Daemon(folder)
    yield running
    running.socket.close()


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Ticks:
    clock = Ticks()
    monkeypatch.setattr(meter_module, "_monotonic_ns", clock)
    return clock


@pytest.fixture
def meter(folder: Path, ticks: Ticks) -> Iterator[Meter]:
    made = Meter(folder / SOCKET_NAME, header)
    yield made
    made.close()


def mark(meter: Meter, step: int) -> None:
    meter.mark(step, 0, 100, 110, 200, Kind.PUSH, 8)


def test_marks_go_out_in_batches(meter: Meter, daemon: Daemon, ticks: Ticks) -> None:
    """The first mark goes at once; later ones wait until 100 ms have passed, and go together."""
    mark(meter, 1)
    at_once = daemon.receive()
    mark(meter, 2)
    ticks.now_ns += SEND_EVERY_NS - 1
    mark(meter, 3)
    early = daemon.receive()
    ticks.now_ns += 1
    mark(meter, 4)
    batch = daemon.receive()

    assert [d.marks for d in at_once] == [(Mark(1, 0, Kind.PUSH, 100, 110, 200, 8),)]
    assert early == []
    assert [[m.step for m in d.marks] for d in batch] == [[2, 3, 4]]
    assert batch[0].header == header(0)


def test_closing_sends_the_rest_and_later_marks_are_lost(meter: Meter, daemon: Daemon, ticks: Ticks) -> None:
    """Nothing that was marked before the end is kept back; after it, marking is harmless and counted."""
    mark(meter, 1)
    mark(meter, 2)
    meter.close()
    ticks.now_ns += SEND_EVERY_NS
    mark(meter, 3)
    meter.close()

    assert [[m.step for m in d.marks] for d in daemon.receive()] == [[1], [2]]
    assert meter.lost == 1


def test_without_a_daemon_marks_are_counted_as_lost(meter: Meter, ticks: Ticks, folder: Path) -> None:
    """No socket, a dead one, a path too long for one: never an exception."""
    mark(meter, 1)
    Daemon(folder).socket.close()
    ticks.now_ns += SEND_EVERY_NS
    mark(meter, 2)
    too_long = Meter(folder / ("x" * 200), header)
    mark(too_long, 1)
    too_long.close()

    assert (meter.lost, too_long.lost) == (2, 1)


def test_no_socket_at_all_is_harmless(folder: Path, ticks: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is out of file descriptors trains on."""

    def none_left(*arguments: int) -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("timesyncd.client.meter.socket.socket", none_left)
    meter = Meter(folder / SOCKET_NAME, header)
    mark(meter, 1)
    meter.close()

    assert meter.lost == 1


def test_a_full_queue_is_a_counted_loss(meter: Meter, daemon: Daemon, ticks: Ticks) -> None:
    """A daemon that does not read costs marks, never a wait; what came later says how many."""
    for step in range(QUEUE_LENGTH + 5):
        mark(meter, step)
        ticks.now_ns += SEND_EVERY_NS
    queued = daemon.receive()
    mark(meter, 99)
    after = daemon.receive()

    assert len(queued) + meter.lost == QUEUE_LENGTH + 5
    assert meter.lost > 0
    assert after[0].header.lost == meter.lost


def test_a_daemon_that_restarts_is_found_again(meter: Meter, daemon: Daemon, ticks: Ticks, folder: Path) -> None:
    """The next datagram after the restart arrives: the rank never connects."""
    mark(meter, 1)
    daemon.stop(folder)
    ticks.now_ns += SEND_EVERY_NS
    mark(meter, 2)
    again = Daemon(folder)
    ticks.now_ns += SEND_EVERY_NS
    mark(meter, 3)
    received = again.receive()
    again.socket.close()

    assert [(d.header.lost, d.marks[0].step) for d in received] == [(1, 3)]


def test_more_marks_than_a_batch_holds_are_lost(meter: Meter, daemon: Daemon, ticks: Ticks) -> None:
    """The buffer has one size for ever, and ten datagrams a second stay ten."""
    for step in range(MAX_MARKS + 10):
        mark(meter, step)
    meter.close()

    assert [len(d.marks) for d in daemon.receive()] == [1, MAX_MARKS]
    assert meter.lost == 9


def test_a_number_that_does_not_fit_is_lost(meter: Meter, daemon: Daemon) -> None:
    """A mark that the datagram cannot hold is counted, and the next one is whole."""
    meter.mark(2**63, 0, 1, 1, 2)
    meter.mark(1, -1, 1, 1, 2)
    mark(meter, 5)

    assert [m.step for d in daemon.receive() for m in d.marks] == [5]
    assert meter.lost == 2


def test_synchronizations_are_numbered_within_their_step(meter: Meter, daemon: Daemon) -> None:
    """One that raises leaves no mark but keeps its number, so that the ranks' numbers go on matching."""
    for step in (4, 5):
        with meter.sync(step, Kind.ALL_REDUCE, 16):
            pass
        with pytest.raises(RuntimeError), meter.sync(step):
            raise RuntimeError
        with meter.sync(step, Kind.BROADCAST):
            pass
    meter.close()

    marks = [m for d in daemon.receive() for m in d.marks]
    assert [(m.step, m.sync, m.kind, m.bytes) for m in marks] == [
        (4, 0, Kind.ALL_REDUCE, 16),
        (4, 2, Kind.BROADCAST, 0),
        (5, 0, Kind.ALL_REDUCE, 16),
        (5, 2, Kind.BROADCAST, 0),
    ]


def test_a_synchronization_is_stamped_around_its_body(meter: Meter, daemon: Daemon) -> None:
    """Arrival and begin are read before the body, the end after it, on CLOCK_REALTIME."""
    before_ns = time.time_ns()
    with meter.sync(1):
        inside_ns = time.time_ns()
    after_ns = time.time_ns()

    (stamped,) = daemon.receive()[0].marks
    assert before_ns <= stamped.arrival_ns == stamped.begin_ns <= inside_ns <= stamped.end_ns <= after_ns


def test_the_own_overhead_needs_no_daemon(meter: Meter) -> None:
    """It is the time inside synchronizations, from the first arrival to the last end; None before there is one."""
    before = meter.sync_overhead
    meter.mark(1, 0, 1_000, 1_000, 1_100)
    meter.mark(2, 0, 1_700, 1_750, 2_000)

    assert before is None
    assert meter.sync_overhead == 0.4


def test_threads_may_mark_at_once(folder: Path, daemon: Daemon) -> None:
    """Every mark of every thread arrives whole or is counted."""
    meter = Meter(folder / SOCKET_NAME, header)

    def mark_many() -> None:
        for step in range(100):
            mark(meter, step)

    threads = [threading.Thread(target=mark_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    meter.close()

    marks = [m for d in daemon.receive() for m in d.marks]
    assert len(marks) + meter.lost == 400
    assert {m[3:] for m in marks} == {(100, 110, 200, 8)}


TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "run-7",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
SLURM = {"SLURM_JOB_ID": "815", "SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_RESTART_COUNT": "1"}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, Place(None, None, None, None)),
        (TORCHRUN, Place("run-7", 3, 4, 2)),
        (SLURM, Place("815", 5, 8, 1)),
        (SLURM | TORCHRUN, Place("run-7", 3, 4, 2)),
        (TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"}, Place("10.0.0.1:29500", 3, 4, 2)),
        (TORCHRUN | SLURM | {"TORCHELASTIC_RUN_ID": "none"}, Place("815", 3, 4, 2)),
        ({"RANK": "first", "WORLD_SIZE": "-1"}, Place(None, None, None, None)),
    ],
)
def test_a_rank_finds_its_place_in_the_environment(environ: dict[str, str], place: Place) -> None:
    """torchrun's word before Slurm's; a job without a name of its own is called by its rendezvous address."""
    assert place_from(environ) == place


def test_a_job_tells_who_it_is(folder: Path, daemon: Daemon) -> None:
    """What is given counts before the environment; a name too long for a datagram is cut between two characters."""
    job = Job("ü" * 300, rank=1, world_size=2, attempt=3, node="here", runtime_dir=folder)
    with job.meter.sync(1):
        pass
    job.close()

    head = daemon.receive()[0].header
    assert (head.job, head.rank, head.world_size, head.attempt, head.node) == ("ü" * 127, 1, 2, 3, "here")
    assert (head.status, head.gm_bound_ns, head.grandmaster_identity) == (ClockStatus.UNKNOWN, None, None)
    assert (job.signals(), job.plan().mode) == (None, "plain")


def test_an_impossible_place_is_a_mistake_of_the_caller(folder: Path) -> None:
    """A rank outside its world is refused at construction, the one place that may."""
    with pytest.raises(ValueError, match="rank 2 of 2"):
        Job("job", rank=2, world_size=2, runtime_dir=folder)
