"""
The link to a real Mosquitto: what arrives, what is kept, what happens when the broker is away, and what poison does.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path

import aiomqtt
import pytest
from broker_relay import BrokerRelay
from mqtt_links import eventually, running
from wire import cloud_event, grandmaster, history, marks, node_state, stored

from timesyncd.clocks import NS_PER_S, SystemClocks
from timesyncd.config import TOPIC_PREFIX, MqttSettings, SecretSettings
from timesyncd.ipc.job_datagram import job_id, job_part
from timesyncd.ipc.job_segment import Plan
from timesyncd.messages.fleet import CloudEvent, HistoryBatch, Stored
from timesyncd.messages.jobs import JobState, MarkBatch
from timesyncd.messages.node import Availability, GrandmasterState, Message, NodeState
from timesyncd.mqtt import client
from timesyncd.mqtt.client import MqttLink
from timesyncd.mqtt.inbox import Inbox, ReceivedMessage
from timesyncd.mqtt.outbox import MAX_QUEUED
from timesyncd.mqtt.topics import (
    AVAILABILITY,
    DAY_S,
    EVENT,
    GRANDMASTER_STATE,
    HUB_SUBSCRIPTIONS,
    JOB_STATE,
    MARKS,
    MAX_MESSAGE_BYTES,
    NODE_STATE,
    NODE_SUBSCRIPTIONS,
    MqttChannel,
    encode,
)
from timesyncd.simulation.bed.broker import Mosquitto

pytestmark = pytest.mark.integration

STATE_OF_N1 = NODE_STATE.topic(TOPIC_PREFIX, "n1")


def state(sequence: int, node: str = "n1", incarnation: int = 1) -> NodeState:
    return node_state(node, incarnation, sequence)


def grandmaster_state(sequence: int) -> GrandmasterState:
    return grandmaster("n1", 1, sequence)


def job(sequence: int) -> JobState:
    absent = (
        "step", "sync_overhead", "arrival_skew_ns", "arrival_skew_p50_ns", "arrival_skew_error_ns", "last_rank",
        "straggler_rank", "alignment_ns", "alignment_growth_ppb",
    )  # fmt: skip
    zero = ("attempt", "uid", "world_size", "published_realtime_ns", "steps_complete", "steps_incomplete")
    return JobState.model_validate(
        dict.fromkeys(absent)
        | dict.fromkeys(zero, 0)
        | {"node": "n1", "incarnation": 1, "sequence": sequence, "job_id": "0123456789abcdef", "job": "j"}
        | {"verdict": "", "alignment_reason": "", "ranks": [], "plan": Plan()}
    )


class Reader:
    """A daemon that notes what it receives."""

    def __init__(
        self, broker: Mosquitto, wanted: tuple[MqttChannel, ...] = (*HUB_SUBSCRIPTIONS, AVAILABILITY), node: str = "hub"
    ) -> None:
        self.received: list[ReceivedMessage] = []
        self.link = MqttLink(settings(broker), node, 1, wanted, self.received.append)

    def messages(self, kind: type[Message] = NodeState) -> list[Message]:
        return [received.message for received in self.received if isinstance(received.message, kind)]


def settings(broker: Mosquitto, **more: object) -> MqttSettings:
    return MqttSettings.model_validate({"host": broker.host, "port": broker.port} | more)


def writer(broker: Mosquitto, incarnation: int = 1, **more: object) -> MqttLink:
    return MqttLink(settings(broker, **more), "n1", incarnation, (), lambda _: None)


async def test_a_late_subscriber_sees_the_last_state(mosquitto: Mosquitto) -> None:
    """A state is retained: a later subscriber gets the newest as last known, and then live ones."""
    link, reader = writer(mosquitto), Reader(mosquitto)
    async with running(link):
        link.publish(state(1))
        link.publish(state(2))
        await eventually(lambda: link.published)
        async with running(reader.link):
            await eventually(reader.messages)
            link.publish(state(3))
            await eventually(lambda: len(reader.messages()) == 2)

    assert reader.messages() == [state(2), state(3)]
    assert [r.retained for r in reader.received if r.channel is NODE_STATE] == [True, False]


async def test_a_killed_daemon_is_offline(mosquitto: Mosquitto) -> None:
    """The broker publishes offline for a killed daemon, to current and to later subscribers."""
    reader, late = Reader(mosquitto), Reader(mosquitto, node="late")
    program = (
        "import asyncio; from timesyncd.config import MqttSettings; from timesyncd.mqtt.client import MqttLink;"
        f"asyncio.run(MqttLink(MqttSettings(host={mosquitto.host!r}, port={mosquitto.port}), 'n1', 7, (), print).run())"
    )
    async with running(reader.link):
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
        try:
            await eventually(lambda: reader.messages(Availability))
        finally:
            process.kill()
            await process.wait()
        await eventually(lambda: len(reader.messages(Availability)) == 2)
    async with running(late.link):
        await eventually(lambda: [r for r in late.received if r.subject == "n1"])

    assert [r.message for r in late.received if r.subject == "n1"] == [Availability(online=False, incarnation=7)]
    assert reader.messages(Availability) == [
        Availability(online=True, incarnation=7),
        Availability(online=False, incarnation=7),
    ]


async def test_a_stopped_daemon_publishes_that(mosquitto: Mosquitto) -> None:
    """Cancelling the link publishes offline, which a late subscriber sees."""
    link, reader = writer(mosquitto), Reader(mosquitto)
    async with running(link):
        await eventually(lambda: link.connected)
    async with running(reader.link):
        await eventually(lambda: reader.messages(Availability))

    assert reader.messages(Availability) == [Availability(online=False, incarnation=1)]
    assert not link.connected


async def test_a_restarted_broker_gets_everything_again(mosquitto: Mosquitto, caplog: pytest.LogCaptureFixture) -> None:
    """
    A broker that forgot everything has all retained topics again; the log names each loss and each return of the
    connection once.
    """
    link, reader = writer(mosquitto), Reader(mosquitto)
    with caplog.at_level(logging.INFO, "timesyncd.mqtt"):
        async with running(link):
            link.publish(state(1))
            link.publish(grandmaster_state(1))
            await eventually(lambda: link.published == 2)
            for sequence in (2, 3):
                mosquitto.stop()
                await eventually(lambda: not link.connected)
                link.publish(state(sequence))
                mosquitto.start()
                await eventually(lambda: link.published == 2 * sequence)  # noqa: B023
            async with running(reader.link):
                await eventually(lambda: len(reader.received) == 3)

    assert reader.messages() == [state(3)]
    assert reader.messages(GrandmasterState) == [grandmaster_state(1)]
    assert reader.messages(Availability) == [Availability(online=True, incarnation=1)]
    assert [record.getMessage().split(": ")[2] for record in caplog.records] == ["not connected", "connected again"] * 2


async def test_a_broker_that_comes_late_is_found(mosquitto: Mosquitto) -> None:
    """A daemon may start before its broker."""
    mosquitto.stop()
    link = writer(mosquitto)
    link.publish(state(1))
    async with running(link):
        await asyncio.sleep(0.1)
        before = link.connected
        mosquitto.start()
        await eventually(lambda: link.published == 1)

    assert not before


async def test_a_hanging_broker_holds_nothing_up(mosquitto: Mosquitto) -> None:
    """
    While the broker hangs, publishing only notes: events that do not fit are dropped and counted, states replaced.
    """
    link, reader = writer(mosquitto), Reader(mosquitto, (NODE_STATE, GRANDMASTER_STATE, EVENT))
    async with running(link, reader.link):
        await eventually(lambda: link.connected and reader.link.connected)
        mosquitto.pause()
        try:
            for number in range(3 * MAX_QUEUED):
                link.publish(state(number))
                link.publish(grandmaster_state(number))
                link.publish(cloud_event(number))
            await eventually(lambda: not link.connected)
        finally:
            mosquitto.resume()
        await eventually(lambda: reader.messages(CloudEvent)[-1:] == [cloud_event(3 * MAX_QUEUED - 1)])
        await eventually(lambda: reader.messages(GrandmasterState)[-1:] == [grandmaster_state(3 * MAX_QUEUED - 1)])

    assert link.dropped == 2 * MAX_QUEUED
    assert reader.messages()[-1] == state(3 * MAX_QUEUED - 1)
    assert cloud_event(2 * MAX_QUEUED) in reader.messages(CloudEvent)


async def test_marks_of_a_closed_step_are_not_sent(mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a broker that is away made wait too long is dropped here, and what the broker holds expires there."""
    boottime_ns = SystemClocks.boottime_ns
    mosquitto.stop()
    link, reader = writer(mosquitto), Reader(mosquitto, (MARKS,))
    link.publish(marks(1))
    monkeypatch.setattr(SystemClocks, "boottime_ns", lambda clocks: boottime_ns(clocks) + 10 * NS_PER_S)
    link.publish(marks(2))
    mosquitto.start()
    async with running(reader.link):
        await eventually(lambda: reader.link.connected)
        async with running(link):
            await eventually(lambda: reader.messages(MarkBatch))

    assert reader.messages(MarkBatch) == [marks(2)]
    assert link.dropped == 1


def batch_of(job: str, sequence: int) -> MarkBatch:
    return marks(sequence).model_copy(update={"job": job})


def part_of(job: str) -> str:
    return job_part(job_id(0, job, 0))


async def test_a_hub_receives_the_marks_of_the_parts_that_it_selects(mosquitto: Mosquitto) -> None:
    """
    Not those of others; another selection counts at once, and after a reconnect. What is selected no more does not come.
    """
    link, hub, sequence = writer(mosquitto), Reader(mosquitto, ()), 0

    def received() -> set[str]:
        return {batch.job for batch in hub.messages(MarkBatch) if isinstance(batch, MarkBatch)}

    def sends(*jobs: str) -> bool:
        """Batches of these jobs in this order, until one of the last arrives."""
        nonlocal sequence
        for job in jobs:
            sequence += 1
            link.publish(batch_of(job, sequence))
        return jobs[-1] in received()

    assert len({part_of(job) for job in "abc"}) == 3
    hub.link.select(MARKS, {part_of("a")})
    async with running(link, hub.link):
        await eventually(lambda: link.connected and hub.link.connected)
        await eventually(lambda: sends("b", "a"))
        of_one = received()
        hub.link.select(MARKS, {part_of("a"), part_of("b")})
        await eventually(lambda: sends("c", "b"))
        of_two = received()
        mosquitto.stop()
        await eventually(lambda: not hub.link.connected)
        hub.link.select(MARKS, {part_of("c")})
        mosquitto.start()
        await eventually(lambda: link.connected and hub.link.connected)
        hub.received.clear()
        await eventually(lambda: sends("a", "b", "c"))

    assert (of_one, of_two, received()) == ({"a"}, {"a", "b"}, {"c"})


async def test_a_node_receives_the_states_of_the_jobs_that_it_selects(mosquitto: Mosquitto) -> None:
    """And the state that the broker kept of one that it selects later."""
    hub, node = writer(mosquitto), Reader(mosquitto, (), "n2")
    other = job(1).model_copy(update={"job_id": "f" * 16})

    def received() -> list[str]:
        return [each.job_id for each in node.messages(JobState) if isinstance(each, JobState)]

    node.link.select(JOB_STATE, {job(1).job_id})
    async with running(hub, node.link):
        await eventually(lambda: hub.connected and node.link.connected)
        hub.publish(other)
        hub.publish(job(2))
        await eventually(received)
        before = received()
        node.link.select(JOB_STATE, {other.job_id})
        await eventually(lambda: len(received()) > 1)

    assert (before, received()) == ([job(2).job_id], [job(2).job_id, other.job_id])


async def test_a_link_states_whether_its_broker_kept_anything(mosquitto: Mosquitto) -> None:
    """So a hub knows whether it has to request what the broker kept."""
    kept: list[bool] = []
    async with BrokerRelay(mosquitto.port, keeps=False) as relay:
        through = {"host": "127.0.0.1", "port": relay.port}
        node, hub = (
            MqttLink(
                MqttSettings.model_validate(through), name, 1, (NODE_STATE,), lambda _: None, on_settled=kept.append
            )
            for name in ("n1", "hub")
        )
        async with running(node):
            await eventually(lambda: node.connected)
            node.publish(state(1))
            await eventually(lambda: node.published)
            async with running(hub):
                await eventually(lambda: len(kept) == 2)
    late: list[bool] = []
    link = writer(mosquitto)
    direct = MqttLink(settings(mosquitto), "hub", 1, (NODE_STATE,), lambda _: None, on_settled=late.append)
    async with running(link):
        link.publish(state(2))
        await eventually(lambda: link.published)
        async with running(direct):
            await eventually(lambda: late)

    assert (kept, late) == ([False, False], [True])


async def test_an_event_in_flight_is_not_lost(mosquitto: Mosquitto) -> None:
    """An event that the broker had not confirmed when it died is published again."""
    link = writer(mosquitto)
    async with running(link):
        await eventually(lambda: link.connected)
        mosquitto.pause()
        link.publish(cloud_event())
        await asyncio.sleep(0.1)
        before = link.published
        mosquitto.stop()
        mosquitto.start()
        await eventually(lambda: link.published == 1)

    assert before == 0


async def test_large_states_do_not_pile_up(mosquitto: Mosquitto) -> None:
    """More than the socket takes, to a broker that hangs: one message of each topic waits, and the newest arrives."""
    link, reader = writer(mosquitto), Reader(mosquitto)
    large = "x" * 100_000
    bulk = [grandmaster_state(sequence).model_copy(update={"sys_descr": large}) for sequence in range(300)]
    async with running(link, reader.link):
        await eventually(lambda: link.connected and reader.link.connected)
        mosquitto.pause()
        try:
            for message in bulk:
                link.publish(message)
                await asyncio.sleep(0.001)
            sent = link.published
        finally:
            mosquitto.resume()
        await eventually(lambda: reader.messages(GrandmasterState)[-1:] == bulk[-1:])

    assert sent < len(bulk)


async def test_poison_loses_nothing_else(mosquitto: Mosquitto) -> None:
    """Messages that are none of ours are counted; the good ones before and after them arrive."""
    reader = Reader(mosquitto)
    poison = [
        b"\xff\xfe",
        b"{",
        b"[1]",
        b"{}",
        encode(state(1, "n2")),
        b"0" * (MAX_MESSAGE_BYTES + 1),
        json.dumps(state(1).model_dump() | {"age_ns": 2**80}).encode(),
    ]
    async with running(reader.link):
        await eventually(lambda: reader.link.connected)
        async with aiomqtt.Client(mosquitto.host, mosquitto.port) as other:
            await other.publish(STATE_OF_N1, encode(state(1)))
            for payload in poison:
                await other.publish(STATE_OF_N1, payload)
            await other.publish(f"{TOPIC_PREFIX}/node/<b>/state", encode(state(1)))
            await other.publish(STATE_OF_N1, encode(state(2)))
        await eventually(lambda: len(reader.messages()) == 2)

    assert reader.messages() == [state(1), state(2)]
    assert reader.link.rejected == len(poison) + 1


async def test_a_replayed_message_overwrites_nothing(mosquitto: Mosquitto) -> None:
    """An older retained message, put back by somebody, is not passed on, and a restarted daemon's is."""
    reader = Reader(mosquitto)
    async with running(reader.link):
        await eventually(lambda: reader.link.connected)
        async with aiomqtt.Client(mosquitto.host, mosquitto.port) as other:
            for message in (state(5), state(4), state(5), state(0, incarnation=2), state(6)):
                await other.publish(STATE_OF_N1, encode(message), retain=True)
        await eventually(lambda: reader.link.outdated == 3)

    assert reader.messages() == [state(5), state(0, incarnation=2)]


async def test_our_own_messages_do_not_come_back(mosquitto: Mosquitto) -> None:
    """A hub that subscribes to all nodes receives the others only, live and retained."""
    hub, other = Reader(mosquitto, node="n1"), MqttLink(settings(mosquitto), "n2", 1, (), lambda _: None)
    async with running(hub.link):
        hub.link.publish(state(1))
        await eventually(lambda: hub.link.published)
    async with running(hub.link, other):
        await eventually(lambda: hub.link.published == 2)
        other.publish(state(1, "n2"))
        await eventually(hub.messages)

    assert hub.messages() == [state(1, "n2")]


async def test_silent_nodes_are_forgotten_while_no_message_comes(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a flood the broker may deliver nothing more: the link looks by itself."""
    monkeypatch.setattr(client, "SWEEP_INTERVAL_S", 0.01)
    swept: list[int] = []
    monkeypatch.setattr(Inbox, "sweep", lambda _inbox, now_ns: swept.append(now_ns))
    async with running(Reader(mosquitto).link):
        await eventually(lambda: len(swept) > 2)


async def test_an_ended_job_leaves_nothing(mosquitto: Mosquitto) -> None:
    """A cleared job state reaches no late subscriber; subscribers that were there are not disturbed."""
    link = writer(mosquitto)
    early, late = Reader(mosquitto, NODE_SUBSCRIPTIONS, "n2"), Reader(mosquitto, NODE_SUBSCRIPTIONS, "n3")
    async with running(link, early.link):
        await eventually(lambda: early.link.connected)
        link.publish(job(1))
        await eventually(lambda: early.messages(JobState))
        link.clear(JobState, "0123456789abcdef")
        link.publish(grandmaster_state(1))
        await eventually(lambda: early.messages(GrandmasterState))
        async with running(late.link):
            await eventually(lambda: late.messages(GrandmasterState))

    assert late.messages(JobState) == []
    assert early.link.rejected == 0


async def expiries(broker: Mosquitto, channel: MqttChannel) -> dict[str, int]:
    """For how long the broker keeps what it has retained of a channel, by its own answer."""
    found: dict[str, int] = {}
    async with aiomqtt.Client(broker.host, broker.port, protocol=aiomqtt.ProtocolVersion.V5) as reader:
        await reader.subscribe(channel.pattern(TOPIC_PREFIX, "x"))
        await reader.publish(channel.topic(TOPIC_PREFIX, "end"), b"end", qos=1)
        async for message in reader.messages:
            if message.payload == b"end":
                return found
            found[bytes(message.payload).decode()] = vars(message.properties)["MessageExpiryInterval"]
    raise AssertionError("the broker ended")


async def test_what_is_retained_expires(mosquitto: Mosquitto) -> None:
    """The broker deletes the job of a dead hub and the topics of a removed node, its last availability too."""
    link = writer(mosquitto)
    link.publish(job(1))
    link.publish(state(1))
    async with running(link):
        await eventually(lambda: link.published == 2)
        found = [await expiries(mosquitto, channel) for channel in (JOB_STATE, NODE_STATE, AVAILABILITY)]
    found.append(await expiries(mosquitto, AVAILABILITY))

    assert [(len(each), DAY_S - 60 < max(each.values()) <= DAY_S) for each in found[1:]] == [(1, True)] * 3
    assert 3_600 - 60 < max(found[0].values()) <= 3_600


async def test_the_will_of_a_killed_daemon_expires(mosquitto: Mosquitto) -> None:
    """The will, which no daemon repeats, expires too."""
    program = (
        "import asyncio, os; from timesyncd.config import MqttSettings; from timesyncd.mqtt.client import MqttLink;"
        f"link = MqttLink(MqttSettings(host={mosquitto.host!r}, port={mosquitto.port}), 'n1', 7, (), print);"
        "link._on_connected = lambda: os._exit(0);"
        "asyncio.run(link.run())"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    await process.wait()
    found: dict[str, int] = {}
    async with asyncio.timeout(60):
        while '"online":false' not in "".join(found):
            found = await expiries(mosquitto, AVAILABILITY)

    assert [DAY_S - 60 < left_s <= DAY_S for left_s in found.values()] == [True]


async def test_an_online_node_publishes_before_its_message_expires(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection of months has the broker know that the node is there, and nothing but a repetition does that."""
    monkeypatch.setattr(client, "AVAILABILITY_INTERVAL_S", 0.05)
    link, reader = writer(mosquitto), Reader(mosquitto)
    async with running(reader.link, link):
        await eventually(lambda: len(reader.messages(Availability)) >= 3)

    assert set(reader.messages(Availability)[:3]) == {Availability(online=True, incarnation=1)}


async def test_an_event_has_the_content_type_of_cloud_events(mosquitto: Mosquitto) -> None:
    """By the content type that CloudEvents' binding to MQTT asks for in structured mode."""
    link = writer(mosquitto)
    async with aiomqtt.Client(mosquitto.host, mosquitto.port, protocol=aiomqtt.ProtocolVersion.V5) as listener:
        await listener.subscribe(EVENT.pattern(TOPIC_PREFIX, "x"))
        async with running(link):
            await eventually(lambda: link.connected)
            link.publish(cloud_event())
            message = await anext(listener.messages)

    assert vars(message.properties)["ContentType"] == "application/cloudevents+json"
    assert json.loads(bytes(message.payload))["id"] == "1-1"


async def test_a_confirmation_reaches_its_node_alone(mosquitto: Mosquitto) -> None:
    """However many nodes there are, each receives what the hubs have stored of itself, and a burst is not cut short."""
    hub = Reader(mosquitto, HUB_SUBSCRIPTIONS, "hub")
    node, other = Reader(mosquitto, NODE_SUBSCRIPTIONS, "n1"), Reader(mosquitto, NODE_SUBSCRIPTIONS, "n2")
    async with running(hub.link, node.link, other.link):
        await eventually(lambda: all(each.link.connected for each in (hub, node, other)))
        node.link.publish(history())
        await eventually(lambda: hub.messages(HistoryBatch))
        for number in range(2 * MAX_QUEUED):
            hub.link.publish(stored(1, of=f"m{number}"))
        hub.link.publish(stored(1, of="n1"))
        hub.link.publish(stored(1, of="n2"))
        await eventually(lambda: node.messages(Stored) and other.messages(Stored))

    assert (node.messages(Stored), other.messages(Stored)) == ([stored(1, of="n1")], [stored(1, of="n2")])
    assert hub.link.dropped == 0


async def test_rows_that_are_sent_again_arrive_again(mosquitto: Mosquitto) -> None:
    """What is unconfirmed is sent until it is stored, so it must come in although it was here before."""
    reader = Reader(mosquitto)
    link = writer(mosquitto)
    async with running(reader.link, link):
        await eventually(lambda: reader.link.connected and link.connected)
        for batch in (history(5), history(5), history(6)):
            link.publish(batch)
        await eventually(lambda: len(reader.messages(HistoryBatch)) == 3)

    assert reader.link.outdated == 0


async def test_the_password_is_accepted_and_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The password comes from its file at each connection; with a wrong one the log states the reason, never the password."""
    secret = tmp_path / "password"
    secret.write_text("wrong-Xyzzy\n")
    with Mosquitto(users={"timesyncd": "right-Xyzzy"}) as broker, caplog.at_level(logging.DEBUG):
        link = writer(broker, username="timesyncd", password=SecretSettings(file=secret))
        async with running(link):
            await eventually(lambda: caplog.records)
            secret.write_text("right-Xyzzy\n")
            await eventually(lambda: link.connected)

    assert "Not authorized" in caplog.text
    assert "Xyzzy" not in caplog.text


async def test_an_unreadable_password_is_waited_for(
    tmp_path: Path, mosquitto: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing secret keeps the link down, is reported, and costs the daemon nothing else."""
    secret = tmp_path / "password"
    link = writer(mosquitto, username="timesyncd", password=SecretSettings(file=secret))
    with caplog.at_level(logging.INFO, "timesyncd.mqtt"):
        async with running(link):
            await eventually(lambda: caplog.records)
            secret.write_text("any")
            await eventually(lambda: link.connected)

    assert f"not connected: secret: {secret} cannot be read" in caplog.text


async def test_an_invalid_host_name_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """What no resolver would take keeps the link down, and ends no daemon."""
    link = MqttLink(MqttSettings(host="broker..example"), "n1", 1, (), lambda _: None)
    with caplog.at_level(logging.INFO, "timesyncd.mqtt"):
        async with running(link):
            await eventually(lambda: caplog.records)

    assert "not connected: mqtt.host is not a host name: " in caplog.text


async def test_a_link_ends_while_the_broker_hangs(mosquitto: Mosquitto) -> None:
    """Stopping the daemon does not wait for a broker that does not answer."""
    link = writer(mosquitto)
    async with running(link):
        await eventually(lambda: link.connected)
        mosquitto.pause()
    mosquitto.resume()

    assert not link.connected


async def test_a_link_that_is_ended_as_its_broker_dies_ends(mosquitto: Mosquitto) -> None:
    """At whatever moment: a daemon that is stopped while its broker is stopped, as at a shutdown, must not hang."""
    for turn in range(12):
        link = writer(mosquitto)
        task = asyncio.create_task(link.run())
        await eventually(lambda: link.connected)  # noqa: B023
        mosquitto.stop()
        for _ in range(turn % 6):
            await asyncio.sleep(0)
        if turn % 2:
            await asyncio.sleep(0.001 * turn)
        task.cancel()
        _, hanging = await asyncio.wait([task], timeout=60)
        mosquitto.start()

        assert not hanging
