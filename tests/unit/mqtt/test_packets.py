"""A stream of bytes as packets of MQTT 5, and PUBLISH."""

from __future__ import annotations

import pytest
from broker_relay import encoded, variable_length
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.errors import Malformed
from timesyncd.mqtt.packets import MAX_LENGTH_BYTES, Packet, PacketSplitter, PublishPacket, parse_publish

packets = st.builds(Packet, st.integers(0, 255), st.binary(max_size=400))


@given(st.lists(packets, max_size=8), st.lists(st.integers(1, 60), min_size=1, max_size=8))
def test_a_stream_is_the_same_packets_however_it_is_cut(sent: list[Packet], sizes: list[int]) -> None:
    """A recv may end anywhere, within the length too."""
    stream, splitter = b"".join(map(encoded, sent)), PacketSplitter(1_000)
    found: list[Packet] = []
    turn = 0
    while stream:
        size = sizes[turn % len(sizes)]
        found += splitter.split(stream[:size])
        stream, turn = stream[size:], turn + 1

    assert found == sent


def test_a_packet_beyond_the_limit_is_an_error_at_its_header() -> None:
    """Nothing of it is kept: the error comes with the length."""
    splitter = PacketSplitter(1_000)
    assert splitter.split(encoded(Packet(0x30, bytes(997)))) == [Packet(0x30, bytes(997))]
    with pytest.raises(Malformed, match="a packet of 998 bytes; at most 1000 are allowed"):
        splitter.split(b"\x30" + variable_length(998))


@pytest.mark.parametrize("data", [b"\x30\xff\xff\xff\xff", b"\x30\x80\x80\x80\x80\x01"])
def test_a_length_of_five_bytes_is_an_error(data: bytes) -> None:
    """The standard has four at most."""
    with pytest.raises(Malformed, match=f"more than {MAX_LENGTH_BYTES} bytes"):
        PacketSplitter(1_000).split(data)


@given(st.text(max_size=40), st.binary(max_size=100), st.booleans(), st.none() | st.integers(0, 65_535), st.binary())
def test_publish_is_read_back(
    topic: str, payload: bytes, retained: bool, packet_id: int | None, properties: bytes
) -> None:
    """Topic, payload, the retain flag and the packet's number; the properties are skipped."""
    name = topic.encode()
    number = b"" if packet_id is None else packet_id.to_bytes(2)
    body = len(name).to_bytes(2) + name + number + variable_length(len(properties)) + properties + payload
    packet = Packet(0x30 | (packet_id is not None) << 1 | retained, body)

    assert parse_publish(packet) == PublishPacket(topic, payload, retained, packet_id)


@given(st.integers(0x30, 0x3F), st.binary(max_size=40))
def test_any_publish_is_a_message_or_an_error(first_byte: int, body: bytes) -> None:
    """Whatever the broker sends."""
    try:
        message = parse_publish(Packet(first_byte, body))
    except Malformed:
        return
    assert len(message.payload) < len(body)


def test_qos_2_and_a_broken_topic_are_errors() -> None:
    """The daemon subscribes at QoS 1 at most."""
    with pytest.raises(Malformed, match="QoS 2"):
        parse_publish(Packet(0x34, b"\x00\x01t\x00\x01\x00"))
    with pytest.raises(Malformed, match="no UTF-8"):
        parse_publish(Packet(0x30, b"\x00\x01\xff\x00"))
