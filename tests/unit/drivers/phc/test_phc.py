"""The drivers phc and phc2sys on a simulated PTP hardware clock that answers octet for octet as linux/ptp_clock.h states."""

from __future__ import annotations

import errno
import os
import struct
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from phc_lab import BASIC, EXTENDED, PRECISE, TAI_NS, Lab, SimulatedPhc, denied, timex, ts_info
from pydantic import ValidationError

from timesyncd.clocks import NS_PER_S
from timesyncd.drivers.kernel import _machine
from timesyncd.drivers.kernel._machine import Timex, clock_id
from timesyncd.drivers.phc._device import PhcReader
from timesyncd.drivers.phc._ioctl import (
    OFFSET_IOCTLS,
    PRECISE_GRANULARITY_NS,
    PhcIoctl,
    ReadingWindow,
    ioctl_buffer,
    max_frequency_ppb,
    shortest,
    windows,
)
from timesyncd.drivers.phc.phc import RESOLVE_EVERY_NS, Phc, Phc2sys, PhcOptions
from timesyncd.errors import Malformed, Refused, SourceError, Unreachable
from timesyncd.sample import NoSample, PhcSample, Reading

pytestmark = pytest.mark.disable_socket

ADJ_OFFSET_SS_READ = 0xA001


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    for folder in ("dev", "net", "proc"):
        (tmp_path / folder).mkdir()
    (tmp_path / "dev" / "ptp3").touch()
    made = Lab(tmp_path, SimulatedPhc())
    made.process(1, "/sbin/init")
    return made


async def read(driver: Phc) -> Reading:
    await driver.open()
    try:
        (reading,) = await driver.poll()
    finally:
        await driver.close()
    return reading


async def sample(driver: Phc) -> PhcSample:
    reading = await read(driver)

    assert isinstance(reading, PhcSample)
    return reading


async def failure(driver: Phc) -> tuple[type[SourceError], str]:
    with pytest.raises(SourceError) as caught:
        await read(driver)
    return type(caught.value), str(caught.value)


async def test_a_sample_has_the_reading_and_its_method(lab: Lab) -> None:
    """Offset is CLOCK_REALTIME minus PHC, the width is the window's, the time is from before it."""
    started = (lab.phc.clocks.boot_ns, lab.phc.clocks.real_ns - lab.phc.clocks.boot_ns)
    found = await sample(lab.driver())

    assert found == PhcSample(
        source="nic",
        clock="phc:3",
        as_of_ns=started[0],
        real_minus_boot_ns=started[1],
        offset_ns=-TAI_NS,
        width_ns=1_000,
        method="extended",
        frequency_ppb=1_000,
        system_frequency_ppb=-1_000,
        steered=None,
        max_frequency_ppb=62_499_999,
    )


async def test_an_offset_of_zero_is_an_offset(lab: Lab) -> None:
    """A PHC that shows exactly CLOCK_REALTIME is a sample as any other."""
    lab.phc.ahead_ns = -TAI_NS

    assert (await sample(lab.driver())).offset_ns == 0


@pytest.mark.parametrize("knows", [EXTENDED, BASIC], ids=lambda request: str(request.name))
async def test_the_shortest_window_wins(lab: Lab, knows: PhcIoctl) -> None:
    """Of all readings the one that was disturbed least counts, wherever in it the PHC was read."""
    lab.phc.knows = {knows}
    lab.phc.delays = [(9_000, 200), (300, 100), (70_000, 5), (250, 900)]
    found = await sample(lab.driver(index=3, readings=4))

    assert (found.method, found.width_ns, found.offset_ns) == (knows.name.lower(), 400, -TAI_NS - 100)


@pytest.mark.parametrize("knows", [EXTENDED, BASIC], ids=lambda request: str(request.name))
@given(
    delays=st.lists(st.tuples(st.integers(0, 10**8), st.integers(0, 10**8)), min_size=1, max_size=25),
    ahead_ns=st.integers(-(10**18), 10**18),
)
def test_the_truth_is_within_half_the_width(knows: PhcIoctl, delays: list[tuple[int, int]], ahead_ns: int) -> None:
    """However slow and lopsided the readings were, the true offset is in the interval, to the half nanosecond."""
    phc = SimulatedPhc(knows={knows}, delays=delays, ahead_ns=ahead_ns)
    asked = ioctl_buffer(knows, len(delays))
    phc.ask(0, knows, asked)
    window = shortest(windows(knows, bytes(asked)))

    assert 2 * abs(window.offset_ns + TAI_NS + ahead_ns) <= window.width_ns + 1


async def test_a_slow_reading_has_a_wide_window(lab: Lab) -> None:
    """Where every reading was disturbed for a millisecond, the width states it."""
    lab.phc.delays = [(1_000_000, 500)]

    assert (await sample(lab.driver())).width_ns == 1_000_500


async def test_a_cross_timestamp_has_the_width_of_its_counters(lab: Lab) -> None:
    """PRECISE is one instant; what remains is how finely the two counters count."""
    lab.phc.knows = set(OFFSET_IOCTLS)
    found = await sample(lab.driver())

    assert (found.method, found.width_ns, found.offset_ns) == ("precise", PRECISE_GRANULARITY_NS, -TAI_NS)
    assert lab.phc.asked == [PRECISE]


@pytest.mark.parametrize("unknown", [errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV])
async def test_the_best_way_is_tried_out_and_remembered(lab: Lab, unknown: int) -> None:
    """PRECISE, EXTENDED, BASIC, until one works; then that one alone, and all again once it was closed."""
    lab.phc.knows, lab.phc.unknown = {BASIC}, unknown
    driver = lab.driver()
    await driver.open()
    await driver.poll()
    await driver.poll()
    await driver.close()
    await read(driver)

    assert lab.phc.asked == [PRECISE, EXTENDED, BASIC, BASIC, PRECISE, EXTENDED, BASIC]


async def test_a_busy_clock_is_asked_three_times(lab: Lab) -> None:
    """EBUSY twice is nothing; a third time it is reported, and the clock is not taken for one that cannot be asked so."""
    lab.phc.fails = {EXTENDED: [errno.EBUSY] * 2}
    found = await sample(lab.driver())
    lab.phc.fails = {EXTENDED: [errno.EBUSY] * 3}

    assert found.method == "extended"
    assert await failure(lab.driver()) == (Unreachable, f"{lab.root}/dev/ptp3: due")


@pytest.mark.parametrize(
    ("knows", "fails", "reported"),
    [
        (set(), {}, (Refused, "the driver supports no ioctl that reads the offset to the system clock")),
        ({EXTENDED}, {EXTENDED: [errno.EIO]}, (Unreachable, "due")),
        ({EXTENDED}, {PRECISE: [errno.ETIMEDOUT]}, (Unreachable, "due")),
        (set(), {request: [errno.ENODEV] for request in OFFSET_IOCTLS}, (Unreachable, "due")),
    ],
    ids=["no way", "broken", "timed out", "gone"],
)
async def test_each_failure_has_its_error(
    lab: Lab, knows: set[PhcIoctl], fails: dict[PhcIoctl, list[int]], reported: tuple[type[SourceError], str]
) -> None:
    """A clock that cannot be asked refuses; one that fails or is gone is unreachable, and is not asked in a worse way."""
    lab.phc.knows, lab.phc.fails = knows, fails

    assert await failure(lab.driver()) == (reported[0], f"{lab.root}/dev/ptp3: {reported[1]}")


async def test_two_samples_show_the_drift(lab: Lab) -> None:
    """A PHC that runs 2 ppm fast is 20 us further after ten seconds."""
    lab.phc.drift_ppb = 2_000
    first = await sample(lab.driver())
    lab.phc.clocks.advance(10 * NS_PER_S)
    second = await sample(lab.driver())

    assert abs(second.offset_ns - first.offset_ns + 20_000) <= 1


@pytest.mark.parametrize("by_ns", [5_000_000, -5_000_000, NS_PER_S, -NS_PER_S])
async def test_a_step_while_it_was_read_gives_no_sample(lab: Lab, by_ns: int) -> None:
    """Trap 16: the clock was set between the two looks at REALTIME - BOOTTIME, so no window can be trusted."""
    lab.phc.steps_ns = by_ns
    reading = await read(lab.driver())

    assert isinstance(reading, NoSample)
    assert (reading.stepped, reading.reason) == (True, f"the clock was stepped by {by_ns / 1e6:+.3f} ms")


async def test_a_step_between_two_readings_spoils_neither(lab: Lab) -> None:
    """The offset of each is true for its time, and `real_minus_boot_ns` reports that they cannot be compared."""
    first = await sample(lab.driver())
    lab.phc.clocks.step(NS_PER_S)
    lab.phc.ahead_ns = -NS_PER_S
    second = await sample(lab.driver())

    assert second.offset_ns == first.offset_ns + NS_PER_S
    assert second.real_minus_boot_ns == first.real_minus_boot_ns + NS_PER_S


async def test_windows_that_end_before_they_begin_are_dropped(lab: Lab) -> None:
    """Such a window is not the shortest one, and where all are such there is no sample."""
    sound, reversed_ = ReadingWindow(10, 0, 90), ReadingWindow(10, 0, 9)

    assert shortest((reversed_, sound)) == sound
    with pytest.raises(Malformed, match="every reading window ends before it begins"):
        shortest((reversed_,))


async def test_it_requests_the_configured_number_of_readings(lab: Lab) -> None:
    """`readings`, 5 unless reported."""
    lab.phc.knows = {EXTENDED}
    await read(lab.driver(index=3))
    await read(lab.driver(index=3, readings=25))
    await read(lab.driver(index=3, readings=1))

    assert lab.phc.readings == [5, 25, 1]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"index": 0, "interface": "eth0"},
        {"index": -1},
        {"interface": ""},
        {"index": 0, "readings": 26},
        {"index": 0, "readings": 0},
        {"index": 0, "poll_interval_s": 0.1},
    ],
)
def test_options_that_name_no_clock_or_two(options: dict[str, object]) -> None:
    """Exactly one of interface and index; readings from 1 to what the kernel takes; a few times a second at most."""
    with pytest.raises(ValidationError):
        PhcOptions.model_validate(options)


async def test_no_such_device(lab: Lab) -> None:
    """The file is named."""
    assert await failure(lab.driver(index=7)) == (Unreachable, f"{lab.root}/dev/ptp7: no such device")


async def test_permission_denied_names_the_remedy(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The udev rule is named."""
    monkeypatch.setattr(os, "open", denied)
    kind, reported = await failure(lab.driver())

    assert kind is Unreachable
    assert "permission denied" in reported
    assert "systemd/timesyncd.rules" in reported


async def test_an_interface_names_its_clock(lab: Lab) -> None:
    """The clock is named by its number, whichever way it was found; an interface without one is refused."""
    assert (await sample(lab.driver(interface="eth0"))).clock == "phc:3"
    assert await failure(lab.driver(interface="eth1")) == (Refused, "eth1: this interface has no PTP hardware clock")


async def test_a_bond_that_fails_over_is_another_clock(lab: Lab) -> None:
    """The reading fails, and is taken again from the clock of the slave that is active now."""
    (lab.root / "dev" / "ptp4").touch()
    behind = {"bond0": 3}
    machine = lab.machine(ethtool_ts_info=lambda interface: ts_info(behind[interface]))
    driver = lab.driver(machine=machine, interface="bond0")
    first = await sample(driver)
    await driver.open()
    behind["bond0"] = 4
    lab.phc.clocks.advance(RESOLVE_EVERY_NS)
    with pytest.raises(Unreachable, match="bond0: its clock changed from phc:3 to phc:4"):
        await driver.poll()
    await driver.close()

    assert (first.clock, (await sample(driver)).clock) == ("phc:3", "phc:4")


async def test_whose_clock_an_interface_has_is_asked_rarely_and_beside_the_loop(lab: Lab) -> None:
    """The kernel answers under a lock: never on the event loop's thread, at open, and then every ten seconds."""
    threads: list[int] = []

    def ask(interface: str) -> bytes:
        threads.append(threading.get_ident())
        return ts_info(3)

    lab.process(300, "phc2sys", "-s", "eth9", "-w")
    counts = []
    for kind in (Phc, Phc2sys):
        driver = lab.driver(kind, machine=lab.machine(ethtool_ts_info=ask), interface="eth0")
        await driver.open()
        for pause_ns in (0, 1_000, RESOLVE_EVERY_NS, 1_000):
            lab.phc.clocks.advance(pause_ns)
            await driver.poll()
            counts.append(len(threads))
        await driver.close()

    assert counts == [1, 1, 2, 2, 4, 4, 6, 6]
    assert threading.get_ident() not in threads


async def test_without_frequencies_there_is_still_a_sample(lab: Lab) -> None:
    """Older kernels report a PHC's frequency only to a writer; a filter may forbid adjtimex."""
    found = await sample(lab.driver(machine=lab.machine(phc_timex=denied, system_timex=denied)))

    assert (found.frequency_ppb, found.system_frequency_ppb) == (None, None)


@pytest.mark.parametrize("limit_ppb", [0, 32_767_999, 10**9, None])
async def test_the_limit_of_the_clock_is_its_own(lab: Lab, limit_ppb: int | None) -> None:
    """max_adj of PTP_CLOCK_GETCAPS; None where the clock's driver does not report it."""
    lab.phc.max_adj_ppb = limit_ppb

    assert (await sample(lab.driver())).max_frequency_ppb == limit_ppb


@pytest.mark.parametrize(("octets", "why"), [(bytes(79), "79 octets"), (b"\xff" * 80, "max_adj is -1 ppb")])
def test_capabilities_that_cannot_be(octets: bytes, why: str) -> None:
    """A short answer, and a negative limit."""
    with pytest.raises(Malformed, match=why):
        max_frequency_ppb(octets)


def test_a_reader_compares_for_its_source(lab: Lab) -> None:
    """The sample has the source's name and the frequency, positive = it is made to run faster than its oscillator."""
    before = len(os.listdir("/proc/self/fd"))
    reader = PhcReader("ptp4l", 3, lab.machine(phc_timex=lambda fd: timex(freq=-3 * 65536)))
    found = reader.compare(lab.phc.clocks)
    reader.close()

    assert isinstance(found, PhcSample)
    assert (found.source, found.clock, found.frequency_ppb, found.max_frequency_ppb) == (
        "ptp4l",
        "phc:3",
        -3_000,
        62_499_999,
    )
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_reader_of_no_clock_says_which(lab: Lab) -> None:
    """The device's path is in the error."""
    with pytest.raises(Unreachable, match="ptp8: no such device"):
        PhcReader("ptp4l", 8, lab.machine()).compare(lab.phc.clocks)


def test_a_phc_stays_open_between_two_readings(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened once, even if the kernel does not report the frequency; opened again after it disappeared, since another may have replaced it."""
    opened: list[Path] = []
    errors, real_open = [0, errno.EACCES, 0, errno.ENODEV, 0], os.open

    def counting_open(path: Path, how: int) -> int:
        opened.append(path)
        return real_open(path, how)

    def ask(fd: int) -> Timex:
        if error := errors.pop(0):
            raise OSError(error, "due")
        return timex(freq=65536)

    monkeypatch.setattr(os, "open", counting_open)
    reader = PhcReader("ptp4l", 3, lab.machine(phc_timex=ask))
    found = []
    for _ in range(5):
        compared = reader.compare(lab.phc.clocks)
        assert isinstance(compared, PhcSample)
        found.append((compared.frequency_ppb, len(opened)))
    reader.close()

    assert found == [(1_000, 1), (None, 1), (1_000, 1), (None, 1), (1_000, 2)]


def ioc(direction: int, number: int, size: int) -> int:
    return direction << 30 | size << 16 | ord("=") << 8 | number


def test_nothing_can_be_set() -> None:
    """The requests are the four that read, by number; there is no other."""
    write, read, both = 1, 2, 3

    assert [int(request) for request in PhcIoctl] == [
        ioc(read, 1, 80),
        ioc(both, 8, 64),
        ioc(both, 9, 1216),
        ioc(write, 5, 832),
    ]
    assert [ioctl_buffer(request, 1)[4:].strip(b"\0") for request in PhcIoctl] == [b""] * 4


@dataclass
class RecordingLibc:
    """Replaces the C library: every `modes` that comes."""

    modes: list[int] = field(default_factory=list)

    def adjtimex(self, timex: Any) -> int:
        self.modes.append(struct.unpack_from("<I", timex.raw)[0])
        return 0

    def clock_adjtime(self, clock: int, timex: Any) -> int:
        return self.adjtimex(timex)


async def test_nothing_is_set(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device, and each file of a process, is opened for reading; every adjtimex and clock_adjtime comes with modes 0, or reads what is left of adjtime(3)."""
    flags: list[int] = []
    libc, real_open = RecordingLibc(), os.open

    def recording_open(path: Path, how: int) -> int:
        flags.append(how)
        return real_open(path, how)

    monkeypatch.setattr(os, "open", recording_open)
    monkeypatch.setattr(_machine, "_libc", libc)
    machine = lab.machine(phc_timex=_machine.phc_timex, system_timex=_machine.system_timex)
    await sample(lab.driver(machine=machine))
    await sample(lab.driver(Phc2sys, machine=machine))

    assert len(flags) >= 2 and {how & os.O_ACCMODE for how in flags} == {os.O_RDONLY}
    assert libc.modes == [0, 0, ADJ_OFFSET_SS_READ] * 2


def test_the_clock_behind_a_file() -> None:
    """FD_TO_CLOCKID, by hand: fd 3 is clock -29."""
    assert clock_id(3) == -29


@pytest.mark.parametrize(
    ("request_", "answer", "why"),
    [
        (PRECISE, bytes(63), "63 octets instead of 64"),
        (EXTENDED, struct.pack("<I1212x", 0), "0 readings"),
        (EXTENDED, struct.pack("<I1212x", 26), "26 readings"),
        (BASIC, struct.pack("<I828x", 26), "26 readings"),
        (PRECISE, struct.pack("<qI52x", 1, NS_PER_S), r"10\^9 nanoseconds"),
        (PRECISE, struct.pack("<qI52x", 2**62, 0), "a time is before 1952 or after 2242"),
        (PRECISE, struct.pack("<qI52x", 2**33 + 1, 0), "a time is before 1952 or after 2242"),
        (PRECISE, struct.pack("<16xqI36x", -(2**29) - 1, 0), "a time is before 1952 or after 2242"),
    ],
)
def test_an_answer_that_cannot_be(request_: PhcIoctl, answer: bytes, why: str) -> None:
    """Malformed, never a guess."""
    with pytest.raises(Malformed, match=why):
        windows(request_, answer)


def test_the_farthest_times_differ_by_64_bits() -> None:
    """The earliest and the latest time that are taken have an offset that a signed word holds."""
    (window,) = windows(PRECISE, struct.pack("<qI4xqI36x", -(2**29), 0, 2**33, 999_999_999))

    assert -(2**63) <= window.offset_ns < 2**63


@pytest.mark.parametrize(
    ("command", "steered"),
    [
        ((), False),
        (("phc2sys", "-a", "-r"), True),
        (("phc2sys", "-s", "eth0", "-w"), True),
        (("phc2sys", "-s", "eth9", "-w"), False),
        (("ptp4l", "-i", "eth0", "-s"), False),
    ],
    ids=["none", "automatic", "this clock", "another clock", "ptp4l"],
)
async def test_phc2sys_is_looked_for(lab: Lab, command: tuple[str, ...], steered: bool) -> None:
    """A phc2sys that may steer these two clocks is reported; one of another PHC is not."""
    if command:
        lab.process(300, *command)
    behind = {"eth0": 3, "eth9": 9}
    machine = lab.machine(ethtool_ts_info=lambda interface: ts_info(behind[interface]))
    found = await sample(lab.driver(Phc2sys, machine=machine))

    assert found.steered is steered


async def test_where_processes_are_hidden_phc2sys_is_not_denied(lab: Lab) -> None:
    """None, since no process could have been seen."""
    found = await sample(lab.driver(Phc2sys, machine=lab.machine(proc=lab.root / "hidden")))

    assert found.steered is None


async def test_a_device_that_cannot_be_opened_is_unreachable(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file and the system's reason are in the error."""

    def busy(*_: object) -> int:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(os, "open", busy)

    assert await failure(lab.driver()) == (Unreachable, f"{lab.root}/dev/ptp3: Device or resource busy")


async def test_a_phc2sys_of_an_interface_that_is_gone_may_steer(lab: Lab) -> None:
    """Which clock the interface has is unknown, so steering is not denied."""
    lab.process(300, "phc2sys", "-s", "gone0", "-w")

    def absent(interface: str) -> bytes:
        raise OSError(errno.ENODEV, "No such device")

    found = await sample(lab.driver(Phc2sys, machine=lab.machine(ethtool_ts_info=absent)))

    assert found.steered is True
