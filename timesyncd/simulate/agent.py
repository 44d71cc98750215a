"""An SNMP v2c agent for a simulated unit: GET, GETNEXT and GETBULK are answered, SET is refused."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from typing import Any, Self

from pyasn1.codec.ber import decoder, encoder
from pyasn1.error import PyAsn1Error
from pysnmp.proto.api import v2c
from pysnmp.proto.rfc1905 import endOfMibView, noSuchInstance

from timesyncd.simulate.device import Device
from timesyncd.simulate.oids import Oid, View, view

VERSION_2C = 1
NOT_WRITABLE = 17
#: As real agents do, GETBULK stops where a datagram of 1500 octets is about full.
MAX_VARBINDS = 50

VarBind = tuple[Oid, Any]


class SnmpAgent(asyncio.DatagramProtocol):
    """Serves `device` until stopped. `port` 0 takes a free one; `start` returns it."""

    def __init__(self, device: Device, host: str = "127.0.0.1", port: int = 0, community: str = "public") -> None:
        self.device = device
        self.host = host
        self.port = port
        self.community = community
        self._transport: asyncio.DatagramTransport | None = None

    async def start(self) -> int:
        """Raises OSError when the address cannot be bound."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(self.host, self.port))
        self.port = int(self._transport.get_extra_info("sockname")[1])
        return self.port

    async def stop(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None
            await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        answer = respond(data, self.community, self.served())
        if answer is not None and self._transport is not None:
            self._transport.sendto(answer, addr)

    def served(self) -> View:
        return view(self.device)


def respond(datagram: bytes, community: str, served: View) -> bytes | None:
    """The answer; None to what is no SNMP v2c, and to another community, as RFC 3416 agents keep silent."""
    try:
        message, _ = decoder.decode(datagram, asn1Spec=v2c.Message())
        if int(v2c.apiMessage.get_version(message)) != VERSION_2C:
            return None
        if bytes(v2c.apiMessage.get_community(message)) != community.encode():
            return None
        request = v2c.apiMessage.get_pdu(message)
    except PyAsn1Error:
        return None
    answer = v2c.apiMessage.get_response(message)
    response = v2c.apiMessage.get_pdu(answer)
    if request.isSameTypeWith(v2c.SetRequestPDU()):
        v2c.apiPDU.set_error_status(response, NOT_WRITABLE)
        v2c.apiPDU.set_error_index(response, 1)
        v2c.apiPDU.set_varbinds(response, v2c.apiPDU.get_varbinds(request))
    else:
        varbinds = _values(request, served)
        if varbinds is None:
            return None
        v2c.apiPDU.set_varbinds(response, varbinds)
    return bytes(encoder.encode(answer))


def _values(request: Any, served: View) -> list[VarBind] | None:
    """None for a kind of request that no agent answers."""
    if request.isSameTypeWith(v2c.GetBulkRequestPDU()):
        asked = [tuple(oid) for oid, _ in v2c.apiBulkPDU.get_varbinds(request)]
        alone = int(v2c.apiBulkPDU.get_non_repeaters(request))
        return _bulk(asked, max(0, alone), int(v2c.apiBulkPDU.get_max_repetitions(request)), served)
    asked = [tuple(oid) for oid, _ in v2c.apiPDU.get_varbinds(request)]
    if request.isSameTypeWith(v2c.GetRequestPDU()):
        return [(oid, served.get(oid, noSuchInstance)) for oid in asked]
    if request.isSameTypeWith(v2c.GetNextRequestPDU()):
        return _next(asked, served)
    return None


def _next(after: list[Oid], served: View) -> list[VarBind]:
    oids = list(served)
    places = [(oid, bisect_right(oids, oid)) for oid in after]
    return [(oids[at], served[oids[at]]) if at < len(oids) else (oid, endOfMibView) for oid, at in places]


def _bulk(asked: list[Oid], non_repeaters: int, repetitions: int, served: View) -> list[VarBind]:
    varbinds = _next(asked[:non_repeaters], served)
    repeating = asked[non_repeaters:]
    for _ in range(repetitions):
        if not repeating or len(varbinds) + len(repeating) > MAX_VARBINDS:
            break
        found = _next(repeating, served)
        varbinds += found
        if all(value is endOfMibView for _, value in found):
            break
        repeating = [oid for oid, _ in found]
    return varbinds
