"""The retained job states of a hub at the broker."""

from __future__ import annotations

import pytest
from batches import batch, mark
from fake_clocks import FakeClocks
from publisher_lab import PublisherLab
from wire import hub_state

from timesyncd.clocks import NS_PER_S
from timesyncd.config import parse
from timesyncd.daemon.node_state import NodeView
from timesyncd.daemon.publisher import Parts
from timesyncd.driver import options_of
from timesyncd.ipc.clock_segment import Epoch
from timesyncd.messages.jobs import JobState
from timesyncd.mqtt.client import MqttLink
from timesyncd.mqtt.outbox import OutgoingMessage


class PrimaryHub:
    """Hub b with a link without a broker, and two ranks that report each second."""

    def __init__(self) -> None:
        config = parse({"node": {"name": "b"}, "mqtt": {"host": "h"}, "hub": {}}, options_of, "test")
        assert config.mqtt is not None
        self.clocks = FakeClocks(1_700_001_000 * NS_PER_S, 1_000 * NS_PER_S)
        self.link = MqttLink(config.mqtt, "b", 1, [], lambda received: None)
        self.link.connected = True
        view = NodeView(config, Epoch(1, 2), 1)
        self.hub = PublisherLab(config, view, self.clocks, Parts(mqtt=self.link))
        self._second = 0

    def run(self, seconds: int, *, with_marks: bool = True) -> None:
        for _ in range(seconds):
            for rank in (0, 1) if with_marks else ():
                step = batch(rank, mark(self._second), sequence=self._second)
                self.hub.service.accept_marks(step, self.clocks.boottime_ns())
            self.hub.publisher.tick()
            self.clocks.advance(NS_PER_S)
            self._second += 1

    def sent(self) -> list[OutgoingMessage]:
        """What goes out about jobs now."""
        outbox, found = self.link._outbox, []
        while outgoing := outbox.next(self.clocks.boottime_ns()):
            outbox.mark_sent(outgoing)
            found.append(outgoing)
        return [outgoing for outgoing in found if outgoing.channel.message is JobState]

    def reconnects(self) -> None:
        self.link._outbox.requeue_all()


@pytest.fixture
def primary() -> PrimaryHub:
    """It has published a job."""
    primary = PrimaryHub()
    primary.run(30)
    assert [outgoing.message is not None for outgoing in primary.sent()] == [True]
    return primary


def test_an_ended_job_is_cleared_at_the_broker(primary: PrimaryHub) -> None:
    """Once, with an empty message on its topic; a later connection does not bring it back."""
    (job,) = primary.hub.publisher.own_jobs
    primary.run(1_000, with_marks=False)
    last = primary.sent()[-1]
    primary.reconnects()

    assert (last.subject, last.message) == (job.job_id, None)
    assert primary.hub.publisher.own_jobs == []
    assert primary.sent() == []


def test_a_hub_that_is_no_longer_primary_repeats_no_job(primary: PrimaryHub) -> None:
    """At its next connection it would overwrite the primary hub's state with an old one; it clears nothing either."""
    for _ in range(20):
        primary.hub.publisher.receive(hub_state("a"), primary.clocks.boottime_ns(), live=True)
        primary.run(1)
    primary.sent()
    primary.reconnects()

    assert not primary.hub.service.is_primary
    assert len(primary.hub.publisher.own_jobs) == 1
    assert primary.sent() == []


def test_a_primary_hub_repeats_its_jobs(primary: PrimaryHub) -> None:
    """At its next connection, since the broker may have forgotten them."""
    primary.reconnects()

    assert len(primary.sent()) == 1
