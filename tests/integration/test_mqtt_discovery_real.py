"""Discovery messages on a real Mosquitto: retained, and a refusal of the broker costs nothing else."""

from __future__ import annotations

import logging
from typing import Any

import aiomqtt
import pytest
from mqtt_links import eventually, running
from wire import node_state

from timesyncd.config import TOPIC_PREFIX, MqttSettings
from timesyncd.mqtt.client import MqttLink
from timesyncd.simulation.bed.broker import Mosquitto

pytestmark = pytest.mark.integration

TOPIC = "homeassistant/device/timesyncd-n1/config"


def link(broker: Mosquitto, **more: object) -> MqttLink:
    settings = MqttSettings.model_validate({"host": broker.host, "port": broker.port} | more)
    return MqttLink(settings, "n1", 1, (), lambda _: None, discovery={TOPIC: b'{"device": {}}'})


async def test_a_later_subscriber_gets_the_announcement(mosquitto: Mosquitto) -> None:
    """Home Assistant may start after the daemon: the message is retained, and expires when no daemon repeats it."""
    made = link(mosquitto)
    async with running(made):
        await eventually(lambda: made.connected)
        made.publish(node_state("n1", 1, 1))
        await eventually(lambda: made.published)
        async with aiomqtt.Client(mosquitto.host, mosquitto.port, protocol=aiomqtt.ProtocolVersion.V5) as client:
            await client.subscribe(TOPIC)
            message = await anext(client.messages)

    properties: Any = message.properties
    assert (message.payload, message.retain) == (b'{"device": {}}', True)
    assert properties.MessageExpiryInterval <= 86_400


async def test_a_broker_that_refuses_it_gets_the_states(caplog: pytest.LogCaptureFixture) -> None:
    """One line in the log states what to allow; the states are published all the same."""
    acl = f"user n1\ntopic readwrite {TOPIC_PREFIX}/#\n"
    with Mosquitto(users={"n1": "x"}, acl=acl) as broker, caplog.at_level(logging.WARNING, "timesyncd.mqtt"):
        made = link(broker, username="n1", password={"env": "TIMESYNCD_TEST_PASSWORD"})
        async with running(made):
            await eventually(lambda: made.connected)
            made.publish(node_state("n1", 1, 1))
            await eventually(lambda: made.published)

    assert [record.getMessage() for record in caplog.records] == [
        "mqtt: the broker refuses the discovery messages of this daemon: Not authorized; allow them in its ACL"
    ]


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMESYNCD_TEST_PASSWORD", "x")
