"""`timesyncd simulate` as a process, read by net-snmp and curl."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from timesyncd.cli import simulate
from timesyncd.drivers.timeprovider.timeprovider import TimeProviderOptions
from timesyncd.simulation.grandmaster import SCENARIOS
from timesyncd.simulation.grandmaster.hardware import MODELS
from timesyncd.simulation.grandmaster.simulated import SimulationPlan, running

pytestmark = pytest.mark.integration

CLOCK_CLASS = "1.3.6.1.2.1.241.1.2.3.1.9.24.1.0"
SYS_NAME, SYS_UPTIME = "1.3.6.1.2.1.1.5.0", "1.3.6.1.2.1.1.3.0"


async def output_of(*command: str) -> tuple[int, str]:
    """Exit status, and stdout with stderr."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


def simulate_command(*options: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "timesyncd", "simulate", *options)


@asynccontextmanager
async def started(*options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The command as a process, which is ended and has then ended with 0."""
    process = await asyncio.create_subprocess_exec(
        *simulate_command(*options), stdout=asyncio.subprocess.PIPE, limit=1 << 20
    )
    try:
        yield process
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.wait(), 60)

        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def simulated(*options: str) -> AsyncIterator[dict[str, Any]]:
    """The content of its one line."""
    async with started("--json", *options) as process:
        assert process.stdout is not None
        yield json.loads(await asyncio.wait_for(process.stdout.readline(), 60))


async def snmpget(gm: dict[str, Any], *oids: str) -> list[str]:
    options = ("-v2c", "-c", gm["community"], "-t", "2", "-Oqvt", gm["snmp"])
    _, output = await output_of("snmpget", *options, *oids)
    return output.split()


async def states(gm: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """The channels as curl gets them over HTTPS, after a log-in."""
    jar, ca = folder / gm["name"], folder / f"{gm['name']}.pem"
    ca.write_text(gm["certificate"])
    always = ("-s", "--cacert", str(ca), "-c", str(jar), "-b", str(jar), "-H", "X-Requested-With: XMLHttpRequest")
    login = ("-d", f"txtuname={gm['username']}", "-d", f"txtpasswd={gm['password']}", "-d", "action=applylogin")
    await output_of("curl", *always, *login, f"https://{gm['https']}/login")
    _, body = await output_of("curl", *always, "-d", "tgrp=-1", f"https://{gm['https']}/channels_thresholdValue")
    found: list[dict[str, Any]] = json.loads(body)
    return found


def free_ports(count: int) -> int:
    """The first of so many ports that are free one after the other, for UDP and TCP."""
    for first in range(20_000, 30_000, count):
        held = [socket.socket(type=kind) for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM) for _ in range(count)]
        try:
            for place, held_socket in enumerate(held):
                held_socket.bind(("127.0.0.1", first + place % count))
            return first
        except OSError:
            continue
        finally:
            for held_socket in held:
                held_socket.close()
    raise AssertionError("no free ports")


async def test_one_grandmaster_is_read_by_all_three_ways(tmp_path: Path) -> None:
    """With the credentials of the line, v2c, v3 and HTTPS read the grandmaster."""
    async with simulated("--seed", "7") as gm:
        v3 = gm["v3"]
        user = ("-u", v3["user"], "-a", "SHA-256", "-A", v3["auth_pass"], "-x", "AES", "-X", v3["priv_pass"])
        over_v2c = await snmpget(gm, SYS_NAME, CLOCK_CLASS)
        _, over_v3 = await output_of("snmpget", "-v3", "-l", "authPriv", *user, "-Oqv", gm["snmp"], CLOCK_CLASS)
        channels = await states(gm, tmp_path)

    assert over_v2c == ['"gm-a"', "6"]
    assert over_v3.strip() == "6"
    assert channels[0]["monitorChannelString"] == "GNSS-1"
    assert (v3["auth"], v3["priv"], gm["model"], gm["seed"]) == ("sha256", "aes128", "tp4100", 7)


async def test_fifty_grandmasters_in_one_process(tmp_path: Path) -> None:
    """Fifty grandmasters answer on consecutive ports, no two with the same identity, community or password."""
    first = free_ports(50)
    ports = ("--snmp-port", str(first), "--https-port", str(first))
    async with simulated("--count", "50", *ports) as line:
        grandmasters = line["grandmasters"]
        answers = await asyncio.gather(*(snmpget(gm, SYS_NAME) for gm in grandmasters))
        channels = await states(grandmasters[49], tmp_path)
    identities = [identity for gm in grandmasters for identity in gm["identities"]]

    assert [gm["snmp"] for gm in grandmasters] == [f"127.0.0.1:{first + place}" for place in range(50)]
    assert [gm["https"] for gm in grandmasters] == [gm["snmp"] for gm in grandmasters]
    assert answers == [[f'"gm-{number}"'] for number in range(1, 51)]
    assert len(channels) == 13
    assert len(identities) == len(set(identities)) == 400
    assert len({gm["community"] for gm in grandmasters}) == len({gm["password"] for gm in grandmasters}) == 50


@pytest.mark.parametrize(("model", "web"), [("tp4500", True), ("tp5000e", False), ("s650", False)])
async def test_other_models(model: str, web: bool) -> None:
    """Each answers SNMP; only the TimeProviders 4100 and 4500 have the web interface."""
    async with simulated("--model", model) as gm:
        answer = await snmpget(gm, SYS_NAME)

    assert answer == ['"gm-a"']
    assert all((name in gm) == web for name in ("https", "username", "password", "fingerprint", "certificate"))


async def test_the_same_seed_gives_the_same_grandmasters() -> None:
    """Serials and identities follow the seed, secrets never repeat."""
    lines = []
    for _ in range(2):
        async with simulated("--seed", "3", "--count", "2") as line:
            lines.append(line["grandmasters"])
    first, second = ([(gm["serial"], gm["identities"]) for gm in line] for line in lines)

    assert first == second
    assert lines[0][0]["community"] != lines[1][0]["community"]


async def test_units_of_a_run_are_their_own() -> None:
    """Each has its own sky, and the PTP input of each measures the next one."""
    async with running(SimulationPlan(count=2, seed=3)) as grandmasters:
        first, second = (gm.device for gm in grandmasters)

        assert first.satellites != second.satellites
        assert (first.peer, second.peer) == (second, first)


async def test_a_scenario_begins_in_steady_state() -> None:
    """The antenna is cut after a while: first class 6, later class 7."""
    async with simulated("--scenario", "antenna-cut") as gm:
        before = await snmpget(gm, CLOCK_CLASS)
        after = before
        async with asyncio.timeout(60):
            while after == before:
                await asyncio.sleep(0.5)
                after = await snmpget(gm, CLOCK_CLASS)

    assert (before, after) == (["6"], ["7"])


async def test_a_scenario_file_at_a_speed(tmp_path: Path) -> None:
    """A file's action happens at its simulated time."""
    file = tmp_path / "night.toml"
    file.write_text('[[action]]\nat_s = 600\ndo = "reboot"\n')
    async with simulated("--scenario", str(file), "--speed", "600") as gm:
        classes = await snmpget(gm, CLOCK_CLASS)
        async with asyncio.timeout(60):
            while classes != ["248"]:
                classes = await snmpget(gm, CLOCK_CLASS)

    assert gm["scenario"] == str(file)


async def test_a_recording_is_played(tmp_path: Path) -> None:
    """The folder of a recording is a scenario: its walk is answered, and without recorded pages there is no HTTPS."""
    (tmp_path / "walk.snmprec").write_text("1.3.6.1.2.1.1.5.0|4|the-real-one\n")
    async with simulated("--scenario", str(tmp_path)) as gm:
        answer = await snmpget(gm, SYS_NAME)

    assert answer == ['"the-real-one"']
    assert "https" not in gm


async def received(sink: socket.socket) -> bytes:
    async with asyncio.timeout(60):
        return await asyncio.get_running_loop().sock_recv(sink, 65_536)


async def test_events_are_sent() -> None:
    """A grandmaster whose antenna is cut sends a trap and a line by itself, without being polled."""
    sinks = [socket.socket(type=socket.SOCK_DGRAM) for _ in range(2)]
    try:
        for sink in sinks:
            sink.bind(("127.0.0.1", 0))
            sink.setblocking(False)
        trap_to, syslog_to = (f"127.0.0.1:{sink.getsockname()[1]}" for sink in sinks)
        options = ("--scenario", "reboot", "--speed", "200", "--trap-to", trap_to, "--syslog-to", syslog_to)
        async with simulated(*options) as gm:
            trap, line = await received(sinks[0]), await received(sinks[1])
    finally:
        for sink in sinks:
            sink.close()

    assert gm["community"].encode() in trap
    assert b"alarmd" in line


async def test_a_taken_port_is_one_error() -> None:
    """The command ends with 1 and names the port, and prints nothing else."""
    for kind, option, name in (
        (socket.SOCK_DGRAM, "--snmp-port", "UDP"),
        (socket.SOCK_STREAM, "--https-port", "TCP"),
    ):
        with socket.socket(type=kind) as holder:
            holder.bind(("127.0.0.1", 0))
            if kind is socket.SOCK_STREAM:
                holder.listen()
            port = holder.getsockname()[1]
            status, output = await output_of(*simulate_command("--json", option, str(port)))

        assert (status, output) == (1, f"timesyncd: 127.0.0.1, {name} port {port}: Address already in use\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--scenario", "none"), "scenario 'none' is no file and none of steady, locked"),
        (("--count", "3", "--snmp-port", "65534"), "3 ports from 65534 on: the highest is 65535"),
        (("--speed", "0"), "0 is not above 0"),
        (("--count", "0"), "0 is not from 1 to 999"),
        (("--trap-to", "collector"), "'collector' is not HOST:PORT"),
        (("--model", "tp9000"), "invalid choice"),
    ],
)
async def test_what_cannot_be_asked(options: tuple[str, ...], message: str) -> None:
    """The command ends with 2 and states what is allowed."""
    status, output = await output_of(*simulate_command(*options))

    assert status == 2
    assert message in output


def pasted(note: str) -> list[str]:
    """Name and driver of the note's table, once the driver has accepted the rest."""
    (table,) = tomllib.loads(note[note.index("[[") : note.index("Ctrl-C")])["grandmaster"]
    named = [table.pop(name) for name in ("name", "driver")]
    del table["identities"]
    TimeProviderOptions.model_validate(table)
    return named


async def test_the_note_can_be_pasted() -> None:
    """Without --json the lines hold all that is needed to read the grandmaster."""
    async with started() as process:
        assert process.stdout is not None
        note = (await asyncio.wait_for(process.stdout.readuntil(b"Ctrl-C ends the simulation."), 60)).decode()
        walks = [line.split() for line in note.splitlines() if "snmpwalk" in line]
        walked = [(await output_of(*walk[:-1], SYS_NAME))[1] for walk in walks]

    assert [re.search(r'STRING: "(.*)"', text)[1] for text in walked] == ["gm-a", "gm-a"]  # type: ignore[index]
    assert "curl -sk" in note
    assert pasted(note) == ["gm-a", "timeprovider"]


def test_the_command_knows_what_the_simulator_knows() -> None:
    """It lists scenarios and models without importing the simulator, so that a bare client install can show its help."""
    assert tuple(SCENARIOS) == simulate.SCENARIO_NAMES
    assert tuple(MODELS) == simulate.MODELS
