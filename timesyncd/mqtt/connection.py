"""
One connection to the broker: aiomqtt and paho, with a reader that is bounded and waits for answers while the broker
talks.

paho reads a packet by three calls of recv, one packet per turn of the event loop, and buffers whatever length a packet
announces. This reader takes 64 KiB at a time, and a packet beyond the limit ends the connection.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Awaitable
from typing import Any, TypeVar

import aiomqtt
from paho.mqtt import client as paho
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from timesyncd.errors import ConfigError, Malformed
from timesyncd.mqtt.packets import PUBLISH, Packet, PacketSplitter, PublishPacket, parse_publish

T = TypeVar("T")

KEEPALIVE_S = 15
#: How long the broker may send nothing while the daemon waits for its answer.
TIMEOUT_S = 5.0
#: How long an answer may take while other messages arrive, which are a sign of life.
PATIENCE_S = 10.0
#: What one call of recv takes: some 25 states of nodes.
READ_BYTES = 65_536
#: While so many messages wait to be handled, nothing more is read.
MAX_WAITING = 256
#: Messages that arrive within this time are read together: a wake-up costs as much as a message.
READ_PAUSE_S = 0.01


#: What the reader needs of paho beside its public methods.
PAHO_PARTS = ("_easy_log", "_packet_handle", "_packet_read", "_send_puback", "_sock_recv")


class PacketReader(paho.Client):
    """
    paho's client with a reader of its own. `messages` are the received ones that were not taken yet, and `arrived` is set
    when there are any. `received_s` and `retained_s` are the event loop's time of the last bytes and of the last
    retained message, and `has_retained` whether one came. `has_more`: the last recv was full. `problem` is why it ended the
    connection itself.
    """

    messages: deque[PublishPacket]
    arrived: asyncio.Event
    received_s: float
    retained_s: float
    has_retained: bool
    has_more: bool
    problem: str | None

    def begin(self, loop: asyncio.AbstractEventLoop, max_packet_bytes: int) -> None:
        """Before it connects."""
        self._loop_time = loop.time
        self._splitter = PacketSplitter(max_packet_bytes)
        self.messages, self.arrived = deque(), asyncio.Event()
        self.received_s = self.retained_s = loop.time()
        self.has_retained = self.has_more = False
        self.problem = None

    def _packet_read(self) -> MQTTErrorCode:
        if len(self.messages) >= MAX_WAITING:
            return MQTTErrorCode.MQTT_ERR_AGAIN
        try:
            data = self._sock_recv(READ_BYTES)
        except BlockingIOError:
            return MQTTErrorCode.MQTT_ERR_AGAIN
        except OSError as error:
            self._easy_log(paho.MQTT_LOG_ERR, "failed to receive on socket: %s", error)
            return MQTTErrorCode.MQTT_ERR_CONN_LOST
        self.has_more = len(data) == READ_BYTES
        if not data:
            return MQTTErrorCode.MQTT_ERR_CONN_LOST
        with self._msgtime_mutex:
            self._last_msg_in = self._last_bytes_received = paho.time_func()  # the names in paho 2.1 and 2.2
        self.received_s = self._loop_time()
        try:
            return self._accept(data)
        except Malformed as error:
            self.problem = str(error)
        except Exception as error:  # noqa: BLE001  packets that confuse paho cost this connection alone
            self.problem = f"the broker sends a packet that cannot be read: {type(error).__name__}: {error}"
        return MQTTErrorCode.MQTT_ERR_PROTOCOL

    def _accept(self, data: bytes) -> MQTTErrorCode:
        """Raises Malformed, and what paho raises for a malformed packet."""
        for packet in self._splitter.split(data):
            if packet.type == PUBLISH:
                self._accept_publish(parse_publish(packet))
                continue
            code = self._handle_by_paho(packet)
            if code != MQTTErrorCode.MQTT_ERR_SUCCESS or self._sock is None:
                return code
        if self.messages:
            self.arrived.set()
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _accept_publish(self, message: PublishPacket) -> None:
        self.messages.append(message)
        if message.retained:
            self.retained_s, self.has_retained = self.received_s, True
        if message.packet_id is not None:
            self._send_puback(message.packet_id)

    def _handle_by_paho(self, packet: Packet) -> MQTTErrorCode:
        self._in_packet = {
            "command": packet.first_byte,
            "have_remaining": 1,
            "remaining_count": [],
            "remaining_mult": 1,
            "remaining_length": len(packet.body),
            "packet": bytearray(packet.body),
            "to_process": 0,
            "pos": 0,
        }
        return self._packet_handle()


class BrokerConnection(aiomqtt.Client):
    """
    Remembers that the broker refused a QoS 1 message, which aiomqtt treats as a confirmation.

    An answer may be late, up to `patience_s`, while other messages arrive: they are a sign of life. Received messages are taken with
    `received`, not with aiomqtt's `messages`.
    """

    _refusal: ReasonCode | None = None
    _paused: asyncio.TimerHandle | None = None
    patience_s = PATIENCE_S

    def __init__(self, host: str, port: int, max_packet_bytes: int, **more: Any) -> None:
        super().__init__(
            host,
            port,
            protocol=aiomqtt.ProtocolVersion.V5,
            timeout=TIMEOUT_S,
            keepalive=KEEPALIVE_S,
            # Without it a message within 40 ms of another one waits for the TCP acknowledgement of that one.
            socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
            properties=properties(PacketTypes.CONNECT, MaximumPacketSize=max_packet_bytes),
            **more,
        )
        if missing := [name for name in PAHO_PARTS if not hasattr(paho.Client, name)]:
            raise ConfigError(
                f"this paho-mqtt has no {missing[0]}, which the daemon needs; install paho-mqtt 2.1 or 2.2"
            )
        # aiomqtt makes the client itself. Its callbacks stay; only the reader differs.
        self._client.__class__ = PacketReader
        self.reader: PacketReader = self._client  # type: ignore[assignment]
        self.reader.begin(asyncio.get_running_loop(), max_packet_bytes)

    def take_refusal(self) -> ReasonCode | None:
        """Why the broker refused the last message; None: it accepted it. Clears the reason."""
        refusal, self._refusal = self._refusal, None
        return refusal

    async def received(self) -> deque[PublishPacket]:
        """The messages that wait, at least one; take them from the left. Raises MqttError once the connection ended."""
        reader = self.reader
        while not reader.messages:
            if self._disconnected.done():
                raise aiomqtt.MqttError("the connection ended") from self._disconnected.exception()
            reader.arrived.clear()
            await reader.arrived.wait()
        return reader.messages

    def _on_socket_open(self, client: paho.Client, userdata: Any, sock: Any) -> None:
        # In the thread that connects.
        self._loop.call_soon_threadsafe(self._begin_reading, sock)

    def _begin_reading(self, sock: Any) -> None:
        self._misc_task = self._loop.create_task(self._misc_loop())
        self._disconnected.add_done_callback(lambda _: self.reader.arrived.set())
        self._resume_reading(sock)

    def _resume_reading(self, sock: Any) -> None:
        self._paused = None
        if sock.fileno() < 0:
            return
        self._loop.add_reader(sock.fileno(), self._read, sock)
        if _has_pending(sock):
            self._read(sock)

    def _read(self, sock: Any) -> None:
        reader = self.reader
        reader.loop_read()
        while _has_pending(sock) and len(reader.messages) < MAX_WAITING:
            reader.loop_read()
        if reader.messages and self._paused is None and sock.fileno() >= 0:
            self._loop.remove_reader(sock.fileno())
            pause_s = 0.0 if reader.has_more else READ_PAUSE_S
            self._paused = self._loop.call_later(pause_s, self._resume_reading, sock)

    def _on_socket_close(self, client: paho.Client, userdata: Any, sock: Any) -> None:
        if self._paused is not None:
            self._paused.cancel()
        super()._on_socket_close(client, userdata, sock)

    def _on_publish(
        self, client: paho.Client, userdata: Any, mid: int, reason_code: ReasonCode, properties: Properties
    ) -> None:
        self._refusal = reason_code if reason_code.is_failure else None
        super()._on_publish(client, userdata, mid, reason_code, properties)

    async def _wait_for(self, fut: Awaitable[T], timeout: float | None) -> T:
        """As aiomqtt's, but silence of the broker counts, not the time; and the end of the connection ends it."""
        limit_s = self.timeout if timeout is None else timeout
        loop, answer, ended = self._loop, asyncio.ensure_future(fut), self._disconnected
        futures: set[asyncio.Future[Any]] = {answer, ended}
        began_s = loop.time()
        try:
            while not answer.done():
                # What was read and not handled yet is no silence of the broker.
                heard_s = loop.time() if self.reader.messages else max(began_s, self.reader.received_s)
                left_s = min(heard_s + limit_s, began_s + max(self.patience_s, limit_s)) - loop.time()
                if left_s <= 0:
                    raise aiomqtt.MqttError("the broker does not answer")
                await asyncio.wait(futures, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                if ended.done() and not answer.done():
                    raise aiomqtt.MqttError("the connection ended") from ended.exception()
            return answer.result()
        finally:
            answer.cancel()


def _has_pending(sock: Any) -> bool:
    """Whether TLS decrypted bytes that no recv took: the socket itself does not become readable for them."""
    return isinstance(sock, ssl.SSLSocket) and sock.fileno() >= 0 and sock.pending() > 0


def properties(packet_type: int, **values: object) -> Properties:
    """MQTT 5 properties with those of the values that are not None."""
    found = Properties(packet_type)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        if value is not None:
            setattr(found, name, value)
    return found
