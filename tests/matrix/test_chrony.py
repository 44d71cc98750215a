"""What the chrony driver finds in the row's version of chrony; each test states its fact."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from matrix_pair import answer_of_nobody, until

from timesyncd.drivers.chrony._protocol import Command, SourceCount, SourceData, SourceStats, Tracking
from timesyncd.drivers.chrony.chrony import UDP_ADDRESS, UNIX_ADDRESS, Address, Chrony, ChronyClient, ChronyOptions
from timesyncd.errors import Refused
from timesyncd.sample import UtcSample
from timesyncd.simulation.bed import host

pytest_plugins = ["matrix_fixtures"]

Fact = Callable[[str, object], None]


@dataclass
class Installed:
    """A chronyd with its default user and command addresses, which follows a server; neither touches the clock."""

    client: subprocess.Popen[bytes]
    log: Path

    def ask(self, address: str, question: str) -> subprocess.CompletedProcess[str]:
        command = [host.find("chronyc"), "-n", "-h", address, *question.split()]
        return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def chronyd(tmp_path: Path) -> Iterator[Installed]:
    """As Debian's package starts it, but for `-x`, and a server in the same network namespace."""
    serves = (
        f"port 11123\nlocal stratum 8\nallow 127.0.0.1\ncmdport 0\nbindcmdaddress /\npidfile {tmp_path}/server.pid\n"
    )
    (tmp_path / "server.conf").write_text(serves)
    (tmp_path / "client.conf").write_text("port 0\nserver 127.0.0.1 port 11123 iburst minpoll -2 maxpoll -2\n")
    log = tmp_path / "log"
    processes = []
    try:
        for name in ("server", "client"):
            command = [host.find("chronyd"), "-x", "-d", "-f", str(tmp_path / f"{name}.conf")]
            with log.open("ab") as output:
                processes.append(subprocess.Popen(host.dying_with_parent(command), stdout=output, stderr=output))
        deadline = time.monotonic() + 60
        while not UNIX_ADDRESS.exists():
            assert time.monotonic() < deadline and processes[1].poll() is None, log.read_text()
            time.sleep(0.05)
        yield Installed(processes[1], log)
    finally:
        for process in processes:
            process.terminate()
            process.wait(60)


async def test_the_unix_socket(chronyd: Installed, tmp_path: Path, record_property: Fact) -> None:
    """Root finds chronyd's socket at its default place."""
    driver = Chrony("utc", ChronyOptions(), tmp_path)
    await driver.open()
    found = await until(driver, lambda reading: isinstance(reading, UtcSample))
    address = driver._address
    await driver.close()

    assert isinstance(found, UtcSample)
    assert address == UNIX_ADDRESS
    assert (found.reference, found.stratum, found.ntp_sources[0].state) == ("127.0.0.1", 9, "selected")
    assert abs(found.offset_ns) < found.error_ns
    record_property("root", f"samples by {UNIX_ADDRESS}")


async def test_udp(chronyd: Installed, open_path: Path, record_property: Fact) -> None:
    """A user without rights finds the UDP port, without any configuration."""
    assert answer_of_nobody(Chrony, {}, open_path) == f"UtcSample {UDP_ADDRESS}"
    record_property("unprivileged user", "samples by UDP port 323")


REPLIES = {
    "tracking": (Tracking, Command.TRACKING, None),
    "sources": (SourceCount, Command.N_SOURCES, None),
    "sources: data": (SourceData, Command.SOURCE_DATA, 0),
    "sourcestats": (SourceStats, Command.SOURCE_STATS, 0),
}


@pytest.mark.parametrize("report", REPLIES)
async def test_each_report(chronyd: Installed, report: str, record_property: Fact) -> None:
    """The driver's four questions have a decoded answer by both ways."""
    kind, command, index = REPLIES[report]
    answered = [await answer(address, kind, command, index) for address in (UNIX_ADDRESS, UDP_ADDRESS)]

    assert answered == ["yes", "yes"]
    record_property(report, "both ways")


async def answer(address: Address, kind: type, command: Command, index: int | None) -> str:
    client = ChronyClient()
    await client.open(address, "matrix")
    try:
        await client.request(kind, command, index)
    except Refused as error:
        return str(error)
    finally:
        client.close()
    return "yes"


@pytest.mark.parametrize("report", ["activity", "ntpdata"])
def test_reports_that_the_driver_does_not_ask_for(chronyd: Installed, report: str, record_property: Fact) -> None:
    """What chronyd's own client gets of them: over UDP not every one is answered."""
    by = {"socket": str(UNIX_ADDRESS), "UDP": UDP_ADDRESS[0]}
    answered = [
        way for way, address in by.items() if re.search(r"200 OK|Remote address", chronyd.ask(address, report).stdout)
    ]

    assert "socket" in answered
    record_property(f"`chronyc {report}`", " and ".join(answered))
