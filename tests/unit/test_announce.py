"""When the announcer publishes."""

from __future__ import annotations

from typing import cast

import pytest

from timesyncd.announce import Announcer, Parts
from timesyncd.clocks import NS_PER_S, FakeClocks
from timesyncd.config import parse
from timesyncd.driver import options_of
from timesyncd.messages import Message, NodeState
from timesyncd.mqtt.client import MqttLink
from timesyncd.segment import Epoch
from timesyncd.view import NodeView


class Broker:
    """Takes what is published."""

    connected = True

    def __init__(self) -> None:
        self.published: list[Message] = []

    def publish(self, message: Message) -> None:
        self.published.append(message)


@pytest.mark.parametrize(("every_s", "holdover_after_s", "expected_s"), [(3, 60, [0, 3, 6]), (3, 2, range(7))])
def test_a_state_is_repeated_before_readers_take_it_for_held_over(
    every_s: int, holdover_after_s: int, expected_s: list[int]
) -> None:
    """As often as configured, and at least twice within the holdover_after of a source."""
    source = {"name": "ptp", "driver": "ptp4l", "bounds": {"holdover_after_ns": holdover_after_s * NS_PER_S}}
    tables = {"node": {"name": "a"}, "source": [source], "mqtt": {"host": "h", "state_every_s": every_s}}
    config, clocks, broker = parse(tables, options_of, "test"), FakeClocks(), Broker()
    parts = Parts(mqtt=cast(MqttLink, broker))
    announcer = Announcer(config, NodeView(config, Epoch(1, 2), 1), parts, clocks)
    began_ns = clocks.realtime_ns()
    for _ in range(7):
        announcer.tick()
        clocks.advance(NS_PER_S)
    states = [message for message in broker.published if isinstance(message, NodeState)]

    assert [(state.published_realtime_ns - began_ns) // NS_PER_S for state in states] == list(expected_s)
