"""The simulated agent read by net-snmp's own programs, v2c and v3."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from timesyncd.simulation.grandmaster.agent import TABLES, SnmpAgent, mib_of
from timesyncd.simulation.grandmaster.device import Device
from timesyncd.simulation.grandmaster.lies import LIES
from timesyncd.simulation.grandmaster.mib import END_OF_MIB_VIEW
from timesyncd.simulation.grandmaster.simulated import load_recording
from timesyncd.simulation.grandmaster.wire import AuthProtocol, Oid, PrivProtocol, UsmUser

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("nothing_left")]

COMMUNITY = "third-floor"
USER = UsmUser("watcher", "sha256", "green-window", "aes128", "yellow-door")
SYS_NAME, CLOCK_CLASS = "1.3.6.1.2.1.1.5.0", "1.3.6.1.2.1.241.1.2.3.1.9.24.1.0"
NOT_IN_TIME_WINDOW, WRONG_DIGEST = (1, 3, 6, 1, 6, 3, 15, 1, 1, 2, 0), (1, 3, 6, 1, 6, 3, 15, 1, 1, 5, 0)

V2C = ("-v2c", "-c", COMMUNITY)
_NET_SNMP = {
    "sha1": "SHA", "sha224": "SHA-224", "sha256": "SHA-256", "sha384": "SHA-384", "sha512": "SHA-512",
    "aes128": "AES", "aes192": "AES-192", "aes256": "AES-256",
}  # fmt: skip


def v3(user: UsmUser) -> tuple[str, ...]:
    return (
        "-v3", "-l", "authPriv", "-u", user.name, "-a", _NET_SNMP[user.auth], "-A", user.auth_pass,
        "-x", _NET_SNMP[user.priv], "-X", user.priv_pass,
    )  # fmt: skip


@asynccontextmanager
async def serving(device: Device, user: UsmUser = USER) -> AsyncIterator[SnmpAgent]:
    async with SnmpAgent(device, community=COMMUNITY, user=user) as agent:
        yield agent


async def asked(
    program: str, agent: SnmpAgent, *arguments: str, oid: str = SYS_NAME, tries: int = 1, within_s: int = 30
) -> str:
    """What the program prints; it waits so long for each answer."""
    process = await asyncio.create_subprocess_exec(
        program, *arguments, "-On", "-Ot", "-m", "", f"-t{within_s}", f"-r{tries - 1}", f"{agent.host}:{agent.port}",
        *oid.split(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    return output.decode()


@pytest.mark.parametrize("kind", TABLES)
async def test_a_walk_sees_every_object_in_order(kind: str) -> None:
    """GETNEXT and GETBULK, v2c and v3, go through all that a model serves, alike, and end; its clock is stopped here."""
    device = Device(kind=kind, clock=lambda: 1_772_600_767.0)
    async with serving(device) as agent:
        walks = [
            await asked("snmpwalk", agent, *V2C, oid="1.3.6.1"),
            await asked("snmpbulkwalk", agent, *V2C, oid="1.3.6.1"),
            await asked("snmpbulkwalk", agent, *v3(USER), oid="1.3.6.1"),
        ]
    oids = [
        tuple(int(arc) for arc in oid.split(".")[1:]) for oid in re.findall(r"^(\.1\.\S+) = ", walks[0], re.MULTILINE)
    ]
    expected: list[Oid] = []
    oid: Oid = (1, 3, 6, 1)
    while (found := mib_of(device).after(oid))[1] != END_OF_MIB_VIEW:
        oid = found[0]
        expected.append(oid)

    assert oids[:-1] == expected
    assert "No more variables" in walks[0].splitlines()[-1]
    assert walks[0] == walks[1] == walks[2]


@pytest.mark.parametrize("auth", ["sha1", "sha224", "sha256", "sha384", "sha512"])
@pytest.mark.parametrize("priv", ["aes128", "aes192", "aes256"])
async def test_snmpget_v3_with_every_pair_of_algorithms(auth: AuthProtocol, priv: PrivProtocol) -> None:
    """net-snmp discovers the engine and reads with each digest and each cipher."""
    user = replace(USER, auth=auth, priv=priv)
    async with serving(Device(name="gm-b"), user) as agent:
        output = await asked("snmpget", agent, *v3(user))

    assert output == f'.{SYS_NAME} = STRING: "gm-b"\n'


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-u", "unknown"), "Unknown user name"),
        (("-A", "another-pass"), "Authentication failure"),
        (("-X", "another-pass"), "Decryption error"),
        (("-l", "authNoPriv"), "authorizationError"),
        (("-l", "noAuthNoPriv"), "authorizationError"),
        (("-n", "elsewhere"), "Bad context specified"),
    ],
)
async def test_a_v3_question_that_is_refused_gets_the_reason(arguments: tuple[str, ...], words: str) -> None:
    """Each fault is the Report, or the error, that the standard has for it; net-snmp names it."""
    async with serving(Device()) as agent:
        output = await asked("snmpget", agent, *v3(USER), *arguments)

    assert words in output
    assert "gm-a" not in output


async def test_a_wrong_key_is_a_report_of_its_own() -> None:
    """A wrong digest is counted as one, and the count is in the Report."""
    async with serving(Device()) as agent:
        await asked("snmpget", agent, *v3(USER), "-A", "another-pass")
        counted = agent.reports[WRONG_DIGEST]

    assert counted == 1


async def test_an_asker_with_an_old_clock_is_set_right() -> None:
    """A message outside the time window gets a signed Report, from which net-snmp takes the time and asks again."""
    async with serving(Device()) as agent:
        output = await asked("snmpget", agent, *v3(USER), "-Z", "1,1", tries=2)
        counted = agent.reports[NOT_IN_TIME_WINDOW]

    assert (output, counted) == (f'.{SYS_NAME} = STRING: "gm-a"\n', 1)


async def test_a_wrong_community_and_version_1_get_silence() -> None:
    """Only the community that was given is answered, and only as v2c."""
    async with serving(Device()) as agent:
        outputs = [
            await asked("snmpget", agent, version, "-c", name, within_s=1)
            for version, name in (("-v2c", "x"), ("-v1", COMMUNITY))
        ]

    assert [text.split(":")[0] for text in outputs] == ["Timeout", "Timeout"]


@pytest.mark.parametrize("how", [V2C, v3(USER)])
async def test_the_agent_is_read_only(how: tuple[str, ...]) -> None:
    """SET is refused with notWritable, and nothing changes."""
    async with serving(Device()) as agent:
        refused = await asked("snmpset", agent, *how, oid=f"{SYS_NAME} s other")
        still = await asked("snmpget", agent, *how)

    assert "notWritable" in refused
    assert "gm-a" in still


async def test_what_is_not_there_has_its_own_reply() -> None:
    """An object that no table has, and a row that a table does not have now, are two answers."""
    async with serving(Device()) as agent:
        output = await asked("snmpget", agent, *V2C, oid="1.3.6.1.2.1.1.99.0 1.3.6.1.2.1.2.2.1.8.77")

    assert "99.0 = No Such Object" in output
    assert "8.77 = No Such Instance" in output


async def test_two_thousand_clients_are_walked() -> None:
    """The client list has a row a client, and GETBULK reads it to its end."""
    async with serving(Device(kind="tp4500", client_total=2_000)) as agent:
        walked = await asked("snmpbulkwalk", agent, *V2C, "-Cr50", oid="1.3.6.1.4.1.9070.1.2.5.1.1.1.2.1.2")

    assert len(walked.splitlines()) == 2_000


async def test_a_grandmaster_that_boots_keeps_silent_and_comes_back_with_another_count() -> None:
    """During a reboot nothing answers; afterwards snmpEngineBoots is one more and its time starts again."""
    device = Device()
    async with serving(device) as agent:
        device.reboot()
        silent = await asked("snmpget", agent, *V2C, within_s=1)
        device.advance(61)
        boots = await asked("snmpget", agent, *v3(USER), oid="1.3.6.1.6.3.10.2.1.2.0 1.3.6.1.6.3.10.2.1.3.0", tries=2)

    assert silent.startswith("Timeout")
    count, time_s = re.findall(r"INTEGER: (\d+)", boots)
    assert count == "5"
    assert 1 <= int(time_s) < 60


async def test_delay_and_loss_are_those_of_the_device() -> None:
    """An agent slower than the client's time limit times out; one that loses all is silent; one that recovers answers."""
    device = Device(answer_delay_s=1.5)
    async with serving(device) as agent:
        late = await asked("snmpget", agent, *V2C, within_s=1)
        device.answer_delay_s, device.loss = 0.0, 1.0
        lost = await asked("snmpget", agent, *V2C, within_s=1)
        device.loss = 0.0
        answer = await asked("snmpget", agent, *V2C)

    assert [late.split(":")[0], lost.split(":")[0]] == ["Timeout", "Timeout"]
    assert "gm-a" in answer


@pytest.mark.parametrize(
    ("lie", "program", "oid", "words"),
    [
        ("truncated", "snmpget", SYS_NAME, "Timeout"),
        ("lying-length", "snmpget", SYS_NAME, "Timeout"),
        ("other-request", "snmpget", SYS_NAME, "Timeout"),
        ("not-advancing", "snmpwalk", "1.3.6.1.2.1.1", "OID not increasing"),
        ("wrong-types", "snmpget", CLOCK_CLASS, '"locked"'),
        ("class-as-text", "snmpget", CLOCK_CLASS, 'STRING: "6"'),
        ("negative-variance", "snmpget", "1.3.6.1.2.1.241.1.2.3.1.11.24.1.0", f"INTEGER: {0x4E5D - 0x10000}"),
        ("truth-zero", "snmpget", "1.3.6.1.2.1.241.1.2.5.1.6.24.1.0", "INTEGER: 0"),
        ("interval-as-text", "snmpget", "1.3.6.1.2.1.241.1.2.1.1.5.24.1.0", '"-17.25"'),
        ("million-rows", "snmpget", "1.3.6.1.4.1.9070.1.2.5.2.1.1.2.1.2.101.1000000", "INTEGER: 50"),
        ("none", "snmpget", CLOCK_CLASS, "INTEGER: 6"),
    ],
)
async def test_each_lie_reaches_the_wire(lie: str, program: str, oid: str, words: str) -> None:
    """A client of an agent that lies meets the error of the lie's name."""
    async with serving(Device()) as agent:
        agent.lie = LIES[lie]()
        output = await asked(program, agent, *V2C, oid=oid, within_s=1 if words == "Timeout" else 30)

    assert words in output


async def test_a_recording_is_played(tmp_path: Path) -> None:
    """What was walked is served again, each value with its type."""
    (tmp_path / "walk.snmprec").write_text(
        "1.3.6.1.2.1.1.5.0|4|lab-gm\n1.3.6.1.2.1.1.3.0|67|4711\n1.3.6.1.2.1.2.2.1.6.1|4x|00a069010203\n"
    )
    async with SnmpAgent(Device(), community=COMMUNITY, mib=load_recording(tmp_path).mib) as agent:
        walked = await asked("snmpbulkwalk", agent, *V2C, oid="1.3.6")

    assert walked.splitlines()[:3] == [
        ".1.3.6.1.2.1.1.3.0 = 4711",
        '.1.3.6.1.2.1.1.5.0 = STRING: "lab-gm"',
        ".1.3.6.1.2.1.2.2.1.6.1 = Hex-STRING: 00 A0 69 01 02 03 ",
    ]
