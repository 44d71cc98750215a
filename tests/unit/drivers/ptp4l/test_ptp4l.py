"""The ptp4l driver against a scripted management socket: as 3.1.1 behaves, and as 4.x does."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
from fake_clocks import FakeClocks
from phc_lab import Lab, SimulatedPhc

from timesyncd.bound import SYSTEM_CLOCK_LIMIT_PPB
from timesyncd.drivers.kernel._machine import Machine
from timesyncd.drivers.ptp4l import _event_monitor, _socket, ptp4l
from timesyncd.drivers.ptp4l._socket import MAX_QUERIES, own_path, subscription_s
from timesyncd.drivers.ptp4l.ptp4l import Ptp4l, Ptp4lOptions
from timesyncd.errors import Malformed, Refused, Unreachable
from timesyncd.sample import ClockSample, NoSample, PortState, Reading

pytestmark = pytest.mark.disable_socket

GET, SET = 0, 1
ANNOUNCED = bytes.fromhex("ca2f53fffe4f308f")
SYNC_NS = 1_000_000_000


@dataclass
class Script:
    """The values of the scripted ptp4l; a test changes them between polls."""

    identity: bytes = bytes.fromhex("360b7efffe6ae640")
    ports: int = 1
    domain: int = 24
    following: int = 1
    also_following: int | None = None
    state: int = PortState.SLAVE
    offset_ns: int = 642
    ingress_ns: int = 0
    path_delay_ns: int = 2_300
    peer_delay_ns: int = 0
    mechanism: int = 1
    parent: bytes = ANNOUNCED
    parent_port: int = 1
    grandmaster: bytes = ANNOUNCED
    utc_offset_s: int = 37
    utc_flags: int = 0
    stamping: int = 0
    phc: int = -1
    log_sync: int = 0
    counters: dict[tuple[str, int], int] = field(default_factory=dict)
    refused: dict[int, int] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    pushes: bool = False
    truncated: bool = False
    sync_while_asked: bool = False

    def sync(self, offset_ns: int) -> None:
        """A Sync arrives and is processed, and a delay is measured."""
        self.ingress_ns = (self.ingress_ns or 5_000_000_000_000) + SYNC_NS
        self.offset_ns = offset_ns
        for key in (("rx", 0), ("tx", 1), ("rx", 9), ("tx", 2), ("rx", 3)):
            self.counters[key] = self.counters.get(key, 100) + 1

    def body(self, management_id: int, port: int) -> bytes:
        match management_id:
            case 0x2000:
                reported = (3, self.ports, 128, 255, 0xFE, 0xFFFF, 128, self.identity, self.domain)
                return struct.pack(">BxHBBBHB8sBx", *reported)
            case 0x2001:
                return struct.pack(">Hqq", 1, self.offset_ns << 16, self.path_delay_ns << 16)
            case 0x2002:
                rest = (0, 0xFFFF, 0, 10, 6, 0x21, 0xFFFF, 128)
                return struct.pack(">8sHBxHiBBBHB8s", self.parent, self.parent_port, *rest, self.grandmaster)
            case 0x2003:
                return struct.pack(">hBB", self.utc_offset_s, self.utc_flags, 0x20)
            case 0x2004:
                follows = port in (self.following, self.also_following)
                state = self.state if follows else PortState.MASTER
                delay, mechanism = self.peer_delay_ns << 16, self.mechanism
                return struct.pack(
                    ">8sHBbqbBbBbB", self.identity, port, state, -3, delay, 0, 3, self.log_sync, mechanism, 1, 2
                )
            case 0xC004:
                return struct.pack(">8sHBBB", self.identity, 1, self.state, self.stamping, 4) + b"eth0"
            case 0xC009:
                return struct.pack(">8sHiBx", self.identity, 1, self.phc, 0)
            case 0xC005:
                counts = [self.counters.get((way, kind), 0) for way in ("rx", "tx") for kind in range(16)]
                return struct.pack(">8sH", self.identity, port) + struct.pack("<32Q", *counts)
            case _:
                return struct.pack(">qqiiHHQHi8s", self.offset_ns, self.ingress_ns, *[0] * 6, 1, self.grandmaster)


class ScriptedPtp4l:
    """A management socket at `path`."""

    def __init__(self, path: Path) -> None:
        self.script = Script()
        self.path = path
        self.subscriptions: list[int] = []
        self.asked: list[tuple[int, int]] = []
        self._subscriber: str | None = None
        self._pushed = 0

    def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(self.path))
        asyncio.get_running_loop().add_reader(self._socket, self._readable)

    def stop(self) -> None:
        """As SIGTERM does: the file goes."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self.path.unlink(missing_ok=True)
        self._subscriber = None

    def push(self) -> None:
        if self.script.pushes and self._subscriber is not None:
            self._socket.sendto(self._message(self._pushed, 1, 0xC000, self.script.body(0xC000, 0)), self._subscriber)
            self._pushed += 1

    def send_timestamps(self, path: Path, tlv: int, local_ns: int, reverse_ns: int | None = None) -> None:
        """An event: the Sync of `local_ns` that the script's offset and delay are of, or a delay measurement at that time."""
        t1_ns = local_ns - self.script.offset_ns - self.script.path_delay_ns
        stamps = (t1_ns, local_ns) if reverse_ns is None else (local_ns, local_ns + reverse_ns)
        first, second = (struct.pack(">HII", 0, *divmod(ns, 1_000_000_000)) for ns in stamps)
        rate = bytes(4) if reverse_ns is None else b""
        body = self.script.parent + struct.pack(">HH", self.script.parent_port, 7) + first + bytes(8) + rate + second
        header = struct.pack(">BBHB15x8sHHBb", 0xC, 2, 48 + len(body), 24, self.script.identity, 0, 0, 5, 0x7F)
        self._socket.sendto(header + b"\xff" * 10 + struct.pack(">HH", tlv, len(body)) + body, str(path))

    def _readable(self) -> None:
        request, client = self._socket.recvfrom(2048)
        domain, sequence, port = request[4], int.from_bytes(request[30:32]), int.from_bytes(request[42:44])
        action, management_id = request[46], int.from_bytes(request[52:54])
        self.asked.append((action, management_id))
        if domain != 24 or management_id in self.script.silent:
            return
        if management_id in self.script.refused:
            error = struct.pack(">H4x", management_id)
            self._socket.sendto(self._message(sequence, 2, self.script.refused[management_id], error), client)
            return
        if action == SET:
            self.subscriptions.append(int.from_bytes(request[54:56]))
            self._subscriber = client if self.subscriptions[-1] else None
            body = request[54:]
        else:
            body = self.script.body(management_id, port)
        answer = self._message(sequence, 1, management_id, body)
        self._socket.sendto(answer[:-4] if self.script.truncated else answer, client)
        if self.script.sync_while_asked and management_id == 0x2001:
            self.script.sync(5)

    def _message(self, sequence: int, tlv: int, number: int, body: bytes) -> bytes:
        header = struct.pack(
            ">BBHBBHqI8sHHBb", 0xD, 2, 54 + len(body), 24, 0, 0, 0, 0, self.script.identity, 1, sequence, 0, 0x7F
        )
        return header + struct.pack(">8sHBBBxHHH", b"\xff" * 8, 0xFFFF, 0, 0, 2, tlv, 2 + len(body), number) + body


@pytest_asyncio.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedPtp4l]:
    # It answers in this process, which other processes may hold up for a second.
    monkeypatch.setattr(_socket, "RESPONSE_TIMEOUT_S", 60)
    monkeypatch.setattr(_socket, "_WAIT_S", 0.05)
    scripted = ScriptedPtp4l(tmp_path / "server")
    scripted.start()
    yield scripted
    scripted.stop()


def driver_of(
    server: ScriptedPtp4l, clocks: FakeClocks | None = None, machine: Machine | None = None, **options: object
) -> Ptp4l:
    chosen = {"uds_address": server.path, "domain": 24} | options
    return Ptp4l("gm", Ptp4lOptions.model_validate(chosen), server.path.parent, clocks or FakeClocks(), machine)


async def primed(server: ScriptedPtp4l, clocks: FakeClocks, machine: Machine | None = None, **options: object) -> Ptp4l:
    """A driver that has seen one Sync already."""
    driver = driver_of(server, clocks, machine, **options)
    server.script.sync(1)
    await driver.open()
    assert await driver.poll() == []
    return driver


def only(readings: object) -> Reading:
    assert isinstance(readings, list)
    assert len(readings) == 1
    reading: Reading = readings[0]
    return reading


async def sample(driver: Ptp4l) -> ClockSample:
    reading = only(await driver.poll())
    assert isinstance(reading, ClockSample)
    return reading


async def nothing(driver: Ptp4l) -> NoSample:
    reading = only(await driver.poll())
    assert isinstance(reading, NoSample)
    return reading


async def test_a_new_sync_gives_a_sample(server: ScriptedPtp4l) -> None:
    """Offset, delay and identities are of the Sync; as_of is the last reading that did not show it yet."""
    clocks = FakeClocks()
    driver = await primed(server, clocks)
    clocks.advance(400_000_000)
    assert await driver.poll() == []
    not_yet_ns, difference_ns = clocks.boot_ns, clocks.real_ns - clocks.boot_ns
    clocks.advance(400_000_000)
    server.script.sync(-77)
    taken = await sample(driver)
    await driver.close()

    assert (taken.source, taken.clock, taken.offset_ns, taken.path_delay_ns) == ("gm", "realtime", -77, 2_300)
    assert (taken.as_of_ns, taken.real_minus_boot_ns) == (not_yet_ns, difference_ns)
    assert (taken.parent_identity, taken.grandmaster_identity) == ("ca2f53.fffe.4f308f", "ca2f53.fffe.4f308f")
    assert (taken.delay_requests_sent, taken.delay_responses_received) == (102, 102)
    assert (taken.sync_interval_ns, taken.delay_interval_ns) == (SYNC_NS, 125_000_000)
    assert (taken.clock_class, taken.clock_accuracy, taken.steps_removed, taken.time_source) == (6, 0x21, 1, 0x20)
    assert taken.frequency_ppb is not None


async def test_the_domain_is_the_one_that_ptp4l_reports(server: ScriptedPtp4l) -> None:
    """The domain that ptp4l reports counts, not the one in our requests."""
    server.script.domain = 127
    driver = await primed(server, FakeClocks())
    server.script.sync(5)
    taken = await sample(driver)
    await driver.close()

    assert taken.domain == 127


async def test_the_first_sync_only_primes(server: ScriptedPtp4l) -> None:
    """How long a Sync has been there is unknown until one was seen to arrive."""
    driver = await primed(server, FakeClocks())
    readings = await driver.poll()
    await driver.close()

    assert readings == []


async def test_a_perfect_offset_is_a_sample(server: ScriptedPtp4l) -> None:
    """Offset 0 is a value like any other."""
    driver = await primed(server, FakeClocks())
    server.script.sync(0)
    taken = await sample(driver)
    await driver.close()

    assert taken.offset_ns == 0


async def test_the_frozen_offset_is_no_sample(server: ScriptedPtp4l) -> None:
    """
    A frozen grandmaster leaves offset, class and gmPresent as if healthy: an old ingress_time is reported as its age, and
    ingress_time 0 with the port's state, and no sample comes of either.
    """
    clocks = FakeClocks()
    driver = await primed(server, clocks)
    server.script.sync(642)
    await sample(driver)
    clocks.advance(2_900_000_000)
    assert await driver.poll() == []
    clocks.advance(200_000_000)
    old = await nothing(driver)
    server.script.ingress_ns, server.script.state = 0, PortState.LISTENING
    listening = await nothing(driver)
    await driver.close()

    assert (old.reason, old.restarted) == ("no Sync for 3.1 s: the port is in state SLAVE", False)
    assert (listening.reason, listening.port_state) == (
        "no Sync received yet: the port is in state LISTENING",
        PortState.LISTENING,
    )


async def test_after_silence_the_first_sync_primes_again(server: ScriptedPtp4l) -> None:
    """A Sync after ingress_time 0 is taken from the second on."""
    driver = await primed(server, FakeClocks())
    before, server.script.ingress_ns = server.script.ingress_ns, 0
    forgotten, still = await nothing(driver), await nothing(driver)
    server.script.ingress_ns = before
    server.script.sync(1)
    first = await driver.poll()
    server.script.sync(2)
    second = await sample(driver)
    await driver.close()

    assert (first, second.offset_ns) == ([], 2)
    assert (forgotten.sync_forgotten, still.sync_forgotten) == (True, False)


@pytest.mark.parametrize("state", [PortState.LISTENING, PortState.MASTER, PortState.PASSIVE, PortState.FAULTY])
async def test_a_port_without_a_parent_gives_no_sample(server: ScriptedPtp4l, state: PortState) -> None:
    """Only SLAVE and UNCALIBRATED measure; any other state is named."""
    driver = await primed(server, FakeClocks())
    server.script.state = state
    server.script.sync(3)
    reading = await nothing(driver)
    await driver.close()

    assert (reading.reason, reading.port_state) == (
        f"the port does not follow a parent: it is in state {state.name}",
        state,
    )


async def test_uncalibrated_measures(server: ScriptedPtp4l) -> None:
    """A free-running ptp4l stays UNCALIBRATED for ever, and its offsets are valid."""
    driver = await primed(server, FakeClocks())
    server.script.state = PortState.UNCALIBRATED
    server.script.sync(3)
    await nothing(driver)
    server.script.sync(4)
    taken = await sample(driver)
    await driver.close()

    assert (taken.port_state, taken.offset_ns) == (PortState.UNCALIBRATED, 4)


async def test_an_offset_from_before_the_port_was_uncalibrated_is_no_sample(server: ScriptedPtp4l) -> None:
    """ptp4l repeats it with each Sync until it has a path delay again; then the delay filter was emptied meanwhile."""
    driver = await primed(server, FakeClocks())
    server.script.state = PortState.UNCALIBRATED
    readings = []
    for _ in range(4):
        server.script.sync(3)
        readings.append(await nothing(driver))
    await driver.close()

    assert {reading.reason for reading in readings} == {
        "ptp4l has not measured an offset since its port became UNCALIBRATED"
    }
    assert [reading.delay_unmeasured for reading in readings] == [False, False, True, True]


async def test_a_negative_path_delay_is_no_sample(server: ScriptedPtp4l) -> None:
    """A delay below zero was measured by a clock that is off. How the clock was steered meanwhile is known all the same."""
    driver = await primed(server, FakeClocks())
    server.script.path_delay_ns = -1
    server.script.sync(3)
    reading = await nothing(driver)
    await driver.close()

    assert (reading.reason, reading.restarted) == ("the path delay is negative", False)
    assert reading.frequency_ppb is not None


async def test_a_port_that_measures_no_path_delay_gives_no_sample(server: ScriptedPtp4l) -> None:
    """Without a delay mechanism the offset contains the whole path delay, so it bounds nothing."""
    driver = await primed(server, FakeClocks())
    server.script.mechanism = 0xFE
    server.script.sync(3)
    reading = await nothing(driver)
    await driver.close()

    assert reading.reason == "the port does not measure the path delay"


async def test_p2p_takes_the_ports_own_delay(server: ScriptedPtp4l) -> None:
    """With peer delay CURRENT's delay is 0; the port's delay, its interval and the Pdelay counters are taken."""
    server.script.mechanism, server.script.path_delay_ns, server.script.peer_delay_ns = 2, 0, 512
    driver = await primed(server, FakeClocks())
    server.script.sync(3)
    server.script.counters[("tx", 2)], server.script.counters[("rx", 3)] = 500, 400
    server.script.sync(4)
    taken = await sample(driver)
    await driver.close()

    assert (taken.path_delay_ns, taken.delay_interval_ns) == (512, 2_000_000_000)
    assert (taken.delay_requests_sent, taken.delay_responses_received) == (501, 401)


async def test_the_counters_of_a_common_link_delay_service_are_not_the_ports(server: ScriptedPtp4l) -> None:
    """Another process measures the delay then, so the port's counters stand still, and the memory expires by time."""
    server.script.mechanism, server.script.path_delay_ns, server.script.peer_delay_ns = 3, 0, 512
    driver = await primed(server, FakeClocks())
    server.script.sync(3)
    taken = await sample(driver)
    await driver.close()

    assert (taken.path_delay_ns, taken.delay_interval_ns) == (512, 2_000_000_000)
    assert (taken.delay_requests_sent, taken.delay_responses_received) == (None, None)


@pytest.mark.parametrize("by_ns", [5_000_000, -5_000_000, 37_000_000_000])
async def test_a_step_between_two_syncs_is_reported(server: ScriptedPtp4l, by_ns: int) -> None:
    """A clock that was set gives no sample across it; what follows is learnt again."""
    clocks = FakeClocks()
    driver = await primed(server, clocks)
    clocks.step(by_ns)
    server.script.sync(3)
    stepped = await nothing(driver)
    first = await driver.poll()
    server.script.sync(4)
    second = await sample(driver)
    await driver.close()

    assert (stepped.reason, stepped.stepped) == (f"the clock was stepped by {by_ns / 1e6:+.3f} ms", True)
    assert (first, second.offset_ns) == ([], 4)


async def test_a_step_is_reported_without_a_new_sync(server: ScriptedPtp4l) -> None:
    """A step is reported with the next reading, not with the next Sync."""
    clocks = FakeClocks()
    driver = await primed(server, clocks)
    clocks.step(1_000_000)
    stepped = await nothing(driver)
    await driver.close()

    assert stepped.stepped


async def test_slewing_is_no_step(server: ScriptedPtp4l) -> None:
    """What lies within the tolerance passes."""
    clocks = FakeClocks()
    driver = await primed(server, clocks)
    clocks.step(2_000)
    server.script.sync(3)
    taken = await sample(driver)
    await driver.close()

    assert taken.offset_ns == 3


async def test_a_sync_amid_the_reading_is_left_for_the_next(server: ScriptedPtp4l) -> None:
    """Data sets that may belong to two Syncs make no sample; the newer one keeps the older as_of."""
    clocks = FakeClocks()
    driver = await primed(server, clocks)
    not_yet_ns = clocks.boot_ns
    clocks.advance(SYNC_NS)
    server.script.sync(3)
    server.script.sync_while_asked = True
    torn = await driver.poll()
    server.script.sync_while_asked = False
    clocks.advance(SYNC_NS)
    taken = await sample(driver)
    await driver.close()

    assert torn == []
    assert (taken.offset_ns, taken.as_of_ns) == (5, not_yet_ns)


async def test_a_quick_restart_is_reported_once(server: ScriptedPtp4l) -> None:
    """A ptp4l that made its socket again between two polls restarted, though nothing else shows it."""
    driver = await primed(server, FakeClocks())
    server.stop()
    server.start()
    server.script.sync(3)
    reported = await nothing(driver)
    first = await driver.poll()
    server.script.sync(4)
    second = await sample(driver)
    await driver.close()

    assert (reported.reason, reported.restarted) == ("ptp4l restarted", True)
    assert (first, second.offset_ns) == ([], 4)


@pytest.mark.parametrize("way", ["rx", "tx"])
async def test_counters_that_went_back_are_a_restart(server: ScriptedPtp4l, way: str) -> None:
    """Counters begin at 0 with ptp4l; any one reports, of what was received and of what was sent."""
    driver = await primed(server, FakeClocks())
    server.script.sync(3)
    server.script.counters |= {key: 1 for key in server.script.counters if key[0] == way}
    reported = await nothing(driver)
    await driver.close()

    assert (reported.reason, reported.restarted) == ("ptp4l restarted: its counters were reset", True)


@pytest.mark.parametrize("identity", ["360b7efffe6ae640", "0011223344556677"])
async def test_a_restart_is_followed(server: ScriptedPtp4l, identity: str) -> None:
    """Socket gone: Unreachable. Back, with whatever identity: reported as a restart at the first poll, then samples again."""
    driver = await primed(server, FakeClocks())
    server.stop()
    with pytest.raises(Unreachable, match="No such file"):
        await driver.poll()
    await driver.close()
    with pytest.raises(Unreachable, match="is ptp4l running"):
        await driver.open()
    await driver.close()
    server.script.identity = bytes.fromhex(identity)
    server.start()
    await driver.open()
    reported = await nothing(driver)
    assert await driver.poll() == []
    server.script.sync(9)
    taken = await sample(driver)
    await driver.close()

    assert (reported.restarted, taken.offset_ns) == (True, 9)


async def test_other_rights_on_the_socket_are_no_restart(server: ScriptedPtp4l) -> None:
    """An operator who lets a group use the socket does not restart ptp4l."""
    driver = await primed(server, FakeClocks())
    await asyncio.sleep(0.02)  # the file system counts in ticks of some milliseconds
    server.path.chmod(0o660)
    server.script.sync(3)
    taken = await sample(driver)
    await driver.close()

    assert taken.offset_ns == 3


async def test_a_time_out_is_no_restart(server: ScriptedPtp4l, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ptp4l that did not answer for a while is the same one afterwards; its next Sync primes."""
    driver = await primed(server, FakeClocks())
    server.script.silent = {0xC000}
    with monkeypatch.context() as patch, pytest.raises(Unreachable, match="no answer within"):
        patch.setattr(_socket, "RESPONSE_TIMEOUT_S", 0.1)
        await driver.poll()
    await driver.close()
    server.script.silent = set()
    await driver.open()
    first = await driver.poll()
    server.script.sync(9)
    second = await sample(driver)
    await driver.close()

    assert (first, second.offset_ns) == ([], 9)


async def test_a_response_of_another_identity_is_dropped(
    server: ScriptedPtp4l, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers of another clock than the one first met are not taken."""
    driver = await primed(server, FakeClocks())
    server.script.identity = bytes(8)
    monkeypatch.setattr(_socket, "RESPONSE_TIMEOUT_S", 0.1)

    with pytest.raises(Unreachable, match="no answer"):
        await driver.poll()
    await driver.close()


async def test_another_parent_is_reported_and_primes(server: ScriptedPtp4l) -> None:
    """The first Sync after a change may be the former parent's."""
    driver = await primed(server, FakeClocks())
    server.script.parent = bytes.fromhex("0102030405060708")
    server.script.sync(3)
    reported = await nothing(driver)
    server.script.sync(4)
    taken = await sample(driver)
    await driver.close()

    assert reported.reason == "the PTP parent changed from ca2f53.fffe.4f308f-1 to 010203.0405.060708-1"
    assert (reported.restarted, taken.parent_identity) == (False, "010203.0405.060708")
    assert reported.cause == "parent_changed"


@pytest.mark.parametrize("absent", [None, bytes(8), b"\xff" * 8], ids=["own", "zeros", "ones"])
async def test_a_parent_that_no_announce_names_has_no_identity(server: ScriptedPtp4l, absent: bytes | None) -> None:
    """Without Announce ptp4l names its own clock as parent and grandmaster, although its port is a slave of another."""
    server.script.parent = server.script.grandmaster = absent or server.script.identity
    driver = await primed(server, FakeClocks())
    server.script.sync(3)
    taken = await sample(driver)
    await driver.close()

    assert (taken.parent_identity, taken.grandmaster_identity) == (None, None)


async def test_a_parent_that_names_our_own_clock_as_grandmaster_names_none(server: ScriptedPtp4l) -> None:
    """A clock that follows a port cannot be its own grandmaster."""
    server.script.grandmaster = server.script.identity
    driver = await primed(server, FakeClocks())
    server.script.sync(3)
    taken = await sample(driver)
    await driver.close()

    assert (taken.parent_identity, taken.grandmaster_identity) == ("ca2f53.fffe.4f308f", None)


async def test_another_port_of_the_same_parent_is_another_path(server: ScriptedPtp4l) -> None:
    """No later sample shows it, and it is no restart of ptp4l."""
    driver = await primed(server, FakeClocks())
    server.script.parent_port = 2
    server.script.sync(3)
    reported = await nothing(driver)
    await driver.close()

    assert (reported.cause, reported.restarted) == ("path_changed", False)
    assert reported.reason == "the PTP parent changed from ca2f53.fffe.4f308f-1 to ca2f53.fffe.4f308f-2"


async def test_another_grandmaster_behind_the_same_parent_is_reported(server: ScriptedPtp4l) -> None:
    """A boundary clock changed its grandmaster; ptp4l was not restarted."""
    driver = await primed(server, FakeClocks())
    server.script.grandmaster = bytes.fromhex("0102030405060708")
    server.script.sync(3)
    reported = await nothing(driver)
    await driver.close()

    assert (reported.cause, reported.restarted) == ("grandmaster_changed", False)
    assert reported.reason == "the grandmaster changed to 010203.0405.060708"


async def test_two_ports_that_follow_give_no_sample(server: ScriptedPtp4l) -> None:
    """Offset and path delay are of the clock, not of a port: which path they are of is not reported."""
    server.script.ports = 3
    clocks = FakeClocks()
    driver = await primed(server, clocks)
    server.script.sync(3)
    alone = await sample(driver)
    server.script.also_following = 3
    clocks.advance(1_000_000_000)
    server.script.sync(4)
    both = await nothing(driver)
    server.script.also_following = None
    clocks.advance(1_000_000_000)
    server.script.sync(5)
    again = await driver.poll()
    await driver.close()

    assert alone.offset_ns == 3
    assert (both.cause, both.reason) == (
        "two_ports_follow",
        "ports 1 and 3 both follow a parent: which of them an offset is of is not reported",
    )
    assert [type(reading) for reading in again] == [ClockSample]


@pytest.mark.parametrize(("ports", "asked"), [(1, 0), (3, 3)])
async def test_the_other_ports_are_asked_once_a_second(server: ScriptedPtp4l, ports: int, asked: int) -> None:
    """One port has no others; of several, at most one round a second."""
    server.script.ports = ports
    clocks = FakeClocks()
    driver = await primed(server, clocks)
    server.asked.clear()
    for number in range(4):
        clocks.advance(250_000_000)
        server.script.sync(number)
        await driver.poll()
    await driver.close()

    assert sum(management_id == 0x2004 for _, management_id in server.asked) == 4 + asked


@pytest.mark.parametrize("counted", [2, 500], ids=["fewer", "more"])
async def test_another_port_of_our_own_is_another_path(server: ScriptedPtp4l, counted: int) -> None:
    """Its counters are other ones: lower ones are no restart, and higher ones are no delay measurements of this path."""
    server.script.ports = 3
    driver = await primed(server, FakeClocks())
    server.script.following = 3
    server.script.sync(3)
    await nothing(driver)
    server.script.counters = dict.fromkeys(server.script.counters, counted)
    server.script.sync(4)
    reported = await nothing(driver)
    await driver.close()

    assert (reported.cause, reported.restarted) == ("path_changed", False)
    assert reported.reason == "ptp4l follows the parent through port 3 instead of port 1"


async def test_the_wrong_domain_is_silence_with_a_hint(server: ScriptedPtp4l, monkeypatch: pytest.MonkeyPatch) -> None:
    """ptp4l drops questions for other domains without a word."""
    driver = driver_of(server, domain=0)
    monkeypatch.setattr(_socket, "RESPONSE_TIMEOUT_S", 0.1)

    with pytest.raises(
        Unreachable, match="set the source's domain and transport_specific to ptp4l's; they are 0 and 0 here"
    ):
        await driver.open()
    await driver.close()


async def test_the_read_only_socket_needs_time_stamping(server: ScriptedPtp4l) -> None:
    """PORT_PROPERTIES_NP is refused there, so the clock is unknown until the configuration names it."""
    server.script.refused = {0xC004: 6, 0xC003: 6}
    unknown, reported = driver_of(server), driver_of(server, time_stamping="hardware", phc=3)
    with pytest.raises(Refused, match="PORT_PROPERTIES_NP: ptp4l reports NOT_SUPPORTED; set time_stamping"):
        await unknown.open()
    await unknown.close()
    server.script.sync(1)
    await reported.open()
    await reported.poll()
    server.script.sync(2)
    taken = await sample(reported)
    await reported.close()

    assert (taken.clock, taken.granularity_ns, taken.frequency_ppb) == ("phc:3", 8, None)


async def test_hardware_stamps_name_the_phc(server: ScriptedPtp4l) -> None:
    """What ptp4l then measures is the PHC, never "realtime"."""
    server.script.stamping, server.script.phc = 1, 8
    driver = await primed(server, FakeClocks())
    server.script.sync(2)
    taken = await sample(driver)
    await driver.close()

    assert taken.clock == "phc:8"


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A machine with /dev/ptp3 behind eth0."""
    for folder in ("dev", "net", "proc"):
        (tmp_path / folder).mkdir()
    (tmp_path / "dev" / "ptp3").touch()
    return Lab(tmp_path, SimulatedPhc())


@pytest.mark.parametrize(("reported", "configured"), [(3, None), (2, 3), (None, None), (-1, None)])
async def test_the_phc_is_read_at_each_sync(
    server: ScriptedPtp4l, lab: Lab, reported: int | None, configured: int | None
) -> None:
    """
    Its number is the configured one, else that of ptp4l 4.x, else that of the port's interface: of 3.1.1, and of a 4.x with
    `free_running`, which reports -1. Its own frequency and limit count, not the system clock's.
    """
    server.script.stamping = 1
    if reported is None:
        server.script.refused = {0xC009: 2}
    else:
        server.script.phc = reported
    options = {} if configured is None else {"phc": configured}
    driver = await primed(server, lab.phc.clocks, machine=lab.machine(), **options)
    server.script.sync(2)
    taken = await sample(driver)
    await driver.close()

    assert taken.phc is not None
    assert (taken.clock, taken.phc.clock, taken.phc.source) == ("phc:3", "phc:3", taken.source)
    assert (taken.frequency_ppb, taken.max_frequency_ppb) == (1_000, 62_499_999)
    assert taken.phc.system_frequency_ppb == -1_000
    assert taken.phc.as_of_ns >= taken.read_ns


async def test_another_slave_of_a_bond_brings_another_phc(server: ScriptedPtp4l, lab: Lab) -> None:
    """While no port follows, ptp4l may change its clock: the next Syncs belong to the new one, and the old is not read."""
    (lab.root / "dev" / "ptp5").touch()
    server.script.stamping, server.script.phc = 1, 3
    driver = await primed(server, lab.phc.clocks, machine=lab.machine())
    server.script.sync(2)
    before = await sample(driver)
    server.script.state, server.script.phc = PortState.LISTENING, 5
    await driver.poll()
    server.script.state = PortState.SLAVE
    server.script.sync(3)
    after = await sample(driver)
    await driver.close()

    assert (before.clock, before.phc and before.phc.clock) == ("phc:3", "phc:3")
    assert (after.clock, after.phc and after.phc.clock) == ("phc:5", "phc:5")


async def test_a_phc_that_cannot_be_read_is_reported_once(
    server: ScriptedPtp4l, lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """There are samples all the same, without the reading, its frequency and its limit."""
    server.script.stamping, server.script.phc = 1, 8
    driver = await primed(server, lab.phc.clocks, machine=lab.machine())
    taken = []
    for number in range(2, 5):
        server.script.sync(number)
        taken.append(await sample(driver))
    await driver.close()

    assert [(each.clock, each.phc, each.frequency_ppb, each.max_frequency_ppb) for each in taken] == [
        ("phc:8", None, None, None)
    ] * 3
    assert [record.message for record in caplog.records if "ptp8" in record.message] == [
        f"source {taken[0].source}: {lab.root}/dev/ptp8: no such device; the bound stays wider without this reading"
    ]


async def test_software_stamps_are_limited_by_adjtimex(server: ScriptedPtp4l) -> None:
    """The tick slews the system clock by 10 %, and there is no PHC."""
    driver = await primed(server, FakeClocks())
    server.script.sync(2)
    taken = await sample(driver)
    await driver.close()

    assert (taken.max_frequency_ppb, taken.phc) == (SYSTEM_CLOCK_LIMIT_PPB, None)


async def test_a_read_only_socket_does_not_report_the_phc(server: ScriptedPtp4l) -> None:
    """Neither its number nor its interface: the clock stays a PHC without an index, whose frequency is unknown."""
    server.script.refused = {0xC009: 2, 0xC004: 2}
    driver = await primed(server, FakeClocks(), time_stamping="hardware")
    server.script.sync(2)
    taken = await sample(driver)
    await driver.close()

    assert (taken.clock, taken.frequency_ppb) == ("phc", None)


async def test_a_sample_has_the_exchanges_since_the_last_one(
    server: ScriptedPtp4l, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exchanges received since the last sample, each once; those before a reading without a sample are discarded."""
    monkeypatch.setattr(_event_monitor, "queue_length", lambda: 128)
    path, clocks = server.path.with_name("events"), FakeClocks()
    exchanges: list[int] = []
    driver = await primed(server, clocks, slave_event_monitor=path)
    for reverse_ns, step_ns in ((1_700, 0), (1_800, 0), (1_900, 5_000_000), (1_600, 0), (1_500, 0)):
        server.script.sync(642)
        server.send_timestamps(path, 0x8004, server.script.ingress_ns)
        server.send_timestamps(path, 0x7F00, server.script.ingress_ns + 1_000, reverse_ns)
        await asyncio.sleep(0.01)
        clocks.step(step_ns)
        readings = await driver.poll()
        exchanges += [exchange.reverse_ns for r in readings if isinstance(r, ClockSample) for exchange in r.exchanges]
    await driver.close()

    assert exchanges == [1_700, 1_800, 1_600, 1_500]
    assert not path.exists()


async def test_an_event_path_that_cannot_be_bound_is_an_error(server: ScriptedPtp4l) -> None:
    """The operator named it: a source that silently did without would look as if nothing came."""
    server.path.with_name("events").touch()
    driver = driver_of(server, slave_event_monitor=server.path.with_name("events"))

    with pytest.raises(Unreachable, match="events: used by another process, or not a socket"):
        await driver.open()
    await driver.close()


async def test_a_ptp4l_without_port_stats_gives_samples(server: ScriptedPtp4l) -> None:
    """Before 3.0 there are no counters: they are None, not 0."""
    server.script.refused = {0xC005: 2}
    driver = await primed(server, FakeClocks())
    server.script.sync(2)
    taken = await sample(driver)
    await driver.close()

    assert (taken.delay_requests_sent, taken.delay_responses_received) == (None, None)


@pytest.mark.parametrize(("flags", "offset_s"), [(0x3C, 37), (0x38, None)])
async def test_an_invalid_utc_offset_is_none(server: ScriptedPtp4l, flags: int, offset_s: int | None) -> None:
    """currentUtcOffset counts only with its valid flag."""
    server.script.utc_flags = flags
    driver = await primed(server, FakeClocks())
    server.script.sync(2)
    taken = await sample(driver)
    await driver.close()

    assert (taken.current_utc_offset_s, taken.ptp_timescale, taken.time_traceable) == (offset_s, True, True)


async def test_a_ptp4l_that_refuses_a_needed_data_set_is_refused(server: ScriptedPtp4l) -> None:
    """ptp4l's own reason is the error; nothing is assumed in place of the data."""
    driver = await primed(server, FakeClocks())
    server.script.refused[0x2002] = 2
    server.script.sync(3)
    with pytest.raises(Refused, match="^PARENT_DATA_SET: ptp4l reports NO_SUCH_ID$"):
        await driver.poll()
    await driver.close()


async def test_the_following_port_is_found_among_many(server: ScriptedPtp4l) -> None:
    """On a boundary clock the port that follows is read, and never more is asked at once than our queue takes."""
    server.script.ports, server.script.following = 20, 19
    driver = await primed(server, FakeClocks())
    server.script.sync(2)
    taken = await sample(driver)
    await driver.close()

    assert taken.port_state is PortState.SLAVE
    assert MAX_QUERIES <= 10


async def test_a_truncated_answer_is_malformed(server: ScriptedPtp4l) -> None:
    """What cannot be decoded is reported as such, not as a time-out."""
    driver = await primed(server, FakeClocks())
    server.script.truncated = True

    with pytest.raises(Malformed):
        await driver.poll()
    await driver.close()


async def test_it_follows_the_sync_interval(server: ScriptedPtp4l) -> None:
    """The observed interval counts, not the port's own configured one, and only within sane limits."""
    server.script.log_sync = 4
    driver = await primed(server, FakeClocks())
    slow_s = driver.poll_interval_s
    server.script.sync(2)
    server.script.counters[("rx", 0)] += 7
    await sample(driver)
    fast_s = driver.poll_interval_s
    await driver.close()

    assert (slow_s, fast_s) == (1.0, 0.125)


async def test_3_1_1_grants_and_pushes_nothing(server: ScriptedPtp4l) -> None:
    """A granted subscription proves nothing: polling goes on."""
    driver = await primed(server, FakeClocks())
    server.script.sync(2)
    await sample(driver)
    interval_s = driver.poll_interval_s
    await driver.close()
    await asyncio.sleep(0)

    assert server.subscriptions[0] > 0
    assert interval_s == 1.0


async def test_pushes_of_4_x_replace_the_pace(server: ScriptedPtp4l) -> None:
    """Once a push came, a poll waits for the next; after three Sync intervals without one, polling goes on."""
    clocks = FakeClocks()
    server.script.pushes = True
    driver = await primed(server, clocks)
    server.script.sync(2)
    await sample(driver)
    clocks.advance(SYNC_NS)
    server.script.sync(3)
    server.push()
    polled = await sample(driver)
    pushed_interval_s = driver.poll_interval_s
    await driver.poll()
    clocks.advance(SYNC_NS)
    server.script.sync(4)
    server.push()
    pushed = await sample(driver)
    clocks.advance(2 * SYNC_NS)
    questions = len(server.asked)
    waited = await driver.poll()
    assert [asked for asked in server.asked[questions:] if asked[0] == GET] == []
    clocks.advance(2 * SYNC_NS)
    await driver.poll()
    polling_interval_s = driver.poll_interval_s
    overdue = await nothing(driver)
    await driver.close()

    assert (polled.offset_ns, pushed.offset_ns, waited) == (3, 4, [])
    assert (pushed_interval_s, polling_interval_s) == (0.0, 1.0)
    assert overdue.reason.startswith("no Sync for 4.0 s")


async def test_a_push_that_is_read_late_is_taken(server: ScriptedPtp4l) -> None:
    """Where this process was held up for longer than it waits for a push, the push that came meanwhile counts."""
    server.script.pushes = True
    driver = await primed(server, FakeClocks())
    server.script.sync(1)
    await sample(driver)
    server.script.sync(2)
    server.push()
    await sample(driver)
    await driver.poll()
    assert driver.poll_interval_s == 0
    server.script.sync(3)

    def held_up() -> None:
        time.sleep(2 * _socket._WAIT_S)
        server.push()

    asyncio.get_running_loop().call_soon(held_up)
    pushed = await sample(driver)
    await driver.close()

    assert pushed.offset_ns == 3


async def test_a_subscription_is_renewed_and_ended(server: ScriptedPtp4l, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewed when a third of it has passed, and ended at close."""
    monkeypatch.setattr(_socket, "queue_length", lambda: 10)
    clocks = FakeClocks()
    driver = await primed(server, clocks)
    for _ in range(6):
        clocks.advance(SYNC_NS)
        server.script.sync(2)
        await driver.poll()
    await driver.close()
    await asyncio.sleep(0.01)

    assert server.subscriptions == [8, 8, 8, 0]


@pytest.mark.parametrize(
    ("queue", "sync_ns", "duration_s"),
    [(10, SYNC_NS, 8), (10, SYNC_NS // 8, 0), (512, SYNC_NS // 8, 60), (512, SYNC_NS // 16, 31)],
)
def test_all_pushes_of_a_subscription_fit_into_the_queue(queue: int, sync_ns: int, duration_s: int) -> None:
    """ptp4l blocks on a full queue: a subscription ends before a stopped subscriber's queue is full, or is not made."""
    assert subscription_s(queue, sync_ns) == duration_s


async def test_only_reads_and_subscriptions_are_sent(server: ScriptedPtp4l) -> None:
    """On the wire there is GET, and SET on SUBSCRIBE_EVENTS_NP."""
    driver = await primed(server, FakeClocks())
    server.script.sync(2)
    await driver.poll()
    await driver.close()
    await asyncio.sleep(0.01)

    assert {asked for asked in server.asked if asked[0] != GET} == {(SET, 0xC003)}


async def test_its_files_come_and_go(server: ScriptedPtp4l) -> None:
    """Sockets that everybody may answer to, gone after close; those of killed predecessors go at open."""
    folder = server.path.parent
    dead, alive, another = (
        folder / name for name in ("ptp4l.gm.999999999.sock", f"ptp4l.gm.{os.getppid()}.sock", "ptp4l.g.1.sock")
    )
    for path in (dead, alive, another):
        path.touch()
    driver = await primed(server, FakeClocks())
    mode = own_path(folder, "gm", "").stat().st_mode & 0o777
    await driver.close()

    assert mode == 0o666
    assert set(folder.iterdir()) == {server.path, alive, another}


async def test_a_socket_without_permission_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What exists and may not be used is another case than what is not there."""
    (tmp_path / "ptp4l").touch()
    monkeypatch.setattr(ptp4l, "DEFAULT_ADDRESSES", (tmp_path / "ptp4l", tmp_path / "ptp4lro"))
    monkeypatch.setattr(os, "access", lambda *_: False)

    with pytest.raises(Unreachable, match="ptp4l: permission denied"):
        await Ptp4l("gm", Ptp4lOptions(), tmp_path).open()


@pytest.mark.parametrize(("name", "exists"), [("absent", False), ("x" * 120, True)])
async def test_an_unusable_runtime_folder_is_an_error(server: ScriptedPtp4l, name: str, exists: bool) -> None:
    """A folder that is not there, or whose path is too long for a socket, fails as drivers may fail."""
    folder = server.path.parent / name
    if exists:
        folder.mkdir()
    driver = Ptp4l("gm", Ptp4lOptions(uds_address=server.path), folder)

    with pytest.raises(Unreachable, match=name):
        await driver.open()
    await driver.close()
