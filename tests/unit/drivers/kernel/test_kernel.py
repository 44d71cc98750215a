"""The driver kernel: struct timex octet by octet, leap seconds, VMClock."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from fake_clocks import FakeClocks

from timesyncd.drivers.kernel._machine import Machine, Timex, parse
from timesyncd.drivers.kernel.kernel import Kernel, KernelOptions, disruption_marker, leap
from timesyncd.errors import Malformed, Refused, Unreachable
from timesyncd.sample import KernelSample

pytestmark = pytest.mark.disable_socket

INS, DEL, UNSYNC, NANO = 0x10, 0x20, 0x40, 0x2000

#: Where adjtimex(2) has each field on a 64-bit machine, and how wide it is there.
LAYOUT = {
    "modes": (0, "I"), "offset": (8, "q"), "freq": (16, "q"), "maxerror_us": (24, "q"), "esterror_us": (32, "q"),
    "status": (40, "i"), "constant": (48, "q"), "precision_us": (56, "q"), "tolerance": (64, "q"), "time_s": (72, "q"),
    "time_fraction": (80, "q"), "tick_us": (88, "q"), "ppsfreq": (96, "q"), "jitter": (104, "q"), "shift": (112, "i"),
    "stabil": (120, "q"), "jitcnt": (128, "q"), "calcnt": (136, "q"), "errcnt": (144, "q"), "stbcnt": (152, "q"),
    "tai_s": (160, "i"),
}  # fmt: skip


def octets(**fields: int) -> bytes:
    made = bytearray(208)
    for name, value in {"tick_us": 10_000, "tai_s": 37, **fields}.items():
        at, kind = LAYOUT[name]
        struct.pack_into(f"<{kind}", made, at, value)
    return bytes(made)


def timex(state: int = 0, **fields: int) -> Timex:
    return parse(octets(**fields), state)


@pytest.mark.parametrize("name", LAYOUT)
def test_every_field_is_where_the_kernel_puts_it(name: str) -> None:
    """A number in one field's octets is read as that field, and no other one shows it."""
    negative = 5 if name == "modes" else -5
    read = parse(octets(tick_us=0, tai_s=0) if name not in ("tick_us", "tai_s") else bytes(208), 0)
    marked = parse(octets(**{"tick_us": 0, "tai_s": 0, name: negative}), 3)
    others = [field for field in LAYOUT if field != name]

    assert (getattr(marked, name), marked.state) == (negative, 3)
    assert [getattr(marked, field) for field in others] == [getattr(read, field) for field in others]


@pytest.mark.parametrize(
    ("status", "state", "armed"),
    [
        (0, 0, "none"),
        (INS, 1, "insert"),
        (DEL, 2, "delete"),
        (INS | UNSYNC, 5, "insert"),
        (INS, 3, "insert"),
        (INS, 4, "none"),
        (DEL, 4, "none"),
        (NANO | UNSYNC, 5, "none"),
    ],
)
def test_pitfall_21_an_armed_leap_second_is_reported(status: int, state: int, armed: str) -> None:
    """Also where the clock is not synchronized, which hides it from the return value; no longer once it is over."""
    assert leap(timex(state, status=status)) == armed


class Lab:
    """A machine whose adjtimex, processes and devices a test sets."""

    def __init__(self, root: Path) -> None:
        self.clocks = FakeClocks()
        self.timex = timex()
        self.adjtime_us = 0
        self.root = root
        (root / "dev").mkdir()
        self.process(1, "init")
        machine = Machine(
            dev=root / "dev",
            proc=root / "proc",
            sys=root / "sys",
            system_timex=lambda: self.timex,
            adjtime_left_us=lambda: self.adjtime_us,
        )
        self.driver = Kernel("kernel", KernelOptions(), root, self.clocks, machine)

    def process(self, pid: int, *command: str) -> None:
        folder = self.root / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "comm").write_text(f"{command[0]}\n")
        (folder / "cmdline").write_bytes("\0".join((*command, "")).encode())

    async def sample_after(self, seconds: int, **fields: int) -> KernelSample:
        self.clocks.advance(seconds * 10**9)
        self.timex = timex(**fields)
        (reading,) = await self.driver.poll()
        assert isinstance(reading, KernelSample)
        return reading


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


async def test_a_sample_is_the_kernels_word(lab: Lab) -> None:
    """In nanoseconds and parts per billion, with the tick counted as frequency."""
    found = await lab.sample_after(0, freq=-65536 * 3, tick_us=10_001, maxerror_us=1_500, esterror_us=7, status=NANO)

    assert found == KernelSample(
        source="kernel",
        boottime_ns=lab.clocks.boot_ns,
        frequency_ppb=97_000,
        maxerror_ns=1_500_000,
        esterror_ns=7_000,
        synchronized=True,
        leap="none",
        tai_offset_s=37,
    )


async def test_pitfall_21_an_unset_tai_offset_is_reported(lab: Lab) -> None:
    """CLOCK_TAI is then UTC; the sample states 0, and what follows from that is decided elsewhere."""
    assert (await lab.sample_after(0, tai_s=0)).tai_offset_s == 0


async def test_an_unsynchronized_clock_is_reported(lab: Lab) -> None:
    """STA_UNSYNC; chronyd leaves it set for ever without `rtcsync`."""
    assert not (await lab.sample_after(0, status=UNSYNC | NANO)).synchronized


async def test_pitfall_17_two_disciplines_are_in_the_sample(lab: Lab) -> None:
    """Those that steer the clock, and apart from them a ptp4l that may."""
    lab.process(7, "chronyd", "-F", "1")
    lab.process(8, "phc2sys", "-a", "-r")
    lab.process(9, "ptp4l", "-f", "/absent/ptp4l.conf")
    found = await lab.sample_after(0)

    assert (found.disciplines, found.undecided_disciplines) == (("chronyd", "phc2sys"), ("ptp4l",))


@pytest.mark.parametrize(
    ("change", "is_seen"),
    [
        ({}, False),
        ({"freq": 5}, True),
        ({"tick_us": 9_999}, True),
        ({"status": UNSYNC}, True),
        ({"offset": 3}, True),
        ({"maxerror_us": 500, "esterror_us": 3}, False),
    ],
    ids=["none", "frequency moves", "tick", "status", "a slew", "error alone"],
)
async def test_a_new_daemon_is_looked_for_when_the_clock_behaves_differently(
    lab: Lab, change: dict[str, int], is_seen: bool
) -> None:
    """Not only at the next half minute."""
    await lab.sample_after(0)
    await lab.sample_after(3)
    lab.process(7, "chronyd")
    found = await lab.sample_after(3, **change)

    assert (found.disciplines == ("chronyd",)) is is_seen


@pytest.mark.parametrize(
    ("course", "movement"),
    [
        ([{"freq": n} for n in range(60)], "frequency"),
        ([{"tick_us": 10_000 + n % 2} for n in range(60)], "tick"),
        ([{"offset": 500 * n} for n in range(60)], "slew"),
        ([{}] * 60, None),
        ([{"freq": 0}] * 30 + [{"freq": 5}] * 30, None),
        ([{"offset": 500 - n} for n in range(60)], None),
    ],
    ids=["frequency", "tick", "slew", "none", "a single command", "a slew decays by itself"],
)
async def test_a_clock_that_moves_without_a_known_program_is_steered_by_an_unknown_one(
    lab: Lab, course: list[dict[str, int]], movement: str | None
) -> None:
    """By what the kernel shows from poll to poll: a name is not needed, and no name is no proof that nothing steers."""
    for fields in course:
        found = await lab.sample_after(1, **fields)

    assert getattr(found, "unexplained_movement", "not looked for") == movement


async def test_an_adjtime_in_progress_is_movement(lab: Lab) -> None:
    """openntpd and guest tools slew by adjtime(3), which neither frequency nor tick shows."""
    for n in range(60):
        lab.adjtime_us = 30_000 if n % 20 == 0 else lab.adjtime_us - 500
        found = await lab.sample_after(1)

    assert getattr(found, "unexplained_movement", "not looked for") == "slew"


@pytest.mark.parametrize("program", [("chronyd",), ("ptp4l", "-f", "/absent"), ("vmtoolsd",)])
async def test_a_program_that_steers_or_may_explains_the_movement(lab: Lab, program: tuple[str, ...]) -> None:
    """Also one that has just ended, and one that began after the clock moved."""
    for n in range(30):
        await lab.sample_after(1, freq=n)
        if n == 3:
            lab.process(7, *program)
    (lab.root / "proc" / "7" / "comm").unlink()
    for n in range(30, 33):
        found = await lab.sample_after(1, freq=n)
    for _ in range(60):
        later = await lab.sample_after(1, freq=32)

    assert (getattr(found, "unexplained_movement", None), getattr(later, "unexplained_movement", None)) == (None, None)


async def test_an_unexplained_movement_is_over_an_hour_after_the_last_one(lab: Lab) -> None:
    """An NTP daemon may poll twice an hour only."""
    for n in range(60):
        found = await lab.sample_after(1, freq=n)
    within = await lab.sample_after(3_500, freq=59)
    over = await lab.sample_after(120, freq=59)

    assert [getattr(each, "unexplained_movement", None) for each in (found, within, over)] == ["frequency"] * 2 + [None]


@pytest.mark.parametrize(
    ("parameter", "disciplines", "undecided"),
    [("Y", ("hv_utils",), ()), (None, (), ("hv_utils",)), ("N", (), ())],
)
async def test_hyper_v_synchronizes_the_clock_in_the_kernel(
    lab: Lab, parameter: str | None, disciplines: tuple[str, ...], undecided: tuple[str, ...]
) -> None:
    """No process shows it, but the device of the host's time synchronization and the module's parameter do."""
    device = lab.root / "sys/bus/vmbus/devices/2450ee40"
    device.mkdir(parents=True)
    (device / "class_id").write_text("{9527e630-d0ae-497b-adce-e80ab0175caf}\n")
    if parameter is not None:
        parameters = lab.root / "sys/module/hv_utils/parameters"
        parameters.mkdir(parents=True)
        (parameters / "timesync_implicit").write_text(f"{parameter}\n")
    await lab.driver.open()
    found = await lab.sample_after(0)

    assert (found.disciplines, found.undecided_disciplines) == (disciplines, undecided)


async def test_in_a_container_no_program_found_means_nothing(lab: Lab) -> None:
    """Its /proc hides the host's programs: another pid namespace than the machine's first one."""
    namespace = lab.root / "proc/self/ns/pid"
    namespace.parent.mkdir(parents=True)
    namespace.touch()
    found = await lab.sample_after(0)

    assert getattr(found, "programs_visible", True) is False


async def test_a_system_call_filter_is_an_error(lab: Lab) -> None:
    """At open already."""

    def forbidden() -> Timex:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    driver = Kernel("kernel", KernelOptions(), lab.root, lab.clocks, Machine(system_timex=forbidden))
    with pytest.raises(Refused, match="adjtimex: Operation not permitted: permit adjtimex in"):
        await driver.open()


def page(sequence: int = 6, marker: int = 0x1122334455667788, magic: int = 0x4B4C4356) -> bytes:
    """The front of VMClock's page: magic, size, version, counter, time type, sequence, disruption marker, flags."""
    return struct.pack("<IIHBBIQQ", magic, 4096, 1, 1, 0, sequence, marker, 0).ljust(4096, b"\0")


async def test_a_migration_shows_in_the_sample(lab: Lab) -> None:
    """VMClock's marker at each poll; None if the machine has none."""
    without = await lab.sample_after(0)
    (lab.root / "dev" / "vmclock0").write_bytes(page(marker=2**63 + 1))
    before = await lab.sample_after(1)
    (lab.root / "dev" / "vmclock0").write_bytes(page(marker=2**63 + 2))
    after = await lab.sample_after(1)

    assert (without.vm_disruptions, before.vm_disruptions, after.vm_disruptions) == (None, 2**63 + 1, 2**63 + 2)


@pytest.mark.parametrize(
    ("content", "kind", "why"),
    [
        (page(sequence=7), Unreachable, "the hypervisor keeps writing"),
        (page(magic=1), Malformed, "not a VMClock"),
        (page()[:20], Malformed, "20 octets"),
    ],
)
def test_a_page_that_cannot_be_read(tmp_path: Path, content: bytes, kind: type[Exception], why: str) -> None:
    """An odd sequence means that it is being written: tried often, not for ever."""
    path = tmp_path / "vmclock0"
    path.write_bytes(content)
    with pytest.raises(kind, match=why):
        disruption_marker(path)


def test_a_page_that_changes_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The marker is the one of an even sequence that stood still."""
    path = tmp_path / "vmclock0"
    path.write_bytes(page(sequence=6, marker=1))
    real_pread, reads = os.pread, 0

    def pread(fd: int, size: int, at: int) -> bytes:
        nonlocal reads
        reads += 1
        if reads == 2:
            path.write_bytes(page(sequence=8, marker=2))
        return real_pread(fd, size, at)

    monkeypatch.setattr(os, "pread", pread)

    assert (disruption_marker(path), reads) == (2, 4)


def test_an_unreadable_vmclock_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not taken for a machine without one."""

    def denied(*_: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(Unreachable, match="vmclock0: Permission denied; docs/clock-sources.md"):
        disruption_marker(tmp_path / "vmclock0")


def test_a_vmclock_that_fails_while_it_is_read_is_unreachable(tmp_path: Path) -> None:
    """The file is open and cannot be read: the error names it, and the guest is not taken for undisturbed."""
    with pytest.raises(Unreachable, match=f"^{tmp_path}: Is a directory$"):
        disruption_marker(tmp_path)


async def test_a_filter_that_forbids_adjtime_alone_costs_no_sample(lab: Lab) -> None:
    """What is left of an adjtime() is then assumed to be nothing, and the other fields are reported."""

    def denied() -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    machine = Machine(
        dev=lab.root / "dev",
        proc=lab.root / "proc",
        sys=lab.root / "sys",
        system_timex=timex,
        adjtime_left_us=denied,
    )
    lab.driver = Kernel("kernel", KernelOptions(), lab.root, lab.clocks, machine)
    found = await lab.sample_after(0)

    assert found.frequency_ppb == 0
