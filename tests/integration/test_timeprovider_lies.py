"""Grandmasters that answer wrongly, over real UDP: one clear typed error each, nothing lost, nothing left."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from simulated_timeprovider import COMMUNITY, driver_for, opened, polled, read

from timesyncd.clocks import SystemClocks
from timesyncd.driver import Runner
from timesyncd.drivers.timeprovider._grandmaster_reader import ROW_CAP
from timesyncd.errors import Malformed, Refused, SourceError, Unreachable
from timesyncd.sample import ClockState, NoSample
from timesyncd.simulation.grandmaster import Device, Servo, SimulatedAlarm, SnmpAgent, mib
from timesyncd.simulation.grandmaster.lies import (
    LIES,
    LyingLength,
    MillionRows,
    NotAdvancing,
    OtherRequest,
    ProtocolLie,
    Rewriting,
    Truncated,
)
from timesyncd.simulation.grandmaster.mib import AgentMib, RecordedMib
from timesyncd.simulation.grandmaster.wire import WirePdu

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("community", "nothing_left")]

PTPBASE_STATE = (1, 3, 6, 1, 2, 1, 241, 1, 2, 4, 1, 4, 24, 1, 0)


class Garbage(ProtocolLie):
    def datagrams(self, octets: bytes) -> Iterable[bytes]:
        return [b"HTTP/1.1 400 Bad Request\r\n\r\n"]


class OtherTag(ProtocolLie):
    """A message that calls itself [0] and not SEQUENCE."""

    def datagrams(self, octets: bytes) -> Iterable[bytes]:
        return [b"\xa0" + octets[1:]]


class OtherObjects(ProtocolLie):
    def answer(self, request: WirePdu, answer: WirePdu) -> WirePdu:
        moved = [((*oid[:-1], oid[-1] + 1), value) for oid, value in answer.varbinds]
        return replace(answer, varbinds=moved)


class Empty(ProtocolLie):
    def answer(self, request: WirePdu, answer: WirePdu) -> WirePdu:
        return replace(answer, varbinds=[])


class Failing(ProtocolLie):
    def answer(self, request: WirePdu, answer: WirePdu) -> WirePdu:
        return replace(answer, status=5, position=1)


class Silent(ProtocolLie):
    def datagrams(self, octets: bytes) -> Iterable[bytes]:
        return []


def wrong_state() -> ProtocolLie:
    return Rewriting([PTPBASE_STATE], lambda _: mib.text("locked"))


def grandmaster() -> Device:
    return Device(kind="tp5000e")


@asynccontextmanager
async def lying(lie: ProtocolLie) -> AsyncIterator[SnmpAgent]:
    async with SnmpAgent(grandmaster(), community=COMMUNITY) as agent:
        agent.lie = lie
        yield agent


@pytest.mark.parametrize(
    ("lie", "error", "words"),
    [
        (Garbage, Malformed, "not SNMP .*: 28 octets that begin 48 54 54 50"),
        (Truncated, Malformed, "not SNMP .* octets that begin 30"),
        (LyingLength, Malformed, "not SNMP .* octets that begin 30 84 7f ff ff ff"),
        (OtherTag, Malformed, "not SNMP .* octets that begin a0"),
        (OtherRequest, Malformed, "a response to no pending request"),
        (OtherObjects, Malformed, "the response contains other objects than the request"),
        (NotAdvancing, Malformed, r"does not advance: 1\.3\.6\.1\.4\.1\.9070\."),
        (Empty, Malformed, "the response has 0 variables instead of 10"),
        (Failing, Refused, r"genErr for 1\.3\.6\.1\.4\.1\.9070"),
        (Silent, Unreachable, "community is wrong"),
    ],
)
async def test_a_lying_grandmaster_gives_one_typed_error(
    lie: Callable[[], ProtocolLie], error: type[SourceError], words: str
) -> None:
    """Each kind of bad answer is one line that names the grandmaster and what came; a healthy grandmaster beside it is read on."""
    async with (
        lying(lie()) as liar,
        SnmpAgent(grandmaster(), community=COMMUNITY) as honest,
        opened(honest) as healthy,
    ):
        with pytest.raises(error, match=words) as raised:
            async with asyncio.timeout(60):
                await read(liar)
        sample = await polled(healthy)

    assert str(raised.value).startswith(f"127.0.0.1:{liar.port}: ")
    assert "\n" not in str(raised.value)
    assert sample.clock_state is ClockState.LOCKED


async def test_a_state_of_the_wrong_type_hides_no_other_value() -> None:
    """It is reported as it came, the state is unknown, and the grandmaster is not lost."""
    async with lying(wrong_state()) as agent, opened(agent) as driver:
        sample = await polled(driver)

    assert "clock_state=undecodable(b'locked')" in sample.unknown
    assert sample.sys_descr is not None


class TypesWrongFrom(ProtocolLie):
    """Every INTEGER is a text after the first `honest` answers."""

    def __init__(self, honest: int) -> None:
        self._honest = honest
        self._lie = LIES["wrong-types"]()

    def mib(self, mib: AgentMib) -> AgentMib:
        self._honest -= 1
        return mib if self._honest >= 0 else self._lie.mib(mib)


async def test_what_is_lost_in_the_middle_of_a_read_is_reported() -> None:
    """Wherever a read begins to be lied to, the poll fails, or each field that differs is among the unknown ones."""
    compared = (
        "clock_state",
        "clock_class",
        "clock_accuracy",
        "utc_offset_s",
        "alarms",
        "ports",
        "references",
        "serial",
    )
    failed, silent, partial = 0, [], 0
    async with SnmpAgent(grandmaster(), community=COMMUNITY) as agent:
        honest = await read(agent)
        for answers in range(45):
            agent.lie = TypesWrongFrom(answers)
            try:
                sample = await read(agent)
            except SourceError:
                failed += 1
                continue
            differing = {field for field in compared if getattr(sample, field) != getattr(honest, field)}
            partial += bool(differing)
            names = [name for note in sample.unknown for name in note.partition("=")[0].split("/")]
            reported = {name.partition(".")[0] for name in names}
            silent += [(answers, field) for field in differing - reported]

    assert silent == []
    assert failed > 0
    assert partial > 0


async def test_a_grandmaster_that_stops_lying_is_read_again() -> None:
    """Nothing of a bad answer is kept: the same driver reads the grandmaster once its answers are right."""
    async with lying(OtherRequest()) as agent:
        driver = driver_for(agent)
        with pytest.raises(Malformed):
            await driver.open()
        await driver.close()
        agent.lie = ProtocolLie()
        await driver.open()
        sample = await polled(driver)
        await driver.close()

    assert sample.clock_class == 6


async def test_answers_that_come_twice_are_harmless() -> None:
    """A duplicated datagram, also one that arrives while the driver closes, changes nothing."""

    class Echoing(ProtocolLie):
        def datagrams(self, octets: bytes) -> Iterable[bytes]:
            return [octets] * 5

    async with lying(Echoing()) as agent:
        samples = [await read(agent) for _ in range(5)]

    assert {sample.clock_class for sample in samples} == {6}


async def test_an_endless_table_is_cut_off() -> None:
    """A column with more rows than any sane grandmaster has is cut off, and the sample reports it."""

    alarms = [SimulatedAlarm(n % 250 + 500, "minor", "again") for n in range(2 * ROW_CAP)]
    async with SnmpAgent(grandmaster(), community=COMMUNITY) as agent:
        agent.device.set_state(Servo.LOCKED, alarms=alarms)
        sample = await read(agent, timeout_s=10)

    assert len(sample.alarms or ()) == ROW_CAP
    assert f"alarms.text=cut off after {ROW_CAP} rows" in sample.unknown


async def test_a_table_of_a_million_rows_is_cut_off() -> None:
    """Satellites without end cost a few datagrams, and what else the grandmaster states is kept."""
    async with lying(MillionRows()) as agent:
        sample = await read(agent, timeout_s=10)

    assert len(sample.satellites or ()) == ROW_CAP
    assert sample.clock_class == 6


@pytest.mark.parametrize("quirk", ["interval-as-text", "truth-zero", "class-as-text", "negative-variance"])
async def test_what_real_agents_send_otherwise_is_read_the_same(quirk: str) -> None:
    """TimeInterval as text, false as 0, the class as text, a variance with its sign: the sample is that of a grandmaster without them."""
    device = Device(kind="tp5000e", clock=lambda: 1_772_600_767.0)
    async with SnmpAgent(device, community=COMMUNITY) as agent:
        honest = await read(agent)
        agent.lie = LIES[quirk]()
        sample = await read(agent)

    assert replace(sample, boottime_ns=honest.boottime_ns) == honest


async def test_a_wrong_community_is_named_as_a_possible_cause() -> None:
    """With v2c a wrong community gets no answer, and the error reports it without printing it."""
    async with SnmpAgent(grandmaster(), community=COMMUNITY) as agent:
        with pytest.raises(Unreachable, match="community is wrong") as raised:
            await read(agent, community={"env": "WRONG_COMMUNITY"})

    assert "guess" not in str(raised.value)


async def test_a_grandmaster_without_any_profile_is_refused() -> None:
    """An agent of something else answers, and the error states that no profile fits and which were tried."""

    printer = RecordedMib([((1, 3, 6, 1, 2, 1, 43, 1, 0), mib.integer(1))])
    async with SnmpAgent(grandmaster(), community=COMMUNITY, mib=printer) as agent:
        with pytest.raises(Refused, match="serves none of the profiles .*system"):
            await read(agent)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b"])
async def test_an_unknown_host_is_unreachable(host: str) -> None:
    """A name that does not resolve is reported as such, well before the time-out."""
    async with SnmpAgent(grandmaster(), community=COMMUNITY) as agent:
        with pytest.raises(Unreachable, match=re.escape(host)):
            await read(agent, host=host, timeout_s=30)


async def test_the_runner_gets_the_drivers_own_error() -> None:
    """The driver gives up before the runner does, so that the reason is its own: two tries fit into timeout_s."""
    async with lying(Silent()) as agent:
        samples = Runner("gm-a", driver_for(agent, timeout_s=4), SystemClocks(), lambda report: None).samples()
        first = await anext(samples)
        await samples.aclose()

    assert isinstance(first, NoSample)
    assert "community is wrong" in first.reason


async def test_a_cancelled_poll_leaves_nothing() -> None:
    """A poll that is cut off half-way closes like any other, and the grandmaster is read again afterwards."""
    async with SnmpAgent(grandmaster(), community=COMMUNITY) as agent:
        driver = driver_for(agent)
        await driver.open()
        agent.lie = Silent()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await driver.poll()
        await driver.close()
        agent.lie = ProtocolLie()
        sample = await read(agent)

    assert sample.clock_class == 6
