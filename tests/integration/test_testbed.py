"""The test bed itself: what it makes known, and that it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from aiomqtt import Client, MqttCodeError, MqttError

from timesyncd.errors import TimesyncdError
from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.bed import GRANDMASTER, PtpBed
from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.simulation.bed.host import leftovers, marked_environment, new_marker
from timesyncd.simulation.bed.ptp4l import DOMAIN

pytestmark = pytest.mark.integration


def master_offset_ns(uds_address: str) -> int | None:
    """What linuxptp's own client reads; None while ptp4l knows of no grandmaster."""
    own = f"{uds_address}.pmc"
    words = subprocess.run(
        [host.find("pmc"), "-u", "-b", "0", "-d", str(DOMAIN), "-s", uds_address, "-i", own, "GET TIME_STATUS_NP"],
        check=False,
        capture_output=True,
        text=True,
    ).stdout.split()
    if "gmPresent" not in words or words[words.index("gmPresent") + 1] != "true":
        return None
    return int(words[words.index("master_offset") + 1])


def until(holds: Callable[[], bool], within_s: float = 60.0) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.2)
    return holds()


def sees(bed: PtpBed, node: str, expected_ns: int, within_ns: int = 250_000) -> bool:
    """Whether the node's ptp4l comes to report this offset, give or take what the relay's own delays do."""

    def near() -> bool:
        offset_ns = master_offset_ns(bed.nodes[node].uds_address)
        return offset_ns is not None and abs(offset_ns - expected_ns) <= within_ns

    return until(near)


def test_a_direct_node_agrees_with_its_grandmaster(ptp_pair: PtpBed) -> None:
    """Both stamp with one clock, so the true offset is 0 and ptp4l finds it."""
    until(lambda: master_offset_ns(ptp_pair.nodes["a"].uds_address) not in (None, 0))

    assert sees(ptp_pair, "a", 0)
    assert ptp_pair.true_offset_ns("a", time.time_ns()) == 0


def test_a_relayed_node_is_off_by_minus_x(relayed_pair: PtpBed) -> None:
    """A grandmaster that is made to look ahead makes the node look behind, by a number that is known."""
    piece = relayed_pair.set_relay("b", x_ns=3_000_000)

    assert sees(relayed_pair, "b", -3_000_000)
    assert relayed_pair.true_offset_ns("b", piece.start_ns) == -3_000_000
    assert relayed_pair.true_offset_ns("b", piece.start_ns - 1) == 0


def test_an_unequal_delay_moves_what_the_node_sees_and_not_the_truth(relayed_pair: PtpBed) -> None:
    """10 ms more towards the node are, to ptp4l, an offset of half of that."""
    relayed_pair.set_relay("b", x_ns=0, delay_to_node_ns=10_000_000)

    assert sees(relayed_pair, "b", 5_000_000, within_ns=1_500_000)
    assert relayed_pair.true_offset_ns("b", time.time_ns()) == 0


def test_direct_and_relayed_nodes_follow_one_grandmaster() -> None:
    """A restarted ptp4l has another pid and comes back by itself, at the same address."""
    with PtpBed(direct=("a",), relayed=("b",)) as bed:
        bed.set_relay("b", x_ns=3_000_000)
        first = bed.nodes["a"].pid
        bed.restart("a")
        os.kill(bed.grandmaster.pid, signal.SIGKILL)
        bed.restart(GRANDMASTER)
        both = sees(bed, "b", -3_000_000), sees(bed, "a", 0)

        assert both == (True, True)
        assert bed.nodes["a"].pid != first


def test_a_command_can_be_run_beside_a_ptp4l() -> None:
    """Each ptp4l has interfaces of its own, and the two ends of a direct path reach each other."""
    with PtpBed(direct=("a",)) as bed:
        shown = subprocess.check_output([*bed.nodes["a"].enter(), host.find("ip"), "address"], text=True)

        assert "10.199.0.2/24" in shown
        assert os.readlink(f"/proc/{bed.nodes['a'].pid}/ns/net") != os.readlink("/proc/self/ns/net")


def test_nothing_is_left_when_a_bed_is_closed() -> None:
    """No process, no namespace, no file."""
    with PtpBed(direct=("a",), relayed=("b",)) as bed:
        folder = Path(bed.grandmaster.uds_address).parent
        while_it_runs = leftovers(bed.marker)

    assert sum(each.startswith("process") for each in while_it_runs) == 7
    assert sum(each.startswith("namespace") for each in while_it_runs) == 4
    assert leftovers(bed.marker) == []
    assert not folder.exists()


@pytest.mark.parametrize("stopped", [False, True])
def test_nothing_is_left_when_the_maker_is_killed(stopped: bool) -> None:
    """Also when a ptp4l was stopped: SIGKILL of the process that made the bed ends all of it."""
    marker = new_marker()
    code = "import time; from timesyncd.simulation.bed.bed import PtpBed\n"
    code += (
        f"with PtpBed(direct=('a',), marker={marker!r}) as bed: print(bed.nodes['a'].pid, flush=True); time.sleep(60)"
    )
    maker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=marked_environment(marker))
    assert maker.stdout
    pid = int(maker.stdout.readline())
    if stopped:
        os.kill(pid, signal.SIGSTOP)
    before = len(leftovers(marker))
    maker.kill()
    maker.communicate()

    assert before > 0
    assert until(lambda: leftovers(marker) == [], within_s=60)


def test_nothing_is_left_when_the_helper_is_killed() -> None:
    """The kernel ends each ptp4l with its parent, and the bed raises an error afterwards."""
    with PtpBed(direct=("a",), relayed=("b",)) as bed:
        folder = Path(bed.grandmaster.uds_address).parent
        os.kill(helper_of(bed.marker), signal.SIGKILL)

        with pytest.raises(TimesyncdError, match="its helper ended"):
            bed.set_relay("b", x_ns=1)
        assert until(lambda: leftovers(bed.marker) == [], within_s=60)
    assert not folder.exists()


def helper_of(marker: str) -> int:
    return next(int(each.split()[1].rstrip(":")) for each in leftovers(marker) if "timesyncd.simulation.bed" in each)


def test_what_is_not_installed_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing tool is a failure that states what to install, not a skip."""
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)

    with pytest.raises(TimesyncdError, match="unshare is not installed: Debian package util-linux"):
        PtpBed(direct=("a",)).__enter__()
    assert "linuxptp" in host.missing_packages()


async def test_a_broker_keeps_its_port_over_stop_and_start(mosquitto: Mosquitto) -> None:
    """Clients of a broker that crashed find the next one in the same place."""
    async with Client(mosquitto.host, mosquitto.port) as client:
        await client.publish("before", b"1")
    mosquitto.stop()
    with pytest.raises(MqttError):
        async with Client(mosquitto.host, mosquitto.port):
            pass
    mosquitto.start()

    async with Client(mosquitto.host, mosquitto.port) as client:
        await client.publish("after", b"1")


async def test_a_broker_with_users_refuses_unknown_users() -> None:
    """Name and password are checked."""
    with Mosquitto(users={"node": "secret"}) as broker:
        async with Client(broker.host, broker.port, username="node", password="secret") as client:
            await client.publish("topic", b"1")

        with pytest.raises(MqttCodeError):
            async with Client(broker.host, broker.port):
                pass


def test_a_broker_leaves_nothing_behind() -> None:
    """No process and no folder, also when it was paused."""
    marker = new_marker()
    with Mosquitto(marker=marker) as broker:
        running = leftovers(marker)
        broker.pause()

    assert len(running) == 1
    assert leftovers(marker) == []
    assert broker.pid is None
