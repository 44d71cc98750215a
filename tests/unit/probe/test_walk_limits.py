"""A walk that ends exactly at its limit is complete; only one object more shows that something is missing."""

from __future__ import annotations

import pytest
from snmp_scripted import TEXT, Answer, pdu, running_agent, v2c, v2c_request

from timesyncd.probe import probe as probing
from timesyncd.probe.access import ProbeAccess, SnmpAccess
from timesyncd.probe.record import _walk
from timesyncd.snmp import Community, Oid, Session
from timesyncd.snmp.messages import PduType

COMMUNITY = Community("fifth-floor")
END = b"\x82\x00"


def serving(oids: list[Oid]) -> Answer:
    """An agent that has these objects, by GETBULK."""

    def answer(datagram: bytes) -> list[bytes]:
        request = v2c_request(datagram)
        (asked,) = (varbind.oid for varbind in request.varbinds)
        following = [(oid, TEXT) for oid in oids if oid > asked][: request.position]
        return [v2c(pdu(PduType.RESPONSE, request.number, following or [(asked, END)]))]

    return answer


@pytest.mark.parametrize(("objects", "incomplete"), [(5, []), (6, ["cut off after 5 objects"])])
async def test_a_recording_of_exactly_the_limit_is_complete(objects: int, incomplete: list[str]) -> None:
    """The recording states that it was cut off where an object is missing, and only there."""
    oids: list[Oid] = [(1, 3, 6, 1, 2, 1, 1, row, 0) for row in range(objects)]
    async with running_agent(serving(oids)) as (port, _):
        access = ProbeAccess("127.0.0.1", port, 443, 0.2, SnmpAccess(COMMUNITY, {}), None)
        rows, found = await _walk(access, 5, lambda _: None)

    assert ([row.oid for row in rows], found) == (oids[:5], incomplete)


@pytest.mark.parametrize(("objects", "is_cut"), [(5, False), (6, True)])
async def test_a_count_of_exactly_the_limit_is_complete(
    objects: int, is_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe says "incomplete" only where there is more of the vendor's tree."""
    monkeypatch.setattr(probing, "VENDOR_CAP", 5)
    oids = [(*probing.VENDOR, 1, row) for row in range(objects)]
    async with running_agent(serving(oids)) as (port, _):
        session = await Session.open("127.0.0.1", port, COMMUNITY, 0.2, retries=0)
        found, cut = await probing._vendors(session, "unit", lambda _: None)
        session.close()

    assert (found, cut) == (oids[:5], is_cut)
