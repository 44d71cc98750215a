"""
Floods of a hub by what the broker lets nodes and ranks publish: its memory stays bounded, and an honest client is served.

Each lasts TIMESYNCD_FLOOD_S seconds (3; `make floods`: 60), as in test_floods.py.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from threading import Event

import paho.mqtt.client as paho
import pytest
from floods import judge
from paho.mqtt.enums import CallbackAPIVersion
from wire import node_state

from timesyncd.config import TOPIC_PREFIX
from timesyncd.mqtt.topics import MAX_MESSAGE_BYTES
from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker

pytestmark = pytest.mark.integration

MAX_GROWTH_KIB = 256 * 1_024
#: So many are sent, and then the sender waits until the broker has taken them.
BURST = 50


@pytest.fixture
def broker() -> Iterator[Mosquitto]:
    with Mosquitto() as broker:
        yield broker


@pytest.fixture
def hub(broker: Mosquitto, tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess("hub", tmp_path / "hub", "", new_marker(), broker, hub=True) as daemon:
        yield daemon


def publishing(broker: Mosquitto, message: Callable[[int], tuple[str, bytes]]) -> Callable[[Event], None]:
    """Publishes the messages of 0, 1, 2, ... as fast as the broker takes them."""

    def flood(ended: Event) -> None:
        client = paho.Client(CallbackAPIVersion.VERSION2, f"flood-{uuid.uuid4()}", protocol=paho.MQTTv5)
        client.connect(broker.host, broker.port)
        client.loop_start()
        for number in count():
            if ended.is_set():
                break
            sent = client.publish(*message(number), qos=int(number % BURST == 0))
            if number % BURST == 0:
                sent.wait_for_publish(60)
        client.disconnect()
        client.loop_stop()

    return flood


def state(node: str, sequence: int, **more: object) -> tuple[str, bytes]:
    message = json.loads(node_state(node, sequence=sequence).model_dump_json()) | more
    return f"{TOPIC_PREFIX}/node/{node}/state", json.dumps(message).encode()


def test_states_of_one_node(broker: Mosquitto, hub: DaemonProcess) -> None:
    """Each new state replaces the one before it."""
    judge(hub, publishing(broker, lambda number: state("n1", number + 1)), max_growth_kib=MAX_GROWTH_KIB)


def test_states_of_ever_more_nodes(broker: Mosquitto, hub: DaemonProcess) -> None:
    """A client that may write every node's topic invents nodes."""
    judge(hub, publishing(broker, lambda number: state(f"n{number}", 1)), max_growth_kib=MAX_GROWTH_KIB)


def test_messages_of_the_largest_size(broker: Mosquitto, hub: DaemonProcess) -> None:
    """Nothing of what is rejected is kept."""
    large = b"[" * (MAX_MESSAGE_BYTES - 1)
    judge(
        hub,
        publishing(broker, lambda number: (f"{TOPIC_PREFIX}/job/j{number}/marks", large)),
        publishing(broker, lambda number: (f"{TOPIC_PREFIX}/node/n{number}/history", large)),
        max_growth_kib=MAX_GROWTH_KIB,
    )
