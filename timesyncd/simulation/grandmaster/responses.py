"""What an agent answers to a PDU (RFC 3416 section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from timesyncd.simulation.grandmaster import smi
from timesyncd.simulation.grandmaster.mib import Mib
from timesyncd.snmp import ber
from timesyncd.snmp.messages import Kind, Pdu, Varbind, decode_as
from timesyncd.snmp.values import Oid

#: The tag of what wants to change something.
SET = 0xA3
AUTHORIZATION_ERROR, NOT_WRITABLE = 16, 17
#: GETBULK stops where a datagram on Ethernet is full, as real agents do.
BULK_OCTETS = 1400


def refusal(reader: ber.Reader, status: int) -> Pdu:
    """The PDU that stands at the reader, sent back with this error for its first variable. Raises Malformed."""
    same = decode_as(Kind.RESPONSE, reader, reader.next_tag())
    return replace(same, status=status, position=min(1, len(same.varbinds)))


def respond(request: Pdu, mib: Mib) -> Pdu | None:
    """None to a kind of request that no agent answers."""
    asked = [varbind.oid for varbind in request.varbinds]
    if request.kind is Kind.GET:
        found = [Varbind(oid, *mib.get(oid)) for oid in asked]
    elif request.kind is Kind.GET_NEXT:
        found = _row(asked, mib)
    elif request.kind is Kind.GET_BULK:
        found = _bulk(asked, request.status, request.position, mib)
    else:
        return None
    return Pdu(Kind.RESPONSE, request.number, 0, 0, found)


def _row(asked: Sequence[Oid], mib: Mib) -> list[Varbind]:
    return [Varbind(oid, *value) for oid, value in map(mib.after, asked)]


def _bulk(asked: Sequence[Oid], non_repeaters: int, repetitions: int, mib: Mib) -> list[Varbind]:
    found = _row(asked[:non_repeaters], mib)
    repeating = asked[non_repeaters:]
    size = sum(map(_size, found))
    for _ in range(repetitions):
        row = _row(repeating, mib)
        size += sum(map(_size, row))
        if not row or (found and size > BULK_OCTETS):
            break
        found += row
        if all(varbind.tag == smi.END_OF_MIB_VIEW.tag for varbind in row):
            break
        repeating = [varbind.oid for varbind in row]
    return found


def _size(varbind: Varbind) -> int:
    """Octets that it takes, or a few more."""
    raw = varbind.raw
    octets = raw.bit_length() // 8 + 1 if isinstance(raw, int) else len(raw or "")
    return len(ber.encode_oid(varbind.oid)) + octets + 8
