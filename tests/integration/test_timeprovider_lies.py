"""Units that answer wrongly, over real UDP: one clear typed error each, nothing lost, nothing left."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from pyasn1.codec.ber import decoder, encoder
from pysnmp.proto.api import v2c
from pysnmp.proto.rfc1902 import Integer32, OctetString
from snmp_units import COMMUNITY, driver_for, opened, read

from timesyncd.clocks import SystemClocks
from timesyncd.driver import Runner
from timesyncd.drivers.timeprovider import ROW_CAP
from timesyncd.errors import Malformed, Refused, SourceError, Unreachable
from timesyncd.sample import ClockState, NoSample
from timesyncd.simulate import Device, SimulatedAlarm, SnmpAgent
from timesyncd.simulate.agent import respond

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("community", "nothing_left")]

PTPBASE_STATE = (1, 3, 6, 1, 2, 1, 241, 1, 2, 4, 1, 4, 24, 1, 0)

VarBinds = list[tuple[tuple[int, ...], Any]]


class LyingAgent(SnmpAgent):
    """An agent whose answers are tampered with while `lying`."""

    lying = True

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        assert self._transport is not None
        for answer in self.answers(data):
            self._transport.sendto(answer, addr)

    def answers(self, data: bytes) -> list[bytes]:
        answer = respond(data, self.community, self.served())
        if answer is None or not self.lying:
            return [] if answer is None else [answer]
        message, _ = decoder.decode(answer, asn1Spec=v2c.Message())
        response = v2c.apiMessage.get_pdu(message)
        honest = [(tuple(oid), value) for oid, value in v2c.apiPDU.get_varbinds(response)]
        v2c.apiPDU.set_varbinds(response, self.tampered(honest))
        self.tamper_with_message(response)
        return [self.tampered_octets(bytes(encoder.encode(message)))]

    def tampered(self, varbinds: VarBinds) -> VarBinds:
        return varbinds

    def tamper_with_message(self, response: Any) -> None: ...

    def tampered_octets(self, octets: bytes) -> bytes:
        return octets


class Garbage(LyingAgent):
    def tampered_octets(self, octets: bytes) -> bytes:
        return b"HTTP/1.1 400 Bad Request\r\n\r\n"


class Truncated(LyingAgent):
    def tampered_octets(self, octets: bytes) -> bytes:
        return octets[:-5]


class OtherTag(LyingAgent):
    """A message that calls itself [0] and not SEQUENCE: the parser fails with a TypeError."""

    def tampered_octets(self, octets: bytes) -> bytes:
        return b"\xa0" + octets[1:]


class OtherRequest(LyingAgent):
    def tamper_with_message(self, response: Any) -> None:
        v2c.apiPDU.set_request_id(response, 1)


class OtherObjects(LyingAgent):
    def tampered(self, varbinds: VarBinds) -> VarBinds:
        return [((*oid[:-1], oid[-1] + 1), value) for oid, value in varbinds]


class NotAdvancing(LyingAgent):
    """Answers GETBULK with the very objects that it was to go on from."""

    def answers(self, data: bytes) -> list[bytes]:
        message, _ = decoder.decode(data, asn1Spec=v2c.Message())
        request = v2c.apiMessage.get_pdu(message)
        self.asked = [tuple(oid) for oid, _ in v2c.apiPDU.get_varbinds(request)]
        self.is_bulk = request.isSameTypeWith(v2c.GetBulkRequestPDU())
        return super().answers(data)

    def tampered(self, varbinds: VarBinds) -> VarBinds:
        return [(oid, Integer32(4)) for oid in self.asked] if self.is_bulk else varbinds


class WrongType(LyingAgent):
    def tampered(self, varbinds: VarBinds) -> VarBinds:
        return [(oid, OctetString("locked") if oid == PTPBASE_STATE else value) for oid, value in varbinds]


class Empty(LyingAgent):
    def tampered(self, varbinds: VarBinds) -> VarBinds:
        return []


class Failing(LyingAgent):
    def tamper_with_message(self, response: Any) -> None:
        v2c.apiPDU.set_error_status(response, 5)
        v2c.apiPDU.set_error_index(response, 1)


class Silent(LyingAgent):
    def answers(self, data: bytes) -> list[bytes]:
        return []


@pytest.mark.parametrize(
    ("liar", "error", "words"),
    [
        (Garbage, Malformed, "its answers fit no request .* 28 octets that begin 48 54 54 50"),
        (Truncated, Malformed, "its answers fit no request"),
        (OtherTag, Malformed, "its answers fit no request"),
        (OtherRequest, Malformed, "its answers fit no request"),
        (OtherObjects, Malformed, "answers for other objects than those asked for"),
        (NotAdvancing, Malformed, r"does not advance: 1\.3\.6\.1\.4\.1\.9070\."),
        (WrongType, Malformed, r"clock_state .*241\.1\.2\.4\.1\.4\.24\.1\.0.: an integer is wanted, b'locked' came"),
        (Empty, Malformed, "Empty SNMP response message"),
        (Failing, Refused, r"genErr for 1\.3\.6\.1\.4\.1\.9070"),
        (Silent, Unreachable, "wrong community"),
    ],
)
async def test_a_lying_unit_gives_one_typed_error(liar: type[LyingAgent], error: type[SourceError], words: str) -> None:
    """Each kind of bad answer is one line that names the unit and what came; a healthy unit beside it is read on."""
    async with (
        liar(Device(), community=COMMUNITY) as lying,
        SnmpAgent(Device(), community=COMMUNITY) as honest,
        opened(honest) as healthy,
    ):
        with pytest.raises(error, match=words) as raised:
            async with asyncio.timeout(20):
                await read(lying)
        (sample,) = await healthy.poll()

    assert str(raised.value).startswith(f"127.0.0.1:{lying.port}: ")
    assert "\n" not in str(raised.value)
    assert sample.clock_state is ClockState.LOCKED


async def test_a_unit_that_stops_lying_is_read_again() -> None:
    """Nothing of a bad answer is kept: the same driver reads the unit once its answers are right."""
    async with OtherRequest(Device(), community=COMMUNITY) as agent:
        driver = driver_for(agent)
        with pytest.raises(Malformed):
            await driver.open()
        await driver.close()
        agent.lying = False
        await driver.open()
        (sample,) = await driver.poll()
        await driver.close()

    assert sample.clock_class == 6


async def test_answers_that_come_twice_are_harmless() -> None:
    """A duplicated datagram, also one that arrives while the driver closes, changes nothing."""

    class Echoing(LyingAgent):
        def answers(self, data: bytes) -> list[bytes]:
            return super().answers(data) * 5

    async with Echoing(Device(), community=COMMUNITY) as agent:
        samples = [await read(agent) for _ in range(5)]

    assert {sample.clock_class for sample in samples} == {6}


async def test_an_endless_table_is_cut_off() -> None:
    """A column with more rows than any sane unit has is cut off, and the sample says so."""

    class Endless(LyingAgent):
        def answers(self, data: bytes) -> list[bytes]:
            self.device.alarms = tuple(SimulatedAlarm(n % 250 + 500, "minor", "again") for n in range(2 * ROW_CAP))
            return super().answers(data)

    async with Endless(Device(), community=COMMUNITY) as agent:
        sample = await read(agent)

    assert len(sample.alarms or ()) == ROW_CAP
    assert f"alarms.text=cut off after {ROW_CAP} rows" in sample.unknown


async def test_a_wrong_community_is_named_as_a_possible_cause() -> None:
    """With v2c a wrong community gets no answer, and the error says so without printing it."""
    async with SnmpAgent(Device(), community=COMMUNITY) as agent:
        with pytest.raises(Unreachable, match="wrong community") as raised:
            await read(agent, community={"env": "WRONG_COMMUNITY"})

    assert "guess" not in str(raised.value)


async def test_a_unit_without_any_profile_is_refused() -> None:
    """An agent of something else answers, and the error says that no profile fits and which were tried."""

    class Printer(LyingAgent):
        def tampered(self, varbinds: VarBinds) -> VarBinds:
            return [((1, 3, 6, 1, 2, 1, 43, 1), Integer32(1)) for _ in varbinds]

    async with Printer(Device(), community=COMMUNITY) as agent:
        with pytest.raises(Refused, match="serves none of the profiles tp5000e, ptpbase, symm-common, system"):
            await read(agent)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b"])
async def test_an_unknown_host_is_unreachable(host: str) -> None:
    """A name that does not resolve is told as such, well before the time-out."""
    async with SnmpAgent(Device(), community=COMMUNITY) as agent:
        with pytest.raises(Unreachable, match=re.escape(host)):
            await read(agent, host=host, timeout_s=30)


async def test_the_runner_gets_the_drivers_own_error() -> None:
    """The driver gives up before the runner does, so that the reason is its own: two tries fit into timeout_s."""
    async with Silent(Device(), community=COMMUNITY) as agent:
        samples = Runner("gm-a", driver_for(agent, timeout_s=4), SystemClocks(), lambda report: None).samples()
        first = await anext(samples)
        await samples.aclose()

    assert isinstance(first, NoSample)
    assert "wrong community" in first.reason


async def test_a_cancelled_poll_leaves_nothing() -> None:
    """A poll that is cut off half-way closes like any other, and the unit is read again afterwards."""
    async with LyingAgent(Device(), community=COMMUNITY) as agent:
        driver = driver_for(agent)
        await driver.open()
        agent.answers = lambda data: []  # type: ignore[method-assign]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await driver.poll()
        await driver.close()
        del agent.answers
        sample = await read(agent)

    assert sample.clock_class == 6
