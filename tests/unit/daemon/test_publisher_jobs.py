"""What a hub leaves at the broker of the jobs that it told of."""

from __future__ import annotations

import pytest
from batches import batch, mark
from publisher_lab import PublisherLab
from wire import hub_state

from timesyncd.clocks import NS_PER_S, FakeClocks
from timesyncd.config import parse
from timesyncd.daemon.node_state import NodeView
from timesyncd.daemon.publisher import Parts
from timesyncd.driver import options_of
from timesyncd.ipc.clock_segment import Epoch
from timesyncd.messages.jobs import JobState
from timesyncd.mqtt.client import MqttLink
from timesyncd.mqtt.outbox import OutgoingMessage


class Speaker:
    """Hub b with a link that connects to nobody, and two ranks that report each second."""

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
def speaker() -> Speaker:
    """It has told of a job."""
    speaker = Speaker()
    speaker.run(30)
    assert [outgoing.message is not None for outgoing in speaker.sent()] == [True]
    return speaker


def test_an_ended_job_is_cleared_at_the_broker(speaker: Speaker) -> None:
    """Once, with an empty message on its topic; a later connection does not bring it back."""
    (job,) = speaker.hub.publisher.own_jobs
    speaker.run(1_000, with_marks=False)
    last = speaker.sent()[-1]
    speaker.reconnects()

    assert (last.subject, last.message) == (job.job_id, None)
    assert speaker.hub.publisher.own_jobs == []
    assert speaker.sent() == []


def test_a_hub_that_ceases_to_speak_repeats_no_job(speaker: Speaker) -> None:
    """At its next connection it would put its old word over that of the hub that speaks now; it clears nothing either."""
    for _ in range(20):
        speaker.hub.publisher.receive(hub_state("a"), speaker.clocks.boottime_ns(), live=True)
        speaker.run(1)
    speaker.sent()
    speaker.reconnects()

    assert not speaker.hub.service.is_primary
    assert len(speaker.hub.publisher.own_jobs) == 1
    assert speaker.sent() == []


def test_a_hub_that_speaks_repeats_its_jobs(speaker: Speaker) -> None:
    """At its next connection, since the broker may have forgotten them."""
    speaker.reconnects()

    assert len(speaker.sent()) == 1
