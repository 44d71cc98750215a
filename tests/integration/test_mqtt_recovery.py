"""A link whose broker sends more than it can take at once: it stays connected, and what is too large ends its connection."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

import aiomqtt
import pytest
from broker_relay import BrokerFault, BrokerRelay, variable_length
from mqtt_links import eventually, running
from wire import cloud_event, hub_state, node_state

from timesyncd.config import TOPIC_PREFIX, MqttSettings
from timesyncd.messages.fleet import CloudEvent, HubState
from timesyncd.messages.node import NodeState
from timesyncd.mqtt import connection
from timesyncd.mqtt.client import MqttLink
from timesyncd.mqtt.inbox import ReceivedMessage
from timesyncd.mqtt.topics import EVENT, HUB_STATE, HUB_SUBSCRIPTIONS, MAX_MESSAGE_BYTES, NODE_STATE, encode
from timesyncd.simulation.bed.broker import Mosquitto

pytestmark = pytest.mark.integration

RETAINED = 1_000


@pytest.fixture
async def relay(mosquitto: Mosquitto) -> AsyncIterator[BrokerRelay]:
    async with BrokerRelay(mosquitto.port) as between:
        yield between


def settings(port: int) -> MqttSettings:
    return MqttSettings.model_validate({"host": "127.0.0.1", "port": port})


async def retain_states(broker: Mosquitto, count: int) -> None:
    async with aiomqtt.Client(broker.host, broker.port) as fleet:
        for index in range(count):
            topic = NODE_STATE.topic(TOPIC_PREFIX, f"n{index}")
            await fleet.publish(topic, encode(node_state(f"n{index}", 1, 1)), qos=1, retain=True)


async def test_a_hub_stays_connected_while_it_takes_in_what_is_retained(
    mosquitto: Mosquitto, relay: BrokerRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    All retained states take far longer than the broker's answers may; yet there is one connection, and the hub's own
    messages arrive: a state before the burst is over, an event after it.
    """
    monkeypatch.setattr(connection, "TIMEOUT_S", 1.0)
    await retain_states(mosquitto, RETAINED)
    order: list[str] = []
    others: list[ReceivedMessage] = []

    def accept(received: ReceivedMessage) -> None:
        if isinstance(received.message, NodeState):
            order.append(received.subject)
            time.sleep(0.003)

    hub = MqttLink(settings(relay.port), "hub", 1, HUB_SUBSCRIPTIONS, accept)
    other = MqttLink(settings(mosquitto.port), "other", 1, (HUB_STATE, EVENT), others.append)
    hub.publish(cloud_event())
    hub.publish(hub_state())
    async with running(other):
        await eventually(lambda: other.connected)
        async with running(hub):
            await eventually(lambda: any(isinstance(each.message, HubState) for each in others))
            early = len(order)
            await eventually(lambda: any(isinstance(each.message, CloudEvent) for each in others))

    assert early < len(set(order)) == RETAINED
    assert relay.connections == 1


async def test_a_packet_beyond_the_limit_ends_the_connection(
    relay: BrokerRelay, caplog: pytest.LogCaptureFixture
) -> None:
    """The daemon reads its header and no more than a recv of it, logs its size, and connects again."""
    link = MqttLink(settings(relay.port), "n1", 1, HUB_SUBSCRIPTIONS, lambda received: None)
    size = 200 * MAX_MESSAGE_BYTES
    with caplog.at_level(logging.INFO, "timesyncd.mqtt"):
        async with running(link):
            await eventually(lambda: link.connected)
            before = relay.forwarded
            await relay.send(b"\x30" + variable_length(size))
            for _ in range(200):
                await relay.send(bytes(MAX_MESSAGE_BYTES))
            taken = relay.forwarded - before
            await eventually(lambda: link.connected and relay.connections == 2)

    assert taken < size // 4
    assert f"not connected: the broker sends a packet of {size} bytes; at most" in caplog.text


@pytest.mark.parametrize("fault", [fault for fault in BrokerFault if fault is not BrokerFault.NONE])
async def test_a_link_recovers_from_each_fault(
    fault: BrokerFault, mosquitto: Mosquitto, relay: BrokerRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the fault the daemon's newest state is at the broker, and its event is not lost."""
    monkeypatch.setattr(connection, "TIMEOUT_S", 1.5)
    link = MqttLink(settings(relay.port), "n1", 1, HUB_SUBSCRIPTIONS, lambda received: None)
    others: list[ReceivedMessage] = []
    other = MqttLink(settings(mosquitto.port), "other", 1, (NODE_STATE, EVENT), others.append)
    async with running(other, link):
        await eventually(lambda: other.connected and link.connected)
        await relay.set_fault(fault)
        link.publish(node_state("n1", 1, 1))
        await asyncio.sleep(2.5)
        link.publish(cloud_event())
        link.publish(node_state("n1", 1, 2))
        await asyncio.sleep(0.5)
        await relay.set_fault(BrokerFault.NONE)
        await eventually(lambda: any(isinstance(each.message, CloudEvent) for each in others))
        await eventually(lambda: node_state("n1", 1, 2) in [each.message for each in others])

    assert link.failed == 0
