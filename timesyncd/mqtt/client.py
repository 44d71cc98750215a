"""
The link to the MQTT broker: publishes the outbox, receives the subscribed channels, and reconnects for ever.

It logs once why the broker is unreachable, and separately each error that no waiting removes: a wrong password, an
untrusted certificate, a topic that the broker's ACL denies.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

import aiomqtt
from aiomqtt.exceptions import MqttConnectError
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from timesyncd.clocks import SystemClocks
from timesyncd.config import MqttSettings
from timesyncd.driver import Traffic, backoff_s
from timesyncd.errors import ConfigError
from timesyncd.messages.node import Availability, Message
from timesyncd.mqtt.connection import PATIENCE_S, BrokerConnection, properties
from timesyncd.mqtt.inbox import Inbox, ReceivedMessage, decode_all
from timesyncd.mqtt.outbox import Outbox, OutgoingMessage
from timesyncd.mqtt.packets import PublishPacket
from timesyncd.mqtt.tls import tls_context
from timesyncd.mqtt.topics import AVAILABILITY, DAY_S, MAX_MESSAGE_BYTES, MqttChannel, channel_of, encode, topic_of

log = logging.getLogger(__name__)

OFFLINE_TIMEOUT_S = 1.0
RETRY_S = 1.0
#: The pause between two attempts is then 4 to 12 s: a broker that is back gets its daemons back within 15 s.
MAX_DOUBLED = 4
#: How long the answer to the subscriptions may take while messages arrive: it may come behind all retained ones.
SUBSCRIBE_PATIENCE_S = 60.0
#: The broker's retained messages have arrived when it sent none for so long.
QUIET_S = 0.5
#: After this time messages at QoS 1 are sent although retained ones still arrive.
MAX_UNSETTLED_S = 60.0
#: Messages published within this time are sent together, except events: a wake-up costs four times as much as a
#: message.
SEND_DELAY_S = 0.05
#: Subscriptions in one packet.
MAX_SUBSCRIBED_AT_ONCE = 64
#: Messages received before other tasks run: about 10 ms of work.
MAX_RECEIVED_AT_ONCE = 64
#: A shorter connection counts as a failed attempt: two daemons with one name disconnect each other.
STABLE_CONNECTION_S = 30.0
#: The retained availability expires a day after its last publication.
AVAILABILITY_INTERVAL_S = DAY_S / 3
#: How often nodes that are silent for long are forgotten.
SWEEP_INTERVAL_S = 10.0


class ConnectionErrors(logging.Handler):
    """
    Explains why a connection failed. `logger` is for the connections of one link: paho only logs a TLS alert of the
    broker.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.logger = logging.Logger("paho", logging.ERROR)  # noqa: LOG001 (one per link, with the same lifetime)
        self.logger.addHandler(self)
        self._alert: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        alert = re.search(r"\[SSL: \w*ALERT\w*\] (.*) \(", record.getMessage())
        self._alert = alert[1] if alert else self._alert

    def permanent(self, error: BaseException) -> str | None:
        """
        The error that the operator must remove before a connection can succeed; None: the broker may just be down.
        """
        alert, self._alert = self._alert, None
        match error, error.__context__:
            case ConfigError() | MqttConnectError(), _:
                return str(error)
            case UnicodeError(), _:
                return f"mqtt.host is not a host name: {error}"
            case _, ssl.SSLCertVerificationError() as failure:
                return f"the broker's certificate is not trusted: {failure.verify_message}"
            case _, ssl.SSLError() as failure:
                return f"TLS: {failure}"
        return None if alert is None else f"the broker rejects our certificate: {alert}"


class MqttLink:
    """
    One daemon's link to the broker. It subscribes to `channels`, and of others to what is selected, and passes each valid
    message of another daemon to `on_message`.

    `publish`, `clear` and `forget` change the outbox: they neither block nor raise. Call them in the event loop's
    thread. `failed` counts the messages for which `on_message` raised, `traffic` the messages in both directions.
    `compares_states` and `wants`: see Inbox. `discovery`: messages by topic that are published beside the availability, as often.
    `on_settled` is called once a connection, when the retained messages have arrived: with whether there were any.
    """

    def __init__(
        self,
        settings: MqttSettings,
        node: str,
        incarnation: int,
        channels: Sequence[MqttChannel],
        on_message: Callable[[ReceivedMessage], None],
        compares_states: bool = False,
        wants: Callable[[str, str, bytes], bool] = decode_all,
        discovery: Mapping[str, bytes] | None = None,
        on_settled: Callable[[bool], None] = lambda _has_retained: None,
    ) -> None:
        self.connected = False
        self.published = 0
        self.failed = 0
        self.traffic = Traffic()
        self._settings = settings
        self._node = node
        self._incarnation = incarnation
        self._filters = {channel: {channel.pattern(settings.topic_prefix, node)} for channel in channels}
        self._filters_changed = asyncio.Event()
        self._subscribed: set[str] = set()
        self._on_settled = on_settled
        self._discovery = discovery or {}
        self._on_message = on_message
        self._clocks = SystemClocks()
        self._inbox = Inbox(settings.topic_prefix, node, compares_states, wants)
        self._outbox = Outbox(node)
        self._ready = asyncio.Event()
        self._urgent = asyncio.Event()
        self._errors = ConnectionErrors()
        self._is_settled = False
        self._failures = 0
        self._problem: str | None = None
        self._logged: set[str] = set()
        self._logged_failures: set[str] = set()

    @property
    def dropped(self) -> int:
        """
        The number of messages dropped because the queue was full or they expired, while the broker was down or slow.
        """
        return self._outbox.dropped

    @property
    def rejected(self) -> int:
        """The number of received messages that are invalid."""
        return self._inbox.rejected

    @property
    def outdated(self) -> int:
        """The number of received messages older than an accepted one."""
        return self._inbox.outdated

    def publish(self, message: Message) -> None:
        """Queues a message. On a retained topic it replaces an unsent one; a full queue drops its oldest message."""
        self._outbox.put(message, self._clocks.boottime_ns())
        self._ready.set()
        if self._outbox.is_urgent:
            self._urgent.set()

    def select(self, channel: MqttChannel, what: Collection[str]) -> None:
        """
        From now on subscribe this channel to these alone: parts of jobs where its topics have parts, else subjects. To be
        called as often as convenient.
        """
        filters = {channel.selected(self._settings.topic_prefix, each) for each in what}
        if self._filters.get(channel, set()) != filters:
            self._filters[channel] = filters
            self._filters_changed.set()

    def clear(self, message_type: type[Message], subject: str) -> None:
        """Removes the retained message of this type and subject from the broker."""
        self._outbox.clear(channel_of(message_type), subject)
        self._ready.set()

    def forget(self, message_type: type[Message], subject: str) -> None:
        """
        Stops repeating the message of this type and subject after a reconnect: another daemon publishes it from now on.
        """
        self._outbox.forget(channel_of(message_type), subject)

    async def run(self) -> None:
        """Runs until cancelled. It then publishes offline, if the broker replies within OFFLINE_TIMEOUT_S."""
        while True:
            began_ns = self._clocks.boottime_ns()
            # In a task of its own: asyncio.wait is the only call here that never loses a cancellation.
            session = asyncio.create_task(self._session(), name="mqtt session")
            try:
                await asyncio.wait([session])
            finally:
                await _cancel_and_wait(session)
            try:
                session.result()
            except* (aiomqtt.MqttError, ConfigError, UnicodeError) as group:
                self._on_disconnected(group.exceptions[0], began_ns)
            except* Exception as group:  # noqa: BLE001  packets that confuse a library cost this session alone
                self._log_failure("session", group.exceptions[0])
                self._on_disconnected(group.exceptions[0], began_ns)
            await asyncio.sleep(backoff_s(min(self._failures, MAX_DOUBLED), RETRY_S, random.random()))

    async def _session(self) -> None:
        """One connection, until it breaks. Raises MqttError, ConfigError, or a group of them."""
        tls = await asyncio.to_thread(tls_context, self._settings)
        async with self._client(tls) as client:
            try:
                await self._publish_availability(client, online=True)
                if refusal := client.take_refusal():
                    # With a user that may not publish this node's topics every message would be lost without an error.
                    raise ConfigError(f"the broker refuses {self._availability_topic} from this daemon: {refusal}")
                self._inbox.reconnected(self._clocks.boottime_ns())
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._receive(client))
                    self._subscribed.clear()
                    await self._subscribe(client)
                    self._on_connected()
                    await self._publish_discovery(client)
                    if refusal := client.take_refusal():
                        text = (
                            "mqtt: the broker refuses the discovery messages of this daemon: %s; allow them in its ACL"
                        )
                        log.warning(text, refusal)
                    group.create_task(self._send(client))
                    group.create_task(self._settle(client))
                    group.create_task(self._keep_subscribed(client))
                    group.create_task(self._repeat_availability(client))
                    group.create_task(self._forget_silent())
            except asyncio.CancelledError:
                client.timeout = client.patience_s = OFFLINE_TIMEOUT_S
                await self._publish_availability(client, online=False)
                raise
            finally:
                self.connected = self._is_settled = False
                self._problem = client.reader.problem

    def _client(self, tls: ssl.SSLContext | None) -> BrokerConnection:
        settings = self._settings
        return BrokerConnection(
            settings.host,
            settings.broker_port,
            # A message somewhat above the limit is received and counted as rejected; the broker does not forward a far
            # larger one.
            max_packet_bytes=4 * MAX_MESSAGE_BYTES,
            username=settings.username,
            password=settings.password.reveal().get_secret_value() if settings.password else None,
            identifier=f"timesyncd-{self._node}",
            will=aiomqtt.Will(
                self._availability_topic,
                self._availability(online=False),
                AVAILABILITY.qos,
                retain=True,
                properties=properties(PacketTypes.WILLMESSAGE, MessageExpiryInterval=AVAILABILITY.expiry_s),
            ),
            tls_context=tls,
            logger=self._errors.logger,
        )

    @property
    def _availability_topic(self) -> str:
        return AVAILABILITY.topic(self._settings.topic_prefix, self._node)

    def _availability(self, online: bool) -> bytes:
        return encode(Availability(online=online, incarnation=self._incarnation))

    async def _publish_availability(self, client: aiomqtt.Client, online: bool) -> None:
        expiry = properties(PacketTypes.PUBLISH, MessageExpiryInterval=AVAILABILITY.expiry_s)
        payload = self._availability(online)
        await client.publish(self._availability_topic, payload, AVAILABILITY.qos, retain=True, properties=expiry)

    async def _repeat_availability(self, client: BrokerConnection) -> None:
        while True:
            await asyncio.sleep(AVAILABILITY_INTERVAL_S)
            await self._publish_availability(client, online=True)
            await self._publish_discovery(client)

    async def _publish_discovery(self, client: BrokerConnection) -> None:
        expiry = properties(PacketTypes.PUBLISH, MessageExpiryInterval=AVAILABILITY.expiry_s)
        for topic, payload in self._discovery.items():
            await client.publish(topic, payload, AVAILABILITY.qos, retain=True, properties=expiry)

    async def _keep_subscribed(self, client: BrokerConnection) -> None:
        while True:
            await self._filters_changed.wait()
            await self._subscribe(client)

    async def _subscribe(self, client: BrokerConnection) -> None:
        """To what is wanted and not subscribed yet; then it ends the subscriptions that are not wanted any more."""
        self._filters_changed.clear()
        qos = {each: channel.qos for channel, filters in self._filters.items() for each in filters}
        new = [each for each in qos if each not in self._subscribed]
        for first in range(0, len(new), MAX_SUBSCRIBED_AT_ONCE):
            some = new[first : first + MAX_SUBSCRIBED_AT_ONCE]
            await self._subscribe_to(client, {each: qos[each] for each in some})
        if unwanted := sorted(self._subscribed - qos.keys()):
            await client.unsubscribe(unwanted)
        self._subscribed = set(qos)

    async def _subscribe_to(self, client: BrokerConnection, qos: Mapping[str, int]) -> None:
        """To these filters, each at its QoS."""
        patterns = list(qos)
        # noLocal keeps the broker from returning our own messages, except retained ones, which the inbox ignores.
        options = [SubscribeOptions(qos=each, noLocal=True) for each in qos.values()]
        client.patience_s = SUBSCRIBE_PATIENCE_S
        replies = await client.subscribe(list(zip(patterns, options, strict=True)))
        client.patience_s = PATIENCE_S
        if len(replies) != len(patterns):
            raise aiomqtt.MqttError(
                f"the broker answers {len(patterns)} subscriptions with {len(replies)} reason codes"
            )
        for pattern, reply in zip(patterns, replies, strict=True):
            if isinstance(reply, ReasonCode) and reply.is_failure:
                log.warning("mqtt: the broker refuses the subscription to %s: %s", pattern, reply)

    async def _settle(self, client: BrokerConnection) -> None:
        """Lets messages at QoS 1 go once the retained ones are here: their acknowledgements would wait behind those."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while loop.time() - began_s < MAX_UNSETTLED_S:
            quiet_s = loop.time() - max(began_s, client.reader.retained_s)
            if quiet_s >= QUIET_S or not self._subscribed:
                break
            await asyncio.sleep(QUIET_S - quiet_s)
        self._is_settled = True
        self._ready.set()
        self._on_settled(client.reader.has_retained)

    async def _send(self, client: BrokerConnection) -> None:
        while True:
            self._ready.clear()
            self._urgent.clear()
            while outgoing := self._outbox.next(self._clocks.boottime_ns(), int(self._is_settled)):
                try:
                    await self._send_one(client, outgoing)
                except (aiomqtt.MqttError, asyncio.CancelledError):
                    self._outbox.requeue(outgoing)
                    raise
                self._outbox.mark_sent(outgoing)
                self.published += 1
            await self._ready.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(SEND_DELAY_S):
                    await self._urgent.wait()

    async def _send_one(self, client: BrokerConnection, outgoing: OutgoingMessage) -> None:
        channel, prefix = outgoing.channel, self._settings.topic_prefix
        if outgoing.message is None:
            # At QoS 1, since it is not repeated.
            await client.publish(channel.topic(prefix, outgoing.subject), b"", qos=1, retain=True)
            return
        topic = topic_of(outgoing.message, prefix, outgoing.subject)
        more = properties(
            PacketTypes.PUBLISH,
            MessageExpiryInterval=outgoing.remaining_s(self._clocks.boottime_ns()),
            ContentType=channel.content_type,
        )
        payload = encode(outgoing.message)
        await client.publish(topic, payload, channel.qos, channel.retained, more)
        self.traffic.sent(len(payload))
        if (refusal := client.take_refusal()) and topic not in self._logged:
            self._logged.add(topic)
            log.warning("mqtt: the broker refuses %s from this daemon: %s", topic, refusal)

    async def _forget_silent(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            self._inbox.sweep(self._clocks.boottime_ns())

    async def _receive(self, client: BrokerConnection) -> None:
        while True:
            messages = await client.received()
            # An await costs as much as handling a message, so handle several; then let other tasks run.
            for _ in range(min(len(messages), MAX_RECEIVED_AT_ONCE)):
                self._handle(messages.popleft())
            await asyncio.sleep(0)

    def _handle(self, message: PublishPacket) -> None:
        now_ns = self._clocks.boottime_ns()
        self.traffic.received(len(message.payload))
        received = self._inbox.receive(message.topic, message.payload, message.retained, now_ns)
        if received is None:
            return
        try:
            self._on_message(received)
        except Exception as error:  # noqa: BLE001  it costs this message alone, and is counted and logged
            self.failed += 1
            self._log_failure(received.channel.name, error)

    def _log_failure(self, part: str, error: BaseException) -> None:
        """Log an unexpected error with its traceback: once for each part and type."""
        key = f"{part}: {type(error).__name__}"
        if key not in self._logged_failures:
            self._logged_failures.add(key)
            text = "mqtt: %s: an unexpected error; further ones are counted and not logged"
            log.error(text, part, exc_info=error)

    def _on_connected(self) -> None:
        self.connected = True
        self._outbox.requeue_all()
        if self._logged:
            log.info("mqtt: broker %s:%d: connected again", self._settings.host, self._settings.broker_port)
        self._logged.clear()

    def _on_disconnected(self, error: BaseException, began_ns: int) -> None:
        lasted = self._clocks.boottime_ns() - began_ns > STABLE_CONNECTION_S * 1e9
        self._failures = 1 if lasted else self._failures + 1
        # Log once that the broker is unreachable, and once each permanent error, even one that appears only later.
        permanent = self._errors.permanent(error) or self._problem
        key = permanent or "unreachable"
        if key not in self._logged:
            reason = permanent or (
                f"{error}: {error.__cause__}" if isinstance(error.__cause__, aiomqtt.MqttError) else error
            )
            log.info("mqtt: broker %s:%d: not connected: %s", self._settings.host, self._settings.broker_port, reason)
        self._logged.add(key)


async def _cancel_and_wait(session: asyncio.Task[None]) -> None:
    """Cancels until the task ends: Python 3.11 loses a cancellation that arrives while a TaskGroup's child fails."""
    while not session.done():
        session.cancel()
        await asyncio.wait([session], timeout=2 * OFFLINE_TIMEOUT_S)
    if not session.cancelled():
        session.exception()  # retrieved, or asyncio logs that it never was
