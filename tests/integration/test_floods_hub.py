"""
Floods of a hub by what the broker lets nodes and ranks publish: its memory stays bounded, and an honest client is served.

Each lasts TIMESYNCD_FLOOD_S seconds (3; `make floods`: 60), as in test_floods.py.
"""

from __future__ import annotations

import json
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from threading import Event

import paho.mqtt.client as paho
import pytest
from floods import flooding, judge, rss_kib, until
from paho.mqtt.enums import CallbackAPIVersion
from wire import marks as wire_marks
from wire import node_state

from timesyncd.config import TOPIC_PREFIX
from timesyncd.ipc.job_datagram import job_id, job_part
from timesyncd.mqtt.topics import MARKS, MAX_MESSAGE_BYTES
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
    as_installed = ("env", "PYTHONMALLOC=malloc")  # docs/fleet.md
    with DaemonProcess("hub", tmp_path / "hub", "", new_marker(), broker, hub=True, enter=as_installed) as daemon:
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


def marks(number: int) -> tuple[str, bytes]:
    """As many as a batch has, of ever more jobs of fifty users."""
    at_ns = time.time_ns()
    one = {"sync": 0, "kind": 1, "arrival_ns": at_ns, "begin_ns": at_ns + 1, "end_ns": at_ns + 2, "bytes": 4}
    more = {"uid": number % 50, "job": f"j{number}", "world_size": 2, "real_minus_boot_ns": 1, "sequence": number}
    message = json.loads(wire_marks(1).model_dump_json()) | more | {"marks": [one | {"step": n} for n in range(512)]}
    part = job_part(job_id(number % 50, f"j{number}", 0))
    return MARKS.topic(TOPIC_PREFIX, "n1", part), json.dumps(message).encode()


def test_marks_of_ever_more_jobs_and_users(broker: Mosquitto, hub: DaemonProcess) -> None:
    """A node's credentials allow marks of every uid; all jobs share what there is."""
    judge(hub, publishing(broker, marks), max_growth_kib=MAX_GROWTH_KIB)


def is_reported(hub: DaemonProcess) -> bool:
    try:
        with urllib.request.urlopen(f"{hub.page}api/v1/findings", timeout=60) as answer:
            return b"broker-names-refused" in answer.read()
    except OSError:
        return False


def test_invented_nodes_beyond_the_limit_are_reported(broker: Mosquitto, hub: DaemonProcess) -> None:
    """Large states reach the limit of bytes within seconds: the oldest names give way, and the hub states that."""
    source = {"name": "s", "driver": "ptp4l", "reachable": True, "detail": "d" * 900}
    idle = rss_kib(hub)
    with flooding(publishing(broker, lambda number: state(f"n{number}", 1, sources=[source] * 60))):
        until(lambda: is_reported(hub), within_s=240)
    hub.check()

    print(f"grew by {rss_kib(hub) - idle} KiB")
    assert rss_kib(hub) - idle <= MAX_GROWTH_KIB
    assert (hub.folder / "log").read_text().count("more names than are kept here") <= 5


def test_messages_of_the_largest_size(broker: Mosquitto, hub: DaemonProcess) -> None:
    """Nothing of what is rejected is kept."""
    large = b"[" * (MAX_MESSAGE_BYTES - 1)
    judge(
        hub,
        publishing(broker, lambda number: (f"{TOPIC_PREFIX}/job/j{number}/marks", large)),
        publishing(broker, lambda number: (f"{TOPIC_PREFIX}/node/n{number}/history", large)),
        max_growth_kib=MAX_GROWTH_KIB,
    )
