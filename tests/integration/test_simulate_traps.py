"""What a simulated grandmaster reports by itself, received by net-snmp's snmptrapd and by a plain socket."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from timesyncd.simulation.bed.broker import free_port
from timesyncd.simulation.grandmaster import traps
from timesyncd.simulation.grandmaster.actions import SCENARIOS
from timesyncd.simulation.grandmaster.agent import SnmpAgent
from timesyncd.simulation.grandmaster.alarms import DeviceEvent, alarm
from timesyncd.simulation.grandmaster.device import Device
from timesyncd.simulation.grandmaster.traps import SyslogSender, TrapSender
from timesyncd.simulation.grandmaster.wire import UsmUser

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("nothing_left")]

COMMUNITY = "third-floor"
USER = UsmUser("watcher", "sha256", "green-window", "aes256", "yellow-door")
AT_S = 1_772_600_767.0
HOLDOVER = alarm("holdover", 0, AT_S)
VENDOR = ".1.3.6.1.4.1.9070.1.2.5.7"


class Trapd:
    """net-snmp's trap receiver: what it logs, one notification a line."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port = port
        self._log = folder / "trapd.log"

    def notifications(self) -> list[str]:
        """Every one that came so far, as "OID = TYPE: value" joined by tabs."""
        return [line for line in self._log.read_text().splitlines() if line.startswith(".1.3.6")]

    async def until(self, count: int) -> list[str]:
        async with asyncio.timeout(60):
            while len(self.notifications()) < count:
                await asyncio.sleep(0.05)
        return self.notifications()

    async def ready(self) -> None:
        async with asyncio.timeout(60):
            while not (self._log.exists() and "NET-SNMP version" in self._log.read_text()):
                await asyncio.sleep(0.05)


@asynccontextmanager
async def trapd_at(folder: Path, port: int, users: str) -> AsyncIterator[Trapd]:
    program = shutil.which("snmptrapd", path="/usr/sbin:/usr/bin")
    assert program is not None, "snmptrapd is missing: apt-get install snmptrapd"
    (folder / "trapd.conf").write_text(f"authCommunity log {COMMUNITY}\n{users}\nauthUser log {USER.name}\n")
    process = await asyncio.create_subprocess_exec(
        program, "-f", "-n", "-m", "", "-C", "-c", str(folder / "trapd.conf"), "-Lf", str(folder / "trapd.log"), "-On",
        "-F", "%v\n", f"udp:127.0.0.1:{port}", env={"SNMP_PERSISTENT_DIR": str(folder), "HOME": str(folder)},
    )  # fmt: skip
    trapd = Trapd(folder, port)
    try:
        await trapd.ready()
        yield trapd
    finally:
        process.terminate()
        await process.wait()


def user_line(engine_id: str = "") -> str:
    """`engine_id`: of the sender of traps; an inform is for the receiver's own engine."""
    at = f"-e 0x{engine_id} " if engine_id else ""
    return f"createUser {at}{USER.name} SHA-256 {USER.auth_pass} AES-256 {USER.priv_pass}"


def values(notification: str) -> dict[str, str]:
    return dict(bind.split(" = ", 1) for bind in notification.split("\t"))


async def test_a_tp5000e_sends_its_alarms_as_v2c_traps(tmp_path: Path) -> None:
    """A raised and a cleared alarm are one notification each, numbered, with module, id, index, severity, date and text."""
    agent = SnmpAgent(Device(kind="tp5000e"), community=COMMUNITY)
    async with trapd_at(tmp_path, free_port(), "") as trapd, TrapSender(agent, "127.0.0.1", trapd.port) as sender:
        sender.report(DeviceEvent("raise", AT_S, HOLDOVER))
        sender.report(DeviceEvent("clear", AT_S + 60, HOLDOVER))
        raised, cleared = map(values, await trapd.until(2))

    prefix = f"{VENDOR}.1.11.1"
    assert {name: value for name, value in raised.items() if name != ".1.3.6.1.2.1.1.3.0"} == {
        ".1.3.6.1.6.3.1.1.4.1.0": f"OID: {VENDOR}.1.11.2",
        f"{prefix}.1.0": "INTEGER: 1",
        f"{prefix}.2.0": "INTEGER: 29",
        f"{prefix}.3.0": "INTEGER: 0",
        f"{prefix}.4.0": "INTEGER: 4",
        f"{prefix}.5.0": "INTEGER: 0",
        f"{prefix}.6.0": 'STRING: "2026-03-04,05:06:07"',
        f"{prefix}.7.0": f'STRING: "{HOLDOVER.text}"',
        f"{prefix}.9.0": "INTEGER: 1",
    }
    assert (cleared[f"{prefix}.4.0"], cleared[f"{prefix}.9.0"]) == ("INTEGER: 0", "INTEGER: 2")


async def test_a_tp4100_sends_one_notification_an_alarm_number_as_v3_traps(tmp_path: Path) -> None:
    """In the S650's style the alarm's number ends the notification's OID, each counts by itself, and action 0 clears."""
    agent = SnmpAgent(Device(), community=COMMUNITY)
    antenna = alarm("antenna-open", 0, AT_S)
    async with (
        trapd_at(tmp_path, free_port(), user_line(agent.engine.engine_id.hex())) as trapd,
        TrapSender(agent, "127.0.0.1", trapd.port, user=USER) as sender,
    ):
        for event in (
            DeviceEvent("raise", AT_S, antenna),
            DeviceEvent("raise", AT_S, HOLDOVER),
            DeviceEvent("clear", AT_S, antenna),
        ):
            sender.report(event)
        got = [values(line) for line in await trapd.until(3)]

    prefix = f"{VENDOR}.4.1.1"
    assert [
        (each[".1.3.6.1.6.3.1.1.4.1.0"], each[f"{prefix}.1.0"], each[f"{prefix}.10.0"], each[f"{prefix}.8.0"])
        for each in got
    ] == [
        (f"OID: {VENDOR}.4.1.2.97", "INTEGER: 97", "INTEGER: 1", "INTEGER: 1"),
        (f"OID: {VENDOR}.4.1.2.6", "INTEGER: 6", "INTEGER: 1", "INTEGER: 1"),
        (f"OID: {VENDOR}.4.1.2.97", "INTEGER: 97", "INTEGER: 0", "INTEGER: 2"),
    ]
    assert got[0][f"{prefix}.5.0"] == 'STRING: "2026-03-04 05:06:07"'


@pytest.mark.parametrize("user", [None, USER])
async def test_informs_are_acknowledged_and_come_once(
    tmp_path: Path, user: UsmUser | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """snmptrapd takes informs of both versions; each is acknowledged, so none is repeated, and their order holds."""
    monkeypatch.setattr(traps, "RETRY_S", 4.0)
    agent = SnmpAgent(Device(kind="tp5000e"), community=COMMUNITY)
    async with (
        trapd_at(tmp_path, free_port(), user_line()) as trapd,
        TrapSender(agent, "127.0.0.1", trapd.port, user=user, inform=True) as sender,
    ):
        for action in ("raise", "clear", "raise"):
            sender.report(DeviceEvent(action, AT_S, HOLDOVER))
        await trapd.until(3)
        await asyncio.sleep(1.5 * traps.RETRY_S)
        got = [values(line)[f"{VENDOR}.1.11.1.9.0"] for line in trapd.notifications()]

    assert got == ["INTEGER: 1", "INTEGER: 2", "INTEGER: 3"]


@pytest.mark.parametrize("user", [None, USER])
async def test_an_inform_waits_for_its_receiver(
    tmp_path: Path, user: UsmUser | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An inform to a receiver that is away is repeated, and arrives when it comes."""
    monkeypatch.setattr(traps, "TRIES", 60)
    agent, port = SnmpAgent(Device(kind="tp5000e"), community=COMMUNITY), free_port()
    async with TrapSender(agent, "127.0.0.1", port, user=user, inform=True) as sender:
        sender.report(DeviceEvent("raise", AT_S, HOLDOVER))
        await asyncio.sleep(0.2)
        async with trapd_at(tmp_path, port, user_line()) as trapd:
            got = await trapd.until(1)

    assert values(got[0])[f"{VENDOR}.1.11.1.2.0"] == "INTEGER: 29"


async def test_a_restart_is_a_cold_start_and_restarts_its_count(tmp_path: Path) -> None:
    """coldStart follows a reboot, and the sequence numbers of alarms begin at 1 again."""
    agent = SnmpAgent(Device(kind="tp5000e"), community=COMMUNITY)
    async with trapd_at(tmp_path, free_port(), "") as trapd, TrapSender(agent, "127.0.0.1", trapd.port) as sender:
        for event in (
            DeviceEvent("raise", AT_S, HOLDOVER), DeviceEvent("restart", AT_S), DeviceEvent("raise", AT_S, HOLDOVER)
        ):  # fmt: skip
            sender.report(event)
        first, restart, second = map(values, await trapd.until(3))

    assert restart[".1.3.6.1.6.3.1.1.4.1.0"] == "OID: .1.3.6.1.6.3.1.1.5.1"
    assert first[f"{VENDOR}.1.11.1.9.0"] == second[f"{VENDOR}.1.11.1.9.0"] == "INTEGER: 1"


async def test_a_port_that_goes_down_is_a_link_down_too(tmp_path: Path) -> None:
    """The standard's linkDown names the interface; the vendor's own alarm follows."""
    agent = SnmpAgent(Device(kind="tp5000e"), community=COMMUNITY)
    async with trapd_at(tmp_path, free_port(), "") as trapd, TrapSender(agent, "127.0.0.1", trapd.port) as sender:
        sender.report(DeviceEvent("raise", AT_S, alarm("port-down", 3, AT_S)))
        link, own = map(values, await trapd.until(2))

    assert link[".1.3.6.1.6.3.1.1.4.1.0"] == "OID: .1.3.6.1.6.3.1.1.5.3"
    assert (link[".1.3.6.1.2.1.2.2.1.1.3"], link[".1.3.6.1.2.1.2.2.1.8.3"]) == ("INTEGER: 3", "INTEGER: 2")
    assert own[f"{VENDOR}.1.11.1.2.0"] == "INTEGER: 7"


class Lines(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.lines.append(data.decode())


@asynccontextmanager
async def syslog_receiver() -> AsyncIterator[tuple[list[str], int]]:
    transport, protocol = await asyncio.get_running_loop().create_datagram_endpoint(Lines, local_addr=("127.0.0.1", 0))
    try:
        yield protocol.lines, transport.get_extra_info("sockname")[1]
    finally:
        transport.close()
        await asyncio.sleep(0)


async def until(ready: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not ready():
            await asyncio.sleep(0.01)


async def test_syslog_lines_are_those_of_the_alarm_daemon() -> None:
    """Facility 20; number and index with three digits; the severity as a word; the grandmaster's own text."""
    device = Device(name="gm-b")
    async with syslog_receiver() as (lines, port), SyslogSender(device, "127.0.0.1", port) as sender:
        sender.report(DeviceEvent("raise", AT_S, HOLDOVER))
        sender.report(DeviceEvent("clear", AT_S, HOLDOVER))
        await until(lambda: len(lines) == 2)

    assert lines == [
        "<164>Mar 04 05:06:07 gm-b alarmd: 006,000,Minor, Clock in holdover",
        "<165>Mar 04 05:06:07 gm-b alarmd: 006,000,Clear, Clock in holdover",
    ]


async def test_a_device_reports_by_itself() -> None:
    """A cut antenna is reported to every subscriber, without a request."""
    device = Device()
    async with syslog_receiver() as (lines, port), SyslogSender(device, "127.0.0.1", port) as sender:
        device.subscribe(sender.report)
        SCENARIOS["antenna-cut"](device)
        await until(lambda: any(re.search(r": 097,000,Major", line) for line in lines))

    assert any(": 092,000,Minor" in line for line in lines)
