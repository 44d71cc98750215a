"""Marks: kept, numbered and sent in batches, and never in the way of the training process."""

from __future__ import annotations

import errno
import math
import os
import select
import signal
import socket
import threading
import time
from ast import literal_eval
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from timesyncd.bound import ClockStatus
from timesyncd.client import meter as meter_module
from timesyncd.client.meter import SEND_INTERVAL_NS, Meter
from timesyncd.ipc import job_datagram
from timesyncd.ipc.job_datagram import MAX_MARKS, SOCKET_NAME, Datagram, Header, Kind, Mark, decode

QUEUE_LENGTH = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())


def header(lost: int, own_overhead_ns: int) -> Header:
    return Header("job", 0, 1, 2, "node", 1, 1, 0, ClockStatus.UNKNOWN, None, None, None, None, lost, own_overhead_ns)


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
    ticks.now_ns += SEND_INTERVAL_NS - 1
    mark(meter, 3)
    early = daemon.receive()
    ticks.now_ns += 1
    mark(meter, 4)
    batch = daemon.receive()

    assert [d.marks for d in at_once] == [(Mark(1, 0, Kind.PUSH, 100, 110, 200, 8),)]
    assert early == []
    assert [[m.step for m in d.marks] for d in batch] == [[2, 3, 4]]
    assert replace(batch[0].header, own_overhead_ns=0) == header(0, 0)


def test_closing_sends_the_rest_and_later_marks_are_lost(meter: Meter, daemon: Daemon, ticks: Ticks) -> None:
    """Nothing that was marked before the end is kept back; after it, marking is harmless and counted."""
    mark(meter, 1)
    mark(meter, 2)
    meter.close()
    ticks.now_ns += SEND_INTERVAL_NS
    mark(meter, 3)
    meter.close()

    assert [[m.step for m in d.marks] for d in daemon.receive()] == [[1], [2]]
    assert meter.lost == 1


def test_without_a_daemon_marks_are_counted_as_lost(meter: Meter, ticks: Ticks, folder: Path) -> None:
    """No socket, a dead one, a path too long for one: never an exception."""
    mark(meter, 1)
    Daemon(folder).socket.close()
    ticks.now_ns += SEND_INTERVAL_NS
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
    """A daemon that does not read costs marks, never a wait; later datagrams contain the number of lost marks."""
    for step in range(QUEUE_LENGTH + 5):
        mark(meter, step)
        ticks.now_ns += SEND_INTERVAL_NS
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
    ticks.now_ns += SEND_INTERVAL_NS
    mark(meter, 2)
    again = Daemon(folder)
    ticks.now_ns += SEND_INTERVAL_NS
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
    """A mark that does not fit the datagram is counted as lost, and the next one is complete."""
    wrong: list[Any] = [(2**32, 0, 1, 1, 2), (-1, 0, 1, 1, 2), (1.5, 0, 1, 1, 2), ("1", 0, 1, 1, 2), (None, 0, 1, 1, 2)]
    wrong += [(1, -1, 1, 1, 2), (1, 0, 2**63, 1, 2), (1, 0, 1.5, 1, 2), (1, 0, None, 1, 2), (1, 0, math.nan, 1, 2)]
    for fields in wrong:
        meter.mark(*fields)
    mark(meter, 5)
    meter.mark(5, 1, -(2**63), -(2**63), 2**63 - 1)
    meter.close()

    assert [m.step for d in daemon.receive() for m in d.marks] == [5, 5]
    assert meter.lost == len(wrong)
    assert meter.local_signals().steps == 0


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


def test_a_datagram_contains_the_meters_own_overhead(folder: Path, daemon: Daemon) -> None:
    """The time in marks and in the sending of the datagrams before, which a test's own work in between is not."""
    meter = Meter(folder / SOCKET_NAME, header)
    began_ns = time.monotonic_ns()
    for step in range(50):
        with meter.sync(step):
            time.sleep(0.001)
        meter.record_staleness(step, 1)
    overhead_ns = meter.own_overhead_ns
    meter.close()
    passed_ns = time.monotonic_ns() - began_ns

    assert 0 < overhead_ns < passed_ns - 50_000_000
    assert daemon.receive()[-1].header.own_overhead_ns == overhead_ns


def test_a_step_is_marked_to_the_update_of_its_parameters(meter: Meter, daemon: Daemon) -> None:
    """It lasts from entry to exit; the last `gradients_ready` is its begin, and without it the begin is the arrival."""
    before_ns = time.time_ns()
    with meter.step(3), meter.sync(3):
        meter.gradients_ready()
        ready_ns = time.time_ns()
        meter.gradients_ready()
    with meter.step(4):
        pass
    with pytest.raises(RuntimeError), meter.step(5):
        raise RuntimeError
    meter.gradients_ready()
    meter.close()

    sync, step, announced = (m for d in daemon.receive() for m in d.marks)
    assert [(m.step, m.sync, m.kind) for m in (sync, step, announced)] == [
        (3, 0, 0),
        (3, 0, Kind.STEP),
        (4, 0, Kind.STEP),
    ]
    assert before_ns <= step.arrival_ns <= sync.arrival_ns <= ready_ns <= step.begin_ns <= sync.end_ns <= step.end_ns
    assert announced.begin_ns == announced.arrival_ns <= announced.end_ns


def test_what_is_one_ranks_own_is_numbered_apart(meter: Meter, daemon: Daemon) -> None:
    """Pushes, pulls and ages of parameters do not move the synchronizations' numbers; a message has the number that it is given."""
    with meter.sync(1):
        pass
    meter.record_push(1, 100, 150, 8)
    meter.record_pull(1, 200, 290, 9)
    meter.record_staleness(1, 3)
    meter.record_send(1, 70, 5)
    meter.record_receive(1, 71, 6)
    with meter.sync(1):
        pass
    meter.close()

    marks = [m for d in daemon.receive() for m in d.marks]
    assert [(m.kind, m.sync, m.bytes) for m in marks] == [
        (Kind.CUSTOM, 0, 0),
        (Kind.PUSH, 0, 8),
        (Kind.PULL, 1, 9),
        (Kind.STALENESS, 2, 3),
        (Kind.SEND, 70, 5),
        (Kind.RECEIVE, 71, 6),
        (Kind.CUSTOM, 1, 0),
    ]
    assert [(m.arrival_ns, m.begin_ns, m.end_ns) for m in marks[1:3]] == [(100, 100, 150), (200, 200, 290)]
    assert all(m.arrival_ns == m.begin_ns == m.end_ns for m in marks[3:6])


def test_an_announcement_needs_no_mark(meter: Meter, daemon: Daemon, ticks: Ticks, folder: Path) -> None:
    """It announces this rank, sends the kept marks, and returns whether a daemon received them."""
    listened = meter.announce()
    mark(meter, 1)
    again = meter.announce()
    daemon.stop(folder)
    unheard = meter.announce()

    assert (listened, again, unheard, meter.lost) == (True, True, False, 0)


def in_a_child(work: Callable[[], object]) -> object:
    """The result of `work` in a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, repr(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    try:
        if not select.select([reading], [], [], 60)[0]:
            raise TimeoutError("the child hangs")
        return literal_eval(os.read(reading, 1_000).decode() or "None")
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_forked_child_sends_no_marks(meter: Meter, daemon: Daemon, ticks: Ticks) -> None:
    """It sends neither its parent's kept marks nor its own, and does not hang on a lock that no thread releases."""
    mark(meter, 1)
    mark(meter, 2)
    held, freed = threading.Event(), threading.Event()

    def hold() -> None:
        with meter._lock:
            held.set()
            freed.wait(60)

    def child() -> int:
        ticks.now_ns += SEND_INTERVAL_NS
        mark(meter, 3)
        meter.close()
        return meter.lost

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60)
    try:
        lost = in_a_child(child)
    finally:
        freed.set()
        holder.join()
    mark(meter, 4)
    meter.close()

    assert lost == 1
    assert [[m.step for m in d.marks] for d in daemon.receive()] == [[1], [2, 4]]
    assert meter.lost == 0


def test_a_signal_handler_may_mark_and_close(meter: Meter, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a mark the handler's mark is counted as lost, and all others arrive complete."""
    pack = job_datagram.pack_mark

    def interrupted(*arguments: Any) -> None:
        pack(*arguments)
        if arguments[2] == 2:
            meter.mark(2, 9, 1, 1, 2)
        if arguments[2] == 3:
            meter.close()

    monkeypatch.setattr(meter_module, "pack_mark", interrupted)
    for step in (1, 2, 3):
        mark(meter, step)

    assert [m.step for d in daemon.receive() for m in d.marks] == [1, 2]
    assert meter.lost >= 1


@pytest.mark.parametrize("close", [False, True])
def test_a_signal_handler_may_mark_while_it_is_sent(folder: Path, daemon: Daemon, ticks: Ticks, close: bool) -> None:
    """In the middle of `announce` or `close`: the handler's mark is counted as lost, and every other one arrives once."""

    def interrupted(lost: int, own_overhead_ns: int) -> Header:
        if numbers:
            mark(meter, numbers.pop())
        return header(lost, own_overhead_ns)

    numbers: list[int] = []
    meter = Meter(folder / SOCKET_NAME, interrupted)
    for step in (1, 2, 3, 4):
        mark(meter, step)
    numbers.append(9)
    if not close:
        assert meter.announce()
    meter.close()

    assert [[m.step for m in d.marks] for d in daemon.receive()] == [[1], [2, 3, 4]]
    assert (meter.lost, numbers) == (1, [])


def test_a_signal_handler_may_announce_in_the_middle_of_a_mark(
    meter: Meter, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent then, and what is kept arrives once."""
    pack, announcements = job_datagram.pack_mark, []

    def interrupted(*arguments: Any) -> None:
        pack(*arguments)
        if arguments[2] == 3:
            announcements.append(meter.announce())

    monkeypatch.setattr(meter_module, "pack_mark", interrupted)
    for step in (1, 2, 3):
        mark(meter, step)
    meter.close()

    assert (announcements, meter.lost) == ([False], 0)
    assert [m.step for d in daemon.receive() for m in d.marks] == [1, 2, 3]


def test_threads_may_mark_at_once(folder: Path, daemon: Daemon) -> None:
    """Each mark of each thread arrives complete or is counted as lost."""
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
    assert {(m.arrival_ns, m.begin_ns, m.end_ns, m.bytes) for m in marks} == {(100, 110, 200, 8)}
