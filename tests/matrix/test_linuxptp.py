"""What the ptp4l driver finds in the row's version of linuxptp, and what it makes of it; each test states its fact."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import pytest
from matrix_pair import NOBODY, WITHIN_S, answer_of_nobody, first_sample, pair, raw_pushes, until

from timesyncd.__main__ import main
from timesyncd.drivers.ptp4l._management import ALL_PORTS, ManagementId
from timesyncd.drivers.ptp4l._socket import ManagementClient, new_requester
from timesyncd.drivers.ptp4l.ptp4l import Ptp4l, Ptp4lOptions
from timesyncd.errors import Refused
from timesyncd.sample import ClockSample, NoSample, PortState, Reading
from timesyncd.simulation.bed.host import find
from timesyncd.simulation.bed.ptp4l import DOMAIN

pytest_plugins = ["matrix_fixtures"]

Fact = Callable[[str, object], None]

LONGEST_QUEUE = Path("/proc/sys/net/unix/max_dgram_qlen")
EVENT_OF_IDS = {0xC000: "TIME_SYNC", 0x2002: "PARENT_DATA_SET", 0x2004: "PORT_STATE"}


async def opened(folder: Path, **options: object) -> Ptp4l:
    """The driver as configured without an address, as soon as ptp4l answers."""
    driver = Ptp4l("a", Ptp4lOptions.model_validate({"domain": DOMAIN} | options), folder)
    await come_true(is_served, "ptp4l made no socket")
    await driver.open()
    return driver


def is_served() -> bool:
    return any(is_open(path) for path in SOCKETS)


async def come_true(holds: Callable[[], bool], why: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, why
        await asyncio.sleep(0.05)


def is_open(server: Path) -> bool:
    """Whether ptp4l has made this socket and then set its mode, which is 0660: before, the umask gives others a right to read."""
    return server.exists() and not server.stat().st_mode & 0o007


SOCKETS = [Path(f"/run/{name}") for name in ("ptp/ptp4l", "ptp4l")]
READ_ONLY_SOCKETS = [Path(f"/run/{name}") for name in ("ptp/ptp4lro", "ptp4lro")]


async def test_the_driver_finds_the_socket(tmp_path: Path, record_property: Fact) -> None:
    """At this version's default place; through it come samples with the grandmaster's values, and its states as pmc prints them."""
    with pair(tmp_path) as node:
        driver = await opened(tmp_path)
        taken = await first_sample(driver)
        printed = node.pmc(driver._server, "GET PORT_DATA_SET")
        await driver.close()
    state = re.search(r"portState\s+(\w+)", printed)

    assert (taken.clock, taken.clock_class, taken.clock_accuracy, taken.steps_removed) == ("realtime", 6, 0x21, 1)
    assert abs(taken.offset_ns) < 1_000_000
    assert state is not None and taken.port_state is PortState[state[1]]
    record_property("socket", driver._server)
    record_property("state, `free_running`", state[1])


async def test_an_unprivileged_user(open_path: Path, record_property: Fact) -> None:
    """Through the read-only socket where this version has one, once `time_stamping` is stated; else the error names the permission."""
    with pair(open_path):
        await (await opened(open_path)).close()
        asked = answer_of_nobody(Ptp4l, {"domain": DOMAIN}, open_path)
        stated = answer_of_nobody(Ptp4l, {"domain": DOMAIN, "time_stamping": "software"}, open_path)
        read_only = next((path for path in READ_ONLY_SOCKETS if path.exists()), None)

    if read_only is None:
        assert "permission denied; docs/ptp4l.md says how" in stated
        record_property("unprivileged user", "permission denied")
    else:
        assert "PORT_PROPERTIES_NP: ptp4l reports NOT_SUPPORTED; set time_stamping" in asked
        kind, _, address = stated.partition(" ")
        assert (kind, Path(address).resolve()) == ("ClockSample", read_only.resolve())
        record_property("unprivileged user", f"samples by {read_only}")


#: The bounding set of ptp4l@.service since Debian's linuxptp 4.4-1: root then reaches no other user's closed folders. And what row.sh needs.
HARDENED = "-all,+net_admin,+net_bind_service,+net_raw,+sys_admin,+sys_time,+sys_chroot"


async def test_the_service_s_way(open_path: Path, record_property: Fact) -> None:
    """As systemd/ sets it up: ptp4l's socket in a folder of the group, ptp4l with few capabilities, the reader in the group alone."""
    group_s = open_path / "ptp"
    group_s.mkdir()
    os.chown(group_s, 0, NOBODY)
    group_s.chmod(0o2750)
    server = group_s / "ptp4l"
    with pair(open_path, {"uds_address": server}, before=[find("setpriv"), f"--bounding-set={HARDENED}"]):
        await come_true(lambda: is_open(server), "ptp4l made no socket")
        read = answer_of_nobody(Ptp4l, {"domain": DOMAIN, "uds_address": str(server)}, open_path)

    assert read == f"ClockSample {server}"
    record_property("as `systemd/` sets it up", "samples")


async def test_the_data_sets(tmp_path: Path, record_property: Fact) -> None:
    """Each decodes, or is refused; the PHC's number is in one that older versions do not have."""
    with pair(tmp_path):
        driver = await opened(tmp_path)
        await first_sample(driver)
        client = ManagementClient(tmp_path / "own", driver._server, new_requester(DOMAIN, 0))
        per_port = [each for each in ManagementId if each.name.startswith("PORT_")]
        questions = [(each, 1 if each in per_port else ALL_PORTS) for each in ManagementId]
        answers = dict(
            zip(ManagementId, [*await client.query(questions[:5]), *await client.query(questions[5:])], strict=True)
        )
        client.close()
        await driver.close()
    refused = [each.name for each, answer in answers.items() if isinstance(answer, Refused)]

    assert set(refused) <= {"PORT_HWCLOCK_NP"}
    record_property("PORT_HWCLOCK_NP", "no" if refused else "yes")


@contextmanager
def long_queues() -> Iterator[None]:
    """As systemd/timesyncd.sysctl sets them, in this row's network namespace alone: with fewer the driver subscribes to no fast ptp4l."""
    before = LONGEST_QUEUE.read_text()
    LONGEST_QUEUE.write_text("512")
    yield
    LONGEST_QUEUE.write_text(before)


async def test_what_is_pushed(tmp_path: Path, record_property: Fact) -> None:
    """The driver reads at pushes where, and only where, this version pushes TIME_STATUS_NP at each Sync."""
    with long_queues(), pair(tmp_path) as node:
        driver = await opened(tmp_path)
        await first_sample(driver)
        polled = [driver.poll_interval_s]
        for _ in range(30):
            await driver.poll()
            polled.append(driver.poll_interval_s)
            await asyncio.sleep(driver.poll_interval_s)
        await driver.close()

        def provoke() -> None:
            node.pmc(node.grandmaster.uds_address, "SET PRIORITY2 99")
            time.sleep(2)
            os.kill(node.grandmaster.pid, signal.SIGSTOP)

        pushed = raw_pushes(driver._server, tmp_path / "raw", provoke, 6)
        os.kill(node.grandmaster.pid, signal.SIGCONT)
    named = [name for number, name in EVENT_OF_IDS.items() if pushed[number]]

    assert (polled[-1] == 0) is ("TIME_SYNC" in named)
    record_property("pushes", ", ".join(named) or "none")
    record_property("driver reads", "at each push" if polled[-1] == 0 else "by polling")


@pytest.mark.parametrize("transport", ["UDPv4", "UDPv6", "L2"])
async def test_every_transport_brings_raw_time_stamps(tmp_path: Path, transport: str, record_property: Fact) -> None:
    """Samples with the exchanges that the slave event monitor reports, over each transport."""
    events = tmp_path / "events"
    with pair(tmp_path, {"slave_event_monitor": events}, transport):
        driver = await opened(tmp_path, slave_event_monitor=events)
        found = await until(driver, lambda reading: isinstance(reading, ClockSample) and reading.exchanges != ())
        await driver.close()

    assert isinstance(found, ClockSample)
    assert abs(found.offset_ns + found.path_delay_ns + found.exchanges[0].reverse_ns) < 1_000_000
    record_property(transport, "samples, raw stamps")


async def test_a_lost_grandmaster_and_a_restart(tmp_path: Path, record_property: Fact) -> None:
    """States and restart come as the driver's readings, and samples again."""
    with pair(tmp_path) as node:
        driver = await opened(tmp_path)
        await first_sample(driver)
        os.kill(node.grandmaster.pid, signal.SIGSTOP)
        await until(driver, lambda reading: isinstance(reading, NoSample) and reading.port_state is PortState.LISTENING)
        os.kill(node.grandmaster.pid, signal.SIGCONT)
        await first_sample(driver)
        node.end()
        assert not is_served()
        node.start()
        await come_true(is_served, "ptp4l made no socket")
        restarted = await until(driver, is_restart)
        await first_sample(driver)
        await driver.close()

    assert isinstance(restarted, NoSample)
    record_property("restart", "found")


def is_restart(reading: Reading) -> bool:
    return isinstance(reading, NoSample) and reading.restarted


async def test_the_user_option(open_path: Path, record_property: Fact) -> None:
    """Where ptp4l can drop root, the driver reads it as before, and believes no other user than that one and root."""
    sockets = open_path / "sockets"
    sockets.mkdir()
    sockets.chmod(0o777)
    options = {"user": "nobody", "uds_address": sockets / "rw"}
    with pair(open_path, options) as node:
        await come_true(lambda: node.process.poll() is not None or is_open(sockets / "rw"), "no socket, and no end")
        if node.process.poll() is not None:
            assert "user" in node.log
            record_property("`user`", "no such option")
            return
        driver = Ptp4l("a", Ptp4lOptions(domain=DOMAIN, uds_address=sockets / "rw"), open_path)
        await driver.open()
        await first_sample(driver)
        await driver.close()
        uid = os.stat(f"/proc/{node.process.pid}").st_uid

    assert uid == NOBODY
    record_property("`user`", "samples")


def test_the_log_is_replayed(tmp_path: Path, record_property: Fact) -> None:
    """`timesyncd replay` has a row for each Sync that ptp4l's log of this version names."""
    with pair(tmp_path, {"summary_interval": -4, "freq_est_interval": 0}) as node:
        deadline = time.monotonic() + 60
        while node.log.count("master offset") < 5:
            assert time.monotonic() < deadline, node.log[-500:]
            time.sleep(0.5)
        log = tmp_path / "m.log"
        log.write_text(node.log)
    rows = io.StringIO()
    with redirect_stdout(rows):
        status = main(["replay", str(log)])
    named = set(re.findall(r"ptp4l\[(\d+\.\d{3})\]:.* master offset", log.read_text()))

    assert status == 0
    assert named <= {row.split(",")[0] for row in rows.getvalue().splitlines()}
    record_property("`replay`", "every Sync of the log")


def test_auxiliary_clocks(record_property: Fact) -> None:
    """Whether phc2sys of this version knows CLOCK_AUX; such a clock is no source of timesyncd, and no process steers REALTIME by it."""
    program = Path("/mnt/usr/sbin/phc2sys")

    record_property("CLOCK_AUX", "yes" if b"CLOCK_AUX" in program.read_bytes() else "no")
