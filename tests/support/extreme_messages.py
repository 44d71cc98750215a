"""Valid messages with extreme numbers, and a hub that receives them: what it computes of them can be published and shown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from batches import NOW, REAL_MINUS_BOOT, batch, mark
from fake_clocks import FakeClocks
from grandmaster_states import follower, polled_grandmaster
from publisher_lab import PublisherLab
from pydantic import ValidationError
from wire import hub_state

from timesyncd.clocks import NS_PER_S
from timesyncd.config import HubSettings, parse
from timesyncd.daemon.node_state import NodeView
from timesyncd.driver import options_of
from timesyncd.hub.hub import Hub
from timesyncd.ipc.clock_segment import Epoch
from timesyncd.messages.jobs import JobState, MarkBatch
from timesyncd.messages.node import Message

EPOCH = Epoch(1, 2)

#: What a field may be off the wire; those that its schema refuses are left out.
EXTREMES = (-(2**63), 2**63 - 1, 2**62, 10**18, -1, 0, 1e300, -1e300, 9.3e9, 1e-300)


def job_state() -> JobState:
    """Of two ranks with every signal that marks give."""
    hub = Hub(HubSettings(), "b")
    for rank in (0, 1):
        hub.accept_marks(batch(rank, *(mark(step, offset_ns=rank * 10**6) for step in range(30))), NOW)
    (state,) = hub.advance(NOW + 11 * NS_PER_S, REAL_MINUS_BOOT + NOW, True).jobs
    return state


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all numbers, and of what is null."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, (*path, key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from leaves(each, (*path, index))
    elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        yield path


def changed(payload: Any, path: tuple[str | int, ...], number: float) -> Any:
    if not path:
        return number
    copy = payload.copy()
    copy[path[0]] = changed(payload[path[0]], path[1:], number)
    return copy


def extremes(message: Message) -> Iterator[Message]:
    """The message with one number at an extreme each, as far as its schema allows."""
    payload = json.loads(message.model_dump_json())
    for path in leaves(payload):
        for number in EXTREMES:
            try:
                yield type(message).model_validate_json(json.dumps(changed(payload, path, number)))
            except ValidationError:
                continue


BASES = {
    "node": follower("node-a"),
    "grandmaster": polled_grandmaster("gm-a"),
    "job": job_state(),
    "hub": hub_state(),
    "marks": batch(0, mark(0), mark(1)),
}


def receive(messages: Iterable[Message]) -> None:
    """A hub that receives the messages, and publishes for half a minute. Raises whatever the hub does."""
    config = parse({"node": {"name": "b"}, "mqtt": {"host": "h"}, "hub": {}}, options_of, "test")
    clocks = FakeClocks(1_700_001_000 * NS_PER_S, 1_000 * NS_PER_S)
    lab = PublisherLab(config, NodeView(config, EPOCH, 1), clocks)
    for other in (*messages, follower("node-c"), polled_grandmaster("gm-b")):
        if isinstance(other, MarkBatch):
            for rank in (1, 0):
                lab.service.accept_marks(other.model_copy(update={"rank": rank}), clocks.boottime_ns())
        else:
            lab.publisher.receive(other, clocks.boottime_ns(), live=True)
    for _ in range(3):
        clocks.advance(12 * NS_PER_S)
        lab.publisher.tick()
        names = lab.web.node_names()
        shown = [
            *lab.web.nodes(names),
            *lab.web.grandmasters(),
            *lab.web.jobs(),
            *lab.web.hubs(),
            lab.web.fleet(),
            lab.web.map(),
        ]
        for state in shown:
            assert type(state).model_validate_json(state.model_dump_json()) == state
        assert "node-c" in names, "a good node is shown beside whatever came before it"
        lab.web.alignment(None, None)
        lab.web.metrics()
