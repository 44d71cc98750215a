"""A grandmaster whose agent never answers a request that names an object that it lacks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from snmp_scripted import outcome_of, pdu, running_agent, v2c, v2c_request

from timesyncd.drivers.timeprovider.timeprovider import TimeProvider, TimeProviderOptions
from timesyncd.errors import Unreachable
from timesyncd.sample import ClockState, GrandmasterSample
from timesyncd.snmp import Oid, ber, parse_oid
from timesyncd.snmp.messages import PduType

S650 = "1.3.6.1.4.1.9070.1.2.5.7.8"
BOOTS = "1.3.6.1.6.3.10.2.1.2"
IF_STATE = "1.3.6.1.2.1.2.2.1.8"
END = b"\x82\x00"
SERVED: dict[Oid, bytes] = {
    parse_oid(oid): value
    for oid, value in {
        "1.3.6.1.2.1.1.1.0": ber.encode(ber.OCTETS, b"SyncServer"),
        "1.3.6.1.2.1.1.3.0": ber.encode_integer(8_640_000, 0x43),
        "1.3.6.1.2.1.2.2.1.2.1": ber.encode(ber.OCTETS, b"LAN1"),
        f"{S650}.2.3.0": ber.encode(ber.OCTETS, b"SyncServer S650"),
        f"{S650}.3.1.0": ber.encode(ber.OCTETS, b"Locked"),
        f"{S650}.3.2.0": ber.encode(ber.OCTETS, b"GNSS"),
    }.items()
}


def s650(*ignored: str) -> Callable[[bytes], Iterable[bytes]]:
    patterns = [ber.encode_oid(parse_oid(oid))[2:] for oid in ignored]

    def answer(datagram: bytes) -> list[bytes]:
        if any(pattern in datagram for pattern in patterns):
            return []
        request = v2c_request(datagram)
        oids = [varbind.oid for varbind in request.varbinds]
        if request.kind is PduType.GET:
            found = [(oid, SERVED.get(oid, b"\x80\x00")) for oid in oids]
        else:
            following = [min((oid for oid in SERVED if oid > asked), default=None) for asked in oids]
            found = [(oid or asked, SERVED[oid] if oid else END) for oid, asked in zip(following, oids, strict=True)]
        return [v2c(pdu(PduType.RESPONSE, request.number, found))]

    return answer


@asynccontextmanager
async def polled(answer: Callable[[bytes], Iterable[bytes]]) -> AsyncIterator[TimeProvider]:
    async with running_agent(answer) as (port, _):
        options = {"host": "127.0.0.1", "port": port, "community": {"env": "GM_COMMUNITY"}, "timeout_s": 2}
        driver = TimeProvider("gm-a", TimeProviderOptions.model_validate(options), Path("/nowhere"))
        yield driver
        await driver.close()


async def poll(driver: TimeProvider) -> GrandmasterSample:
    (sample,) = await driver.poll()
    assert isinstance(sample, GrandmasterSample)
    return sample


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GM_COMMUNITY", "fifth-floor")


async def test_a_grandmaster_whose_agent_is_silent_to_one_object_is_read() -> None:
    """Its state is known at the first poll; from the second on the object is "not provided", as any that it lacks."""
    async with polled(s650(BOOTS)) as driver:
        opened = await outcome_of(driver.open())
        samples = [await outcome_of(poll(driver)) for _ in range(2)]

    assert opened is None
    assert [getattr(sample, "clock_state", sample) for sample in samples] == [ClockState.LOCKED] * 2
    assert (samples[1].model, samples[1].engine_boots) == ("SyncServer S650", None)
    assert samples[1].unknown == ("engine_boots=not provided: the agent does not respond to a request that names it",)


@pytest.mark.parametrize("ignored", [(IF_STATE,), ("1.3.6.1.2.1.241.1.2",), ("1.3.6.1.2.1.197.1.2", BOOTS, IF_STATE)])
async def test_silence_to_a_subtree_or_a_column_costs_it_alone(ignored: tuple[str, ...]) -> None:
    """Within a few polls everything else is read."""
    async with polled(s650(*ignored)) as driver:
        opened = await outcome_of(driver.open())
        samples = [await outcome_of(poll(driver)) for _ in range(3)]

    assert opened is None
    assert [getattr(sample, "clock_state", sample) for sample in samples] == [ClockState.LOCKED] * 3
    assert [interface.name for interface in samples[-1].interfaces or ()] == ["LAN1"]


async def test_a_grandmaster_that_is_down_is_called_down() -> None:
    """Not even sysUpTime is answered."""
    async with polled(lambda _: []) as driver:
        failed = await outcome_of(driver.open())

    assert isinstance(failed, Unreachable)
    assert "no SNMP response: the device is down" in str(failed)
