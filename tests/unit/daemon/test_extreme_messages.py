"""A valid message with an extreme number ends nothing: what a daemon computes of it can be published and written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from batches import NOW, REAL_MINUS_BOOT, batch, mark
from fake_clocks import FakeClocks
from grandmaster_states import follower, polled_grandmaster
from publisher_lab import PublisherLab
from pydantic import ValidationError
from wire import hub_state

from timesyncd.clocks import NS_PER_S
from timesyncd.config import HubSettings, parse
from timesyncd.daemon.job_socket import signals_of
from timesyncd.daemon.node_state import NodeView
from timesyncd.driver import options_of
from timesyncd.hub.hub import Hub
from timesyncd.ipc.clock_segment import Epoch
from timesyncd.ipc.job_segment import JobWriter, encode_segment
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


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_no_number_in_a_message_ends_the_daemon(base: Message) -> None:
    """
    A node's, grandmaster's, job's and hub's state, and marks: received, then published, judged, shown and scraped.
    """
    count = 0
    for message in extremes(base):
        count += 1
        receiver(message)
    assert count > 20


def receiver(message: Message) -> None:
    """A hub that receives the message, and publishes for half a minute."""
    config = parse({"node": {"name": "b"}, "mqtt": {"host": "h"}, "hub": {}}, options_of, "test")
    clocks = FakeClocks(1_700_001_000 * NS_PER_S, 1_000 * NS_PER_S)
    lab = PublisherLab(config, NodeView(config, EPOCH, 1), clocks)
    for other in (message, follower("node-c"), polled_grandmaster("gm-b")):
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
        lab.web.alignment(None, None)
        lab.web.metrics()


def test_a_job_s_state_is_written_to_the_segment_of_its_ranks(tmp_path: Path) -> None:
    """Whatever numbers the hub of another version publishes: each fits its word."""
    writer = JobWriter(tmp_path / "segment", EPOCH)
    for state in extremes(job_state()):
        assert isinstance(state, JobState)
        signals = signals_of(state, "node-0")
        writer.write(1, signals, state.plan)
        assert encode_segment(EPOCH, 1, signals, state.plan)
    writer.close()
    assert os.listdir(tmp_path) == ["segment"]
