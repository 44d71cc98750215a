"""The raw time stamps of real ptp4l pairs, two of them in two domains on one link, and what the driver makes of them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import statistics
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest

from timesyncd.clocks import NS_PER_S, SystemClocks
from timesyncd.daemon.source_states import measured
from timesyncd.driver import Runner
from timesyncd.drivers.kernel._machine import STA_DEL, STA_INS, system_timex
from timesyncd.drivers.ptp4l._event_monitor import EventRecord, RxSync, parse_event
from timesyncd.drivers.ptp4l.ptp4l import Ptp4l, Ptp4lOptions
from timesyncd.sample import ClockSample, NoSample, Reading
from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.bed import BedProcess, PtpBed
from timesyncd.simulation.bed.ptp4l import DOMAIN, configuration, major_version

pytestmark = pytest.mark.integration

#: The node of the second pair has a path configured as so much longer from the master than to it.
ASYMMETRY_NS = 5_000
FILTER_LENGTH = 10

#: A ptp4l that receives a leap second's flag arms this machine's kernel, free running or not.
NEVER_ARMS = "kernel_leap 0\n"
SETTINGS = (
    "clockClass 6 clockAccuracy 0x21 offsetScaledLogVariance 0xffff currentUtcOffset 37 leap61 {leap61} leap59 {leap59} "
    "currentUtcOffsetValid {ptp} ptpTimescale {ptp} timeTraceable {ptp} frequencyTraceable {ptp} timeSource 0x20"
)


class Pair:
    """A grandmaster and a node in their own domain, in the namespaces of a bed; the node sends its events."""

    def __init__(self, bed: PtpBed, folder: Path, domain: int, extra: str = "") -> None:
        self.domain = domain
        self.events = folder / f"events{domain}"
        self.server = folder / f"node{domain}"
        self.grandmaster = folder / f"grandmaster{domain}"
        self._folder = folder
        self._extra = f"slave_event_monitor {self.events}\n{extra}"
        self._place = bed.nodes["a"]
        self._running = {
            True: self._start(bed.grandmaster, self.grandmaster, "node0", is_grandmaster=True),
            False: self._start(self._place, self.server, "ptp0", is_grandmaster=False),
        }

    def restart_node(self) -> None:
        self._end(self._running[False])
        self.server.unlink()
        self._running[False] = self._start(self._place, self.server, "ptp0", is_grandmaster=False)

    def close(self) -> None:
        for process in self._running.values():
            self._end(process)

    def options(self, listening: bool = True) -> Ptp4lOptions:
        events = self.events if listening else None
        return Ptp4lOptions(uds_address=self.server, domain=self.domain, slave_event_monitor=events)

    def pmc(self, server: Path, question: str) -> str:
        command = [host.find("pmc"), "-u", "-b", "0", "-d", str(self.domain), "-s", str(server)]
        own = ["-i", str(self._folder / f"pmc{self.domain}")]
        return subprocess.run([*command, *own, question], check=True, capture_output=True, text=True).stdout

    def _start(self, place: BedProcess, address: Path, interface: str, is_grandmaster: bool) -> subprocess.Popen[bytes]:
        text = configuration(address, [interface], is_grandmaster, has_read_only_socket=major_version() >= 4)
        text = text.replace(f"domainNumber {DOMAIN}", f"domainNumber {self.domain}")
        file = address.with_suffix(".cfg")
        file.write_text(text if is_grandmaster else text.replace("[global]", f"[global]\n{self._extra}", 1))
        command = host.dying_with_parent([host.find("ptp4l"), "-f", str(file)])
        process = subprocess.Popen([*place.enter(), *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not address.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()


@dataclass
class Pairs:
    plain: Pair
    asymmetric: Pair


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pairs]:
    """Two domains on one link, both measuring."""
    folder = tmp_path_factory.mktemp("pairs")
    with PtpBed(direct=("a",)) as bed, contextlib.ExitStack() as stack:
        made = []
        for domain, extra in ((30, ""), (31, f"delayAsymmetry {ASYMMETRY_NS}\n{NEVER_ARMS}")):
            pair = Pair(bed, folder, domain, extra)
            stack.callback(pair.close)
            made.append(pair)
        yield Pairs(*made)


@dataclass
class Listener:
    """Receives all events of a node, by a socket of the test's own."""

    path: Path
    records: list[EventRecord] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(self.path))
        asyncio.get_running_loop().add_reader(self._socket, self._readable)
        return self

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self.path.unlink()

    def _readable(self) -> None:
        self.records.append(parse_event(self._socket.recv(2048)).record)


@contextlib.asynccontextmanager
async def opened(pair: Pair, folder: Path, listening: bool = True) -> AsyncIterator[Ptp4l]:
    driver = Ptp4l("a", pair.options(listening), folder)
    try:
        await driver.open()
        yield driver
    finally:
        await driver.close()


async def samples(driver: Ptp4l, holds: Callable[[ClockSample], bool], count: int = 1) -> list[ClockSample]:
    """So many of which it holds."""
    found: list[ClockSample] = []
    deadline = time.monotonic() + 60
    last: list[Reading] = []
    while len(found) < count and time.monotonic() < deadline:
        readings = await driver.poll()
        last = [*readings] or last
        found += [r for r in readings if isinstance(r, ClockSample) and r.path_delay_ns > 0 and holds(r)]
        await asyncio.sleep(driver.poll_interval_s)
    assert len(found) == count, f"only {len(found)}, the last {last}"
    return found


def mean_delays_ns(records: list[EventRecord]) -> list[float]:
    """Of each delay measurement with the newest Sync before it, as ptp4l pairs them."""
    delays, sync = [], None
    for record in records:
        if isinstance(record, RxSync):
            sync = record
        elif sync is not None:
            delays.append((sync.forward_ns + record.reverse_ns) / 2)
    return delays


async def settled(pair: Pair, folder: Path, count: int) -> list[tuple[ClockSample, RxSync, list[float]]]:
    """
    Samples read before another delay was measured, each with its Sync and the delays of ptp4l's filter. A delay measured
    between a Sync and its reading changes the path delay that is read, and not the offset.
    """
    found: list[tuple[ClockSample, RxSync, list[float]]] = []
    async with Listener(pair.events) as listener, opened(pair, folder, listening=False) as driver:

        def is_settled(taken: ClockSample) -> bool:
            newest, delays = listener.records[-1:], mean_delays_ns(listener.records)
            if len(delays) < FILTER_LENGTH or not isinstance(newest[0], RxSync):
                return False
            if newest[0].t2_ns == taken.ingress_time_ns:
                found.append((taken, newest[0], delays[-FILTER_LENGTH:]))
            return newest[0].t2_ns == taken.ingress_time_ns

        await samples(driver, is_settled, count)
    return found


async def test_offset_and_path_delay_are_the_sync_s_forward_delay(pairs: Pairs, tmp_path: Path) -> None:
    """Exactly, of the same Sync, with a correction that is not 0."""
    found = await settled(pairs.asymmetric, tmp_path, 20)

    assert {sync.correction_ns for _, sync, _ in found} == {ASYMMETRY_NS}
    assert [taken.offset_ns + taken.path_delay_ns - sync.forward_ns for taken, sync, _ in found] == [0] * 20


async def test_ten_raw_exchanges_give_ptp4l_s_path_delay(pairs: Pairs, tmp_path: Path) -> None:
    """Its median, but for the fractions of a nanosecond that ptp4l cuts off twice, with corrections of both signs."""
    found = await settled(pairs.asymmetric, tmp_path, 20)
    away_ns = [abs(taken.path_delay_ns - statistics.median(delays)) for taken, _, delays in found]

    assert max(away_ns) <= 1


async def test_a_sample_brings_the_exchanges_since_the_last(pairs: Pairs, tmp_path: Path) -> None:
    """
    Each once and in order, one a delay interval; forward and reverse make twice the path delay, whatever the offset is that the
    configured asymmetry makes. The path is there while open, and everybody may write to it.
    """
    pair = pairs.asymmetric
    async with opened(pair, tmp_path) as driver:
        found = await samples(driver, lambda taken: taken.exchanges != (), 20)
        mode = pair.events.stat().st_mode & 0o777
    sent_ns = [exchange.local_ns for taken in found for exchange in taken.exchanges]
    sums_ns = [s.offset_ns + s.path_delay_ns + e.reverse_ns for s in found for e in s.exchanges]
    delay_ns = statistics.median(taken.path_delay_ns for taken in found)

    assert sent_ns == sorted(set(sent_ns))
    assert all(abs(taken.exchanges[0].local_ns - taken.ingress_time_ns) < 5 * NS_PER_S for taken in found)
    assert 0.5 < statistics.median(sums_ns) / (2 * delay_ns) < 2
    assert min(e.reverse_ns for s in found for e in s.exchanges) > ASYMMETRY_NS
    assert mode == 0o666
    assert not pair.events.exists()


async def test_the_37_s_mistake_is_in_the_exchanges_as_in_the_offset(pairs: Pairs, tmp_path: Path) -> None:
    """A grandmaster that calls its UTC the PTP timescale: ptp4l takes 37 s out of the offset, and not out of raw stamps."""
    pair = pairs.plain
    async with opened(pair, tmp_path) as driver:
        before = (await samples(driver, lambda taken: taken.exchanges != ()))[0]
        pair.pmc(pair.grandmaster, f"SET GRANDMASTER_SETTINGS_NP {SETTINGS.format(ptp=1, leap61=0, leap59=0)}")
        try:
            lying = await samples(driver, lambda s: s.offset_ns > NS_PER_S and s.exchanges != (), 5)
        finally:
            pair.pmc(pair.grandmaster, f"SET GRANDMASTER_SETTINGS_NP {SETTINGS.format(ptp=0, leap61=0, leap59=0)}")
        after = (await samples(driver, lambda s: s.offset_ns < NS_PER_S and s.exchanges != ()))[0]

    assert [abs(taken.offset_ns) < 1_000_000 for taken in (before, after)] == [True, True]
    assert [abs(e.reverse_ns) < 1_000_000 for taken in (before, after) for e in taken.exchanges] != []
    assert all(abs(taken.offset_ns - 37 * NS_PER_S) < 1_000_000 for taken in lying)
    assert all(abs(e.reverse_ns + 37 * NS_PER_S) < 1_000_000 for taken in lying for e in taken.exchanges)


@pytest.mark.parametrize(
    ("leap61", "leap59", "detail"),
    [(1, 0, "insert"), (0, 1, "delete"), (1, 1, "both")],
)
async def test_the_flags_of_announce_are_in_the_sample(
    pairs: Pairs, tmp_path: Path, leap61: int, leap59: int, detail: str
) -> None:
    """A grandmaster that announces a leap second, as a node receives it and reports it, and until it no longer does."""
    pair = pairs.asymmetric
    assert NEVER_ARMS in pair.server.with_suffix(".cfg").read_text()
    async with opened(pair, tmp_path) as driver:
        settings = SETTINGS.format(ptp=1, leap61=leap61, leap59=leap59)
        pair.pmc(pair.grandmaster, f"SET GRANDMASTER_SETTINGS_NP {settings}")
        try:
            (announced,) = await samples(driver, lambda taken: taken.leap61 or taken.leap59)
        finally:
            pair.pmc(pair.grandmaster, f"SET GRANDMASTER_SETTINGS_NP {SETTINGS.format(ptp=0, leap61=0, leap59=0)}")
        (cleared,) = await samples(driver, lambda taken: not taken.leap61 and not taken.leap59)

    assert (announced.leap61, announced.leap59) == (bool(leap61), bool(leap59))
    assert measured(announced)["detail"] == f"leap second announced: {detail}"
    assert measured(cleared)["leap"] == "none"
    assert not system_timex().status & (STA_INS | STA_DEL)


def standing_still(pair: Pair) -> tuple[str, str]:
    """What ptp4l answers while the event loop, and so our reader, does nothing."""
    time.sleep(4)
    first = pair.pmc(pair.server, "GET TIME_STATUS_NP")
    time.sleep(0.5)
    return first, pair.pmc(pair.server, "GET TIME_STATUS_NP")


async def test_a_stopped_reader_does_not_stop_ptp4l(pairs: Pairs, tmp_path: Path) -> None:
    """While the reader is stopped for several queues' length, ptp4l continues and responds; then exchanges arrive again."""
    pair = pairs.plain
    async with opened(pair, tmp_path) as driver:
        await samples(driver, lambda taken: taken.exchanges != (), 5)
        first, second = standing_still(pair)
        again = await samples(driver, lambda taken: taken.exchanges != (), 3)

    assert "ingress_time" in first
    assert "ingress_time" in second
    assert first != second
    assert len(again) == 3


async def test_a_removed_path_is_made_again(pairs: Pairs, tmp_path: Path) -> None:
    """Removing the socket's path costs only some exchanges."""
    pair = pairs.plain
    async with opened(pair, tmp_path) as driver:
        await samples(driver, lambda taken: taken.exchanges != ())
        pair.events.unlink()
        await driver.poll()
        again = await samples(driver, lambda taken: taken.exchanges != (), 2)

    assert len(again) == 2


async def test_two_ptp4l_are_two_sources(pairs: Pairs, tmp_path: Path) -> None:
    """
    Two domains in one folder for our sockets: each source has its own offset and exchanges, and when one ptp4l is restarted only its own
    source reports so, and both go on.
    """
    seen: dict[str, list[Reading]] = {"plain": [], "asymmetric": []}

    async def follow(name: str, pair: Pair) -> None:
        runner = Runner(name, Ptp4l(name, pair.options(), tmp_path), SystemClocks(), lambda _: None)
        async with contextlib.aclosing(runner.samples()) as readings:
            async for reading in readings:
                seen[name].append(reading)

    def samples_of(name: str, since: int = 0) -> list[ClockSample]:
        return [r for r in seen[name][since:] if isinstance(r, ClockSample) and r.path_delay_ns > 0 and r.exchanges]

    async def until(holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                await asyncio.sleep(0.1)

    async with contextlib.AsyncExitStack() as stack:
        tasks = [asyncio.create_task(follow(name, getattr(pairs, name))) for name in seen]
        for task in tasks:
            stack.callback(task.cancel)
        await until(lambda: all(len(samples_of(name)) >= 5 for name in seen))
        files = sorted(path.name.split(".")[1] for path in tmp_path.iterdir())
        marks = {name: len(readings) for name, readings in seen.items()}
        await asyncio.to_thread(pairs.plain.restart_node)
        await until(lambda: any(r.restarted for r in seen["plain"] if isinstance(r, NoSample)))
        await until(lambda: all(len(samples_of(name, marks[name])) >= 5 for name in seen))
    await asyncio.gather(*tasks, return_exceptions=True)
    offsets_ns = {name: statistics.median(taken.offset_ns for taken in samples_of(name)) for name in seen}
    of_the_other = [r for r in seen["asymmetric"][marks["asymmetric"] :] if isinstance(r, NoSample)]
    disturbed = [r for r in of_the_other if not is_of_an_undisturbed_ptp4l(r)]

    assert set(files) == {"plain", "asymmetric"}
    assert disturbed == []
    assert -ASYMMETRY_NS * 1.5 < offsets_ns["asymmetric"] - offsets_ns["plain"] < -ASYMMETRY_NS * 0.5
    assert list(tmp_path.iterdir()) == []


def is_of_an_undisturbed_ptp4l(reading: NoSample) -> bool:
    """On a busy machine a Sync or an Announce may be late; ptp4l answered, and says so itself."""
    return reading.port_state is not None and not (reading.restarted or reading.stepped or reading.change)
