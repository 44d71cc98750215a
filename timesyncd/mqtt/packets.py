"""
The packets of MQTT 5 that the daemon receives most: splitting a stream of bytes into packets, and PUBLISH. Pure.

Section numbers are of OASIS MQTT 5.0. paho buffers whatever length a packet announces; here a packet beyond the limit
is an error before its bytes are kept.
"""

from __future__ import annotations

from typing import NamedTuple

from timesyncd.errors import Malformed

#: The type of a PUBLISH packet, in the upper four bits of its first byte (2.1.2).
PUBLISH = 3

#: The remaining length has at most so many bytes (2.1.4), seven bits each.
MAX_LENGTH_BYTES = 4


class Packet(NamedTuple):
    """A whole packet: its first byte (type and flags), and what follows the remaining length."""

    first_byte: int
    body: bytes

    @property
    def type(self) -> int:
        return self.first_byte >> 4


class PublishPacket(NamedTuple):
    """A received message. `packet_id` is None at QoS 0, which has no acknowledgement. `retained`: the broker's copy."""

    topic: str
    payload: bytes
    retained: bool
    packet_id: int | None


class PacketSplitter:
    """Splits what arrives into packets. It holds one unfinished packet of at most `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._unfinished = b""

    def split(self, data: bytes) -> list[Packet]:
        """
        The packets that are complete with this data. Raises Malformed for a packet longer than `max_bytes` and for a
        length that is none; nothing can be read after that.
        """
        data = self._unfinished + data if self._unfinished else data
        packets, at = [], 0
        while len(data) - at >= 2:
            length, begin = _variable_length(data, at + 1)
            if length is None:
                break
            if begin - at + length > self._max_bytes:
                raise Malformed(f"the broker sends a packet of {length} bytes; at most {self._max_bytes} are allowed")
            if begin + length > len(data):
                break
            packets.append(Packet(data[at], data[begin : begin + length]))
            at = begin + length
        self._unfinished = data[at:]
        return packets


def parse_publish(packet: Packet) -> PublishPacket:
    """A PUBLISH (3.3) at QoS 0 or 1; its properties are skipped. Raises Malformed."""
    body, qos = packet.body, packet.first_byte >> 1 & 3
    topic_end = 2 + int.from_bytes(body[:2])
    at = topic_end + 2 * bool(qos)
    properties_length, at = _variable_length(body, at)
    if qos > 1:
        raise Malformed("the broker sends a message at QoS 2, which this daemon does not subscribe to")
    if properties_length is None or at + properties_length > len(body):
        raise Malformed("the broker sends a PUBLISH packet that ends within its header")
    try:
        topic = body[2:topic_end].decode()
    except UnicodeDecodeError as error:
        raise Malformed("the broker sends a topic that is no UTF-8") from error
    packet_id = int.from_bytes(body[topic_end : topic_end + 2]) if qos else None
    return PublishPacket(topic, body[at + properties_length :], bool(packet.first_byte & 1), packet_id)


def _variable_length(data: bytes, at: int) -> tuple[int | None, int]:
    """
    A variable byte integer (1.5.5) and where it ends; None: its bytes are not all there. Raises Malformed where it has
    more than MAX_LENGTH_BYTES.
    """
    length = 0
    for index, byte in enumerate(data[at : at + MAX_LENGTH_BYTES]):
        length |= (byte & 127) << 7 * index
        if byte < 128:
            return length, at + index + 1
    if len(data) - at >= MAX_LENGTH_BYTES:
        raise Malformed(f"the broker sends a length of more than {MAX_LENGTH_BYTES} bytes")
    return None, at
