"""An unexpected error of the link costs one message or one session, and is counted and logged."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import aiomqtt
import pytest
from paho.mqtt import client as paho
from wire import hub_state

from timesyncd.config import MqttSettings
from timesyncd.errors import ConfigError
from timesyncd.mqtt import client as module
from timesyncd.mqtt.client import MqttLink
from timesyncd.mqtt.inbox import ReceivedMessage
from timesyncd.mqtt.packets import PublishPacket
from timesyncd.mqtt.topics import HUB_STATE, NODE_STATE, encode

SETTINGS = MqttSettings.model_validate({"host": "192.0.2.1"})


def message(sequence: int) -> PublishPacket:
    state = hub_state().model_copy(update={"sequence": sequence})
    topic = HUB_STATE.topic(SETTINGS.topic_prefix, state.node)
    return PublishPacket(topic, encode(state), False, None)


def test_a_message_that_raises_costs_that_message_alone(caplog: pytest.LogCaptureFixture) -> None:
    """The next one is handled. Two of three are counted, and one has its traceback in the log."""
    handled: list[int] = []

    def receive(received: ReceivedMessage) -> None:
        sequence = cast("Any", received.message).sequence
        if sequence != 2:
            raise OverflowError("cannot convert float infinity to integer")
        handled.append(sequence)

    link = MqttLink(SETTINGS, "n1", 1, [HUB_STATE], receive)
    for sequence in (1, 2, 3):
        link._handle(message(sequence))

    assert (handled, link.failed) == ([2], 2)
    (logged,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "mqtt: hub_state: an unexpected error" in logged.getMessage()
    assert logged.exc_info is not None and logged.exc_info[0] is OverflowError


async def test_an_answer_to_fewer_subscriptions_is_an_error_of_the_broker() -> None:
    """A SUBACK of an unexpected length ends this session alone."""

    async def subscribe(topics: list[Any]) -> list[int]:
        return [0] * (len(topics) - 1)

    link = MqttLink(SETTINGS, "n1", 1, [HUB_STATE, NODE_STATE], lambda received: None)
    with pytest.raises(aiomqtt.MqttError, match="answers 2 subscriptions with 1 reason codes"):
        await link._subscribe(cast("Any", SimpleNamespace(subscribe=subscribe)))


async def test_a_session_that_fails_unexpectedly_is_followed_by_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The link logs the traceback once, waits as after a lost connection, and tries again."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(module, "RETRY_S", 0.001)
    link = MqttLink(SETTINGS, "n1", 1, [], lambda received: None)
    sessions: list[int] = []
    third = asyncio.Event()

    async def session() -> None:
        sessions.append(len(sessions))
        if len(sessions) == 3:
            third.set()
        raise ZeroDivisionError("in a library")

    monkeypatch.setattr(link, "_session", session)
    task = asyncio.create_task(link.run())
    await third.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    assert "not connected: in a library" in caplog.text


async def test_a_paho_without_the_parts_that_the_reader_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With another paho no message would ever arrive, and nothing would say so."""
    monkeypatch.delattr(paho.Client, "_packet_read")
    link = MqttLink(SETTINGS, "n1", 1, [HUB_STATE], lambda received: None)

    with pytest.raises(ConfigError, match="this paho-mqtt has no _packet_read"):
        link._client(None)
