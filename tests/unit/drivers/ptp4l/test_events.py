"""ptp4l's raw time stamps: recorded events, the exchanges in them, and which senders and how many events are admitted."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.clocks import NS_PER_S
from timesyncd.drivers.ptp4l import _event_monitor
from timesyncd.drivers.ptp4l._event_monitor import (
    DelayTiming,
    EventMonitor,
    EventRecord,
    RxSync,
    SlaveEvent,
    SyncIntervalEstimator,
    exchanges,
    lease_ms,
    parse_event,
)
from timesyncd.drivers.ptp4l._socket import queue_length
from timesyncd.errors import Malformed, Unreachable
from timesyncd.sample import DelayExchange

pytestmark = pytest.mark.disable_socket

# From ptp4l 3.1.1 with `delayAsymmetry 5000` in domain 25.
SYNC = bytes.fromhex(
    "0c02005c19000000000000000000000000000000cee24bfffe63037d00000001057fffffffffffffffffffff"
    "8004002c1e9547fffef540bb0001000f00006b01e8a82a970f1a00000000138800000000000000006b01e8a82a9713ae"
)
DELAY = bytes.fromhex(
    "0c02005819000000000000000000000000000000cee24bfffe63037d00000000057fffffffffffffffffffff"
    "7f0000281e9547fffef540bb0001000000006b01e8a831cbc48bffffffffec78000000006b01e8a831cbcc9a"
)
CLOCK = bytes.fromhex("cee24bfffe63037d")
MASTER = bytes.fromhex("1e9547fffef540bb")
DOMAIN = 25
SECOND = 0x6B01E8A8
T2_NS = SECOND * NS_PER_S + 0x2A9713AE


def test_a_recorded_sync() -> None:
    """The master's port, its number, both stamps and the correction in nanoseconds."""
    record = RxSync(MASTER, 1, 15, SECOND * NS_PER_S + 0x2A970F1A, 5_000, T2_NS)

    assert parse_event(SYNC) == SlaveEvent(DOMAIN, CLOCK, record)
    assert record.forward_ns == 1_172 - 5_000


def test_a_recorded_delay() -> None:
    """A correction may be negative; the reverse delay is t4 - t3 less it."""
    record = DelayTiming(MASTER, 1, 0, SECOND * NS_PER_S + 0x31CBC48B, -5_000, SECOND * NS_PER_S + 0x31CBCC9A)

    assert parse_event(DELAY) == SlaveEvent(DOMAIN, CLOCK, record)
    assert record.reverse_ns == 2_063 + 5_000


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        SYNC[:-1],
        DELAY[:48],
        b"\x0d" + SYNC[1:],
        SYNC[:1] + b"\x01" + SYNC[2:],
        SYNC[:2] + b"\x00\x5b" + SYNC[4:],
        SYNC[:44] + b"\x80\x05" + SYNC[46:],
        SYNC[:44] + DELAY[44:46] + SYNC[46:],
        SYNC[:46] + b"\x00\x2a" + SYNC[48:],
        SYNC[:66] + struct.pack(">I", NS_PER_S) + SYNC[70:],
        SYNC[:60] + struct.pack(">HI", 2, 1) + SYNC[66:],
    ],
)
def test_anything_else_is_malformed(datagram: bytes) -> None:
    """Other messages, versions, lengths and types, a nanosecond field of a whole second, and a time after the year 2242."""
    with pytest.raises(Malformed):
        parse_event(datagram)


@given(
    st.binary(max_size=120)
    | st.builds(lambda at, new: SYNC[:at] + new + SYNC[at + len(new) :], st.integers(0, 91), st.binary(max_size=8))
)
def test_any_octets_are_an_event_or_malformed(datagram: bytes) -> None:
    """Nothing else is raised, and what is read can be worked with."""
    try:
        event = parse_event(datagram)
    except Malformed:
        return

    assert isinstance(event.record, RxSync | DelayTiming)
    assert 0 <= event.record.local_ns < 2**48 * NS_PER_S


PARENT = (MASTER, 1)


def sync_of(forward_ns: int, t2_ns: int = T2_NS, correction_ns: int = 0, sequence: int = 0) -> RxSync:
    return RxSync(MASTER, 1, sequence, t2_ns - forward_ns - correction_ns, correction_ns, t2_ns)


def delay_of(reverse_ns: int, t3_ns: int = T2_NS + 1, correction_ns: int = 0) -> DelayTiming:
    return DelayTiming(MASTER, 1, 0, t3_ns, correction_ns, t3_ns + reverse_ns + correction_ns)


def test_an_exchange_is_the_reverse_delay_on_the_offset_s_scale() -> None:
    """Local clock 700 ns ahead, 2 000 ns forward, 3 000 ns back: 2 300 ns, whatever transparent clocks added on the way."""
    records: list[EventRecord] = [sync_of(2_700, correction_ns=900), delay_of(2_300, correction_ns=400)]

    assert exchanges(records, PARENT, T2_NS, 2_700) == (DelayExchange(T2_NS + 1, 2_300),)


@pytest.mark.parametrize("removed_s", [37, 0, -1])
def test_the_whole_seconds_that_ptp4l_took_out_are_taken_out(removed_s: int) -> None:
    """Reported forward minus raw forward: 37 s more where the raw stamps agree and the offset states +37 s; the reverse is less by it."""
    removed_ns = removed_s * NS_PER_S
    records: list[EventRecord] = [sync_of(2_700), delay_of(2_300)]

    found = exchanges(records, PARENT, T2_NS, 2_700 + removed_ns)

    assert found == (DelayExchange(T2_NS + 1, 2_300 - removed_ns),)


@pytest.mark.parametrize(
    "records",
    [
        [delay_of(2_300)],
        [sync_of(2_700, t2_ns=T2_NS - 1), delay_of(2_300)],
        [replace(sync_of(2_700), master=CLOCK), delay_of(2_300)],
        [sync_of(2_700 + 300_000_000), delay_of(2_300)],
        [sync_of(2_700), replace(delay_of(2_300), master=CLOCK)],
        [sync_of(2_700), replace(delay_of(2_300), master_port=2)],
        [sync_of(2_700), delay_of(2_300 - 37 * NS_PER_S)],
    ],
    ids=[
        "no Sync",
        "another Sync",
        "another's Sync",
        "no whole seconds",
        "another master",
        "another port",
        "another scale",
    ],
)
def test_what_cannot_be_vouched_for_is_no_exchange(records: list[EventRecord]) -> None:
    """Without the sample's own Sync the scale is unknown; of another master, port or scale no exchange is taken."""
    assert exchanges(records, PARENT, T2_NS, 2_700) == ()


def test_a_delay_measured_between_sync_and_reading_does_no_harm() -> None:
    """Then the path delay that is read is not the one in the offset: the scale is reported all the same, and is exact."""
    assert exchanges([sync_of(2_700), delay_of(2_300)], PARENT, T2_NS, 9_700) == (DelayExchange(T2_NS + 1, 2_300),)


@pytest.mark.parametrize(
    ("queue", "sync_ns", "delay_ns", "expected_ms"),
    [
        (10, NS_PER_S, NS_PER_S, 1_333),
        (10, NS_PER_S // 8, NS_PER_S // 8, 166),
        (128, NS_PER_S // 128, NS_PER_S // 128, 164),
        (10, 16 * NS_PER_S, 1_000 * NS_PER_S, 41_994),
        (128, 16 * NS_PER_S, 16 * NS_PER_S, 60_000),
        (1, NS_PER_S, NS_PER_S, 0),
    ],
)
def test_a_lease_is_what_fits_into_the_queue(queue: int, sync_ns: int, delay_ns: int, expected_ms: int) -> None:
    """A third of the queue less a spare pair at the mean rates, and a minute at most."""
    assert lease_ms(queue, sync_ns, delay_ns) == expected_ms


def test_the_pace_is_counted_by_the_syncs_own_numbers() -> None:
    """Eight events give the interval, with lost ones and the wrap of numbers included; three missed events make it unknown again."""
    pace = SyncIntervalEstimator()
    for number in (0, 1, 2, 4, 5, 6, 7):
        pace.add_event(sync_of(0, T2_NS + number * 1_000, sequence=(65_533 + number) % 65_536))
    too_few = pace.interval_ns()
    pace.add_event(sync_of(0, T2_NS + 8_000, sequence=5))
    pace.add_used(T2_NS + 8_000)
    known = pace.interval_ns()
    for later in (9_000, 9_000, 10_000):
        pace.add_used(T2_NS + later)
    two_unheard = pace.interval_ns()
    pace.add_used(T2_NS + 11_000)

    assert (too_few, known, two_unheard, pace.interval_ns()) == (None, 1_000, 1_000, None)


def test_no_more_is_asked_for_than_a_sender_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long queue is of no use: ptp4l's own send buffer is full before."""
    monkeypatch.setattr(Path, "read_text", lambda _: "512\n")

    assert queue_length() == 128


class Sender:
    """Sends as ptp4l does, and reports when it would block."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "server"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(self.path))

    def send(self, datagram: bytes, folder: Path) -> None:
        self._socket.sendto(datagram, str(folder / "events"))

    def sync(self, folder: Path, local_ns: int, sequence: int = 0, domain: int = DOMAIN) -> None:
        seconds, fraction_ns = divmod(local_ns, NS_PER_S)
        event = SYNC[:4] + bytes([domain]) + SYNC[5:58] + struct.pack(">H", sequence) + SYNC[60:84]
        self.send(event + struct.pack(">II", seconds, fraction_ns), folder)

    def delay(self, folder: Path, local_ns: int) -> None:
        self.send(DELAY[:62] + struct.pack(">II", *divmod(local_ns, NS_PER_S)) + DELAY[70:], folder)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[Sender]:
    made = Sender(tmp_path)
    yield made
    made.close()


def monitor_of(folder: Path) -> EventMonitor:
    return EventMonitor(folder / "events", folder / "server", DOMAIN, CLOCK)


async def received(monitor: EventMonitor) -> list[int]:
    await asyncio.sleep(0.01)
    return [record.local_ns for record in monitor.take()]


async def test_only_events_stamped_in_the_lease_are_admitted(sender: Sender, tmp_path: Path) -> None:
    """
    1 333 ms from the newest Sync on, and the second before; nothing at all until a first Sync is known. The sender sees no difference.
    """
    monitor = monitor_of(tmp_path)
    sender.sync(tmp_path, T2_NS)
    before = await received(monitor)
    monitor.renew(T2_NS, NS_PER_S, NS_PER_S)
    inside = [T2_NS, T2_NS + 1, T2_NS - NS_PER_S, T2_NS + 1_332_000_000]
    outside = [T2_NS + 1_334_000_000, T2_NS + 3600 * NS_PER_S, T2_NS - 3 * NS_PER_S, 0]
    for local_ns in outside + inside[:3]:
        sender.sync(tmp_path, local_ns)
        sender.delay(tmp_path, local_ns)
    early = await received(monitor)
    sender.delay(tmp_path, inside[3])
    late = await received(monitor)
    monitor.close()

    assert before == []
    assert early == [local_ns for local_ns in inside[:3] for _ in range(2)]
    assert late == inside[3:]


async def test_a_sender_never_waits_for_a_reader_that_does_nothing(sender: Sender, tmp_path: Path) -> None:
    """A minute of events, and the queue is not full; when we read again, those of the lease are there, and then new ones."""
    monitor = monitor_of(tmp_path)
    monitor.renew(T2_NS, NS_PER_S // 8, NS_PER_S // 8)
    for number in range(8 * 60):  # would raise BlockingIOError where ptp4l would wait
        sender.sync(tmp_path, T2_NS + number * NS_PER_S // 8)
    leased = await received(monitor)
    newest_ns = T2_NS + 60 * NS_PER_S
    monitor.renew(newest_ns, NS_PER_S // 8, NS_PER_S // 8)
    sender.sync(tmp_path, newest_ns + 1)
    after = await received(monitor)
    monitor.close()

    assert 1 <= len(leased) <= 8
    assert after == [newest_ns + 1]


async def test_a_lease_is_renewed_while_events_come(sender: Sender, tmp_path: Path) -> None:
    """However seldom the driver polls."""
    monitor = monitor_of(tmp_path)
    monitor.renew(T2_NS, NS_PER_S, NS_PER_S)
    sent = [T2_NS + number * NS_PER_S for number in range(1, 20)]
    for local_ns in sent:
        sender.sync(tmp_path, local_ns)
        await asyncio.sleep(0.001)
    came = await received(monitor)
    monitor.close()

    assert came == sent


async def test_others_are_not_kept(sender: Sender, tmp_path: Path) -> None:
    """Another domain's ptp4l, and what is no event; they are counted."""
    monitor = monitor_of(tmp_path)
    monitor.renew(T2_NS, NS_PER_S, NS_PER_S)
    sender.sync(tmp_path, T2_NS, domain=DOMAIN + 1)
    sender.send(SYNC[:46] + b"\x00\x2a" + SYNC[48:], tmp_path)
    came = await received(monitor)
    monitor.close()

    assert (came, monitor.rejected) == ([], 2)


async def test_memory_is_bounded(sender: Sender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go first, and are counted."""
    monkeypatch.setattr(_event_monitor, "_MAX_RECORDS", 3)
    monitor = monitor_of(tmp_path)
    monitor.renew(T2_NS, NS_PER_S, NS_PER_S)
    for number in range(5):
        sender.sync(tmp_path, T2_NS + number)
        await asyncio.sleep(0.001)
    came = await received(monitor)
    monitor.close()

    assert (came, monitor.lost) == ([T2_NS + 2, T2_NS + 3, T2_NS + 4], 2)


async def test_the_path_is_taken_kept_and_given_back(sender: Sender, tmp_path: Path) -> None:
    """Taken from a dead predecessor, open to every sender, created again after a removal, and removed at the end."""
    path = tmp_path / "events"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(path))
    monitor = monitor_of(tmp_path)
    mode = path.stat().st_mode & 0o777
    path.unlink()
    monitor.renew(T2_NS, NS_PER_S, NS_PER_S)
    sender.sync(tmp_path, T2_NS)
    came = await received(monitor)
    monitor.close()

    assert (mode, came) == (0o666, [T2_NS])
    assert not path.exists()


async def test_another_s_path_is_left_alone(sender: Sender, tmp_path: Path) -> None:
    """A path on which a process listens, or that is no socket, is not removed; neither is one that replaced ours."""
    path = tmp_path / "events"
    monitor = monitor_of(tmp_path)
    with pytest.raises(Unreachable, match="used by another process"):
        monitor_of(tmp_path)
    path.unlink()
    path.write_text("a file")
    with pytest.raises(Unreachable, match="not a socket"):
        monitor.renew(T2_NS, NS_PER_S, NS_PER_S)
    monitor.close()

    assert path.read_text() == "a file"


async def test_another_senders_events_are_rejected(sender: Sender, tmp_path: Path) -> None:
    """Everybody may write to the path; only root and the owner of ptp4l's socket are listened to."""
    monitor = monitor_of(tmp_path)
    monitor.renew(T2_NS, NS_PER_S, NS_PER_S)
    monitor._socket._trusted = {os.geteuid() + 1}
    sender.sync(tmp_path, T2_NS)
    came = await received(monitor)
    monitor.close()

    assert came == []
