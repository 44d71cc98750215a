"""
The connection to the broker: publishes what waits, receives what was asked for, comes back for ever.

What a broker says no to, in words: to a connection, where no waiting mends it, and to a message.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import aiomqtt
from aiomqtt.exceptions import MqttConnectError
from paho.mqtt import client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from timesyncd.clocks import SystemClocks
from timesyncd.config import MqttSettings
from timesyncd.driver import backoff_s
from timesyncd.errors import ConfigError
from timesyncd.messages.node import Availability, Message
from timesyncd.mqtt.inbox import Inbox, ReceivedMessage
from timesyncd.mqtt.outbox import Outbox, OutgoingMessage
from timesyncd.mqtt.tls import tls_context
from timesyncd.mqtt.topics import AVAILABILITY, DAY_S, MAX_MESSAGE_BYTES, MqttChannel, channel_of, encode


class BrokerConnection(aiomqtt.Client):
    """Notes which message at QoS 1 the broker did not take; for aiomqtt a refusal is a confirmation like any other."""

    _refusal: ReasonCode | None = None

    def take_refusal(self) -> ReasonCode | None:
        """Why the last message was not taken, once; None: it was."""
        refusal, self._refusal = self._refusal, None
        return refusal

    def _on_publish(
        self, client: paho.Client, userdata: Any, mid: int, reason_code: ReasonCode, properties: Properties
    ) -> None:
        self._refusal = reason_code if reason_code.is_failure else None
        super()._on_publish(client, userdata, mid, reason_code, properties)


class ConnectionErrors(logging.Handler):
    """`logger` is for one link's connections: paho logs at each try, and does not raise, that the broker's TLS said no."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.logger = logging.Logger("paho", logging.ERROR)  # noqa: LOG001 (one a link, and it ends with it)
        self.logger.addHandler(self)
        self._alert: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        alert = re.search(r"\[SSL: \w*ALERT\w*\] (.*) \(", record.getMessage())
        self._alert = alert[1] if alert else self._alert

    def of(self, error: BaseException) -> str | None:
        """What must be changed before there can be a connection; None: nothing, the broker may just be away."""
        alert, self._alert = self._alert, None
        match error, error.__context__:
            case ConfigError() | MqttConnectError(), _:
                return str(error)
            case UnicodeError(), _:
                return f"mqtt.host is no host name: {error}"
            case _, ssl.SSLCertVerificationError() as doubt:
                return f"its certificate is not trusted: {doubt.verify_message}"
            case _, ssl.SSLError() as failure:
                return f"TLS: {failure}"
        return None if alert is None else f"it does not take our certificate: {alert}"


log = logging.getLogger(__name__)

KEEPALIVE_S = 15
TIMEOUT_S = 5.0
OFFLINE_TIMEOUT_S = 1.0
RETRY_S = 1.0
#: What is published within this time goes out together, but for events: a wake-up costs four times what a message does.
SEND_DELAY_S = 0.05
#: So many messages are taken in one go: some 10 ms.
MAX_RECEIVED_AT_ONCE = 64
#: A connection that did not last this long counts as a failed try: two daemons of one name throw each other out.
STABLE_CONNECTION_S = 30.0
#: What the broker keeps of us ends a day after it was said last.
AVAILABILITY_INTERVAL_S = DAY_S / 3


class MqttLink:
    """
    One daemon's link to the broker. `wanted` are the channels to receive; our own messages never come back.

    `publish` and `clear` only note what is to go out: they neither wait nor raise. They belong to the event loop's thread.
    """

    def __init__(
        self,
        settings: MqttSettings,
        node: str,
        incarnation: int,
        wanted: Sequence[MqttChannel],
        on_message: Callable[[ReceivedMessage], None],
    ) -> None:
        self.connected = False
        self.published = 0
        self._settings = settings
        self._node = node
        self._incarnation = incarnation
        self._wanted = wanted
        self._on_message = on_message
        self._clocks = SystemClocks()
        self._inbox = Inbox(settings.topic_prefix, node)
        self._outbox = Outbox(node)
        self._ready = asyncio.Event()
        self._urgent = asyncio.Event()
        self._refusals = ConnectionErrors()
        self._incoming: asyncio.Queue[aiomqtt.Message] = asyncio.Queue()
        self._failures = 0
        self._told: set[str] = set()

    @property
    def dropped(self) -> int:
        """Messages that were lost for want of room, or waited too long, while the broker was away or slow."""
        return self._outbox.dropped

    @property
    def rejected(self) -> int:
        """Messages received that no timesyncd wrote."""
        return self._inbox.rejected

    @property
    def outdated(self) -> int:
        """Messages received that were older than one already taken."""
        return self._inbox.outdated

    def publish(self, message: Message) -> None:
        """On a retained topic the newest replaces an unsent one; other messages queue, and a full queue drops its oldest."""
        self._outbox.put(message, self._clocks.boottime_ns())
        self._ready.set()
        if self._outbox.is_urgent:
            self._urgent.set()

    def clear(self, message_type: type[Message], subject: str) -> None:
        """Remove the retained message of this type about this subject from the broker."""
        self._outbox.clear(channel_of(message_type), subject)
        self._ready.set()

    def forget(self, message_type: type[Message], subject: str) -> None:
        """Another daemon publishes this from now on: what was published here of it is not repeated after a reconnect."""
        self._outbox.forget(channel_of(message_type), subject)

    async def run(self) -> None:
        """Until cancelled; then says offline, if the broker answers within a second."""
        while True:
            began_ns = self._clocks.boottime_ns()
            # A task of its own: that it is awaited is the one thing here in which no cancellation is lost.
            session = asyncio.create_task(self._session(), name="mqtt session")
            try:
                await asyncio.wait([session])
            finally:
                await _cancel_and_wait(session)
            try:
                session.result()
            except* (aiomqtt.MqttError, ConfigError, UnicodeError) as group:
                self._went_offline(group.exceptions[0], began_ns)
            await asyncio.sleep(backoff_s(self._failures, RETRY_S, random.random()))

    async def _session(self) -> None:
        """One connection, until it breaks: MqttError, or a group of them."""
        tls = await asyncio.to_thread(tls_context, self._settings)
        async with self._client(tls) as client:
            try:
                await self._say(client, online=True)
                if refusal := client.take_refusal():
                    # Connected as somebody who may not speak for this node, it would be heard by nobody and not know.
                    raise ConfigError(f"it does not take {self._availability_topic} from us: {refusal}")
                await self._subscribe(client)
                self._went_online()
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._send(client))
                    group.create_task(self._receive(client))
                    group.create_task(self._reaffirm(client))
            except asyncio.CancelledError:
                client.timeout = OFFLINE_TIMEOUT_S
                await self._say(client, online=False)
                raise
            finally:
                self.connected = False

    def _client(self, tls: ssl.SSLContext | None) -> BrokerConnection:
        settings = self._settings
        return BrokerConnection(
            settings.host,
            settings.broker_port,
            username=settings.username,
            password=settings.password.reveal().get_secret_value() if settings.password else None,
            identifier=f"timesyncd-{self._node}",
            protocol=aiomqtt.ProtocolVersion.V5,
            will=aiomqtt.Will(
                self._availability_topic,
                self._availability(online=False),
                AVAILABILITY.qos,
                retain=True,
                properties=_properties(PacketTypes.WILLMESSAGE, MessageExpiryInterval=AVAILABILITY.expiry_s),
            ),
            tls_context=tls,
            queue_type=cast("type[asyncio.Queue[aiomqtt.Message]]", lambda maxsize: self._incoming),
            logger=self._refusals.logger,
            timeout=TIMEOUT_S,
            keepalive=KEEPALIVE_S,
            # Else a message within 40 ms of another waits for the broker's TCP to acknowledge that one.
            socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
            # What is a little too large is received and counted; what is far too large the broker keeps to itself.
            properties=_properties(PacketTypes.CONNECT, MaximumPacketSize=4 * MAX_MESSAGE_BYTES),
        )

    @property
    def _availability_topic(self) -> str:
        return AVAILABILITY.topic(self._settings.topic_prefix, self._node)

    def _availability(self, online: bool) -> bytes:
        return encode(Availability(online=online, incarnation=self._incarnation))

    async def _say(self, client: aiomqtt.Client, online: bool) -> None:
        expiry = _properties(PacketTypes.PUBLISH, MessageExpiryInterval=AVAILABILITY.expiry_s)
        payload = self._availability(online)
        await client.publish(self._availability_topic, payload, AVAILABILITY.qos, retain=True, properties=expiry)

    async def _reaffirm(self, client: aiomqtt.Client) -> None:
        while True:
            await asyncio.sleep(AVAILABILITY_INTERVAL_S)
            await self._say(client, online=True)
            _raise_if_cancelled()

    async def _subscribe(self, client: aiomqtt.Client) -> None:
        patterns = [channel.pattern(self._settings.topic_prefix, self._node) for channel in self._wanted]
        if not patterns:
            return
        # Our own messages would come back only to be passed over; noLocal spares that, but not for retained ones.
        options = [SubscribeOptions(qos=channel.qos, noLocal=True) for channel in self._wanted]
        answers = await client.subscribe(list(zip(patterns, options, strict=True)))
        for pattern, answer in zip(patterns, answers, strict=True):
            if isinstance(answer, ReasonCode) and answer.is_failure:
                log.warning("mqtt: the broker refuses the subscription to %s: %s", pattern, answer)

    async def _send(self, client: BrokerConnection) -> None:
        while True:
            self._ready.clear()
            self._urgent.clear()
            while outgoing := self._outbox.next(self._clocks.boottime_ns()):
                try:
                    await self._send_one(client, outgoing)
                except (aiomqtt.MqttError, asyncio.CancelledError):
                    self._outbox.failed(outgoing)
                    raise
                self._outbox.sent(outgoing)
                self.published += 1
                _raise_if_cancelled()
            await self._ready.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(SEND_DELAY_S):
                    await self._urgent.wait()

    async def _send_one(self, client: BrokerConnection, outgoing: OutgoingMessage) -> None:
        channel = outgoing.channel
        topic = channel.topic(self._settings.topic_prefix, outgoing.subject)
        if outgoing.message is None:
            # Confirmed, since it is not repeated.
            await client.publish(topic, b"", qos=1, retain=True)
            return
        properties = _properties(
            PacketTypes.PUBLISH,
            MessageExpiryInterval=outgoing.left_s(self._clocks.boottime_ns()),
            ContentType=channel.content_type,
        )
        await client.publish(topic, encode(outgoing.message), channel.qos, channel.retained, properties)
        if (refusal := client.take_refusal()) and topic not in self._told:
            self._told.add(topic)
            log.warning("mqtt: the broker does not take %s from us: %s", topic, refusal)

    async def _receive(self, client: aiomqtt.Client) -> None:
        async for message in client.messages:
            self._take(message)
            # Waiting costs as much as taking: not for each. But others want to go on as well.
            for _ in range(min(self._incoming.qsize(), MAX_RECEIVED_AT_ONCE)):
                self._take(self._incoming.get_nowait())
            await asyncio.sleep(0)

    def _take(self, message: aiomqtt.Message) -> None:
        payload = message.payload if isinstance(message.payload, bytes) else b""
        received = self._inbox.take(str(message.topic), payload, message.retain, self._clocks.boottime_ns())
        if received is not None:
            self._on_message(received)

    def _went_online(self) -> None:
        self.connected = True
        self._inbox.reconnected(self._clocks.boottime_ns())
        self._outbox.renew()
        if self._told:
            log.info("mqtt: broker %s:%d: back", self._settings.host, self._settings.broker_port)
        self._told.clear()

    def _went_offline(self, error: BaseException, began_ns: int) -> None:
        lasted = self._clocks.boottime_ns() - began_ns > STABLE_CONNECTION_S * 1e9
        self._failures = 1 if lasted else self._failures + 1
        # A broker that is away comes back by itself; what does not mend itself is told even if it shows only then.
        refusal = self._refusals.of(error)
        key = refusal or "away"
        if key not in self._told:
            why = refusal or (
                f"{error}: {error.__cause__}" if isinstance(error.__cause__, aiomqtt.MqttError) else error
            )
            log.info("mqtt: broker %s:%d: lost: %s", self._settings.host, self._settings.broker_port, why)
        self._told.add(key)


async def _cancel_and_wait(session: asyncio.Task[None]) -> None:
    """Python 3.11 loses a cancellation that comes as a TaskGroup's child fails: then another one is needed."""
    while not session.done():
        session.cancel()
        await asyncio.wait([session], timeout=2 * OFFLINE_TIMEOUT_S)
    if not session.cancelled():
        session.exception()  # looked at, else Python complains


def _raise_if_cancelled() -> None:
    """Python 3.11's wait_for, which aiomqtt uses, loses a cancellation that comes as the wait ends."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _properties(packet_type: int, **values: object) -> Properties:
    """Those MQTT 5 properties that are not None."""
    properties = Properties(packet_type)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        if value is not None:
            setattr(properties, name, value)
    return properties
