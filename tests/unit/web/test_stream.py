"""The event stream: snapshot, changes, dropped events, and replay after a reconnect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from fake_view import FakeView, as_json

from timesyncd import config
from timesyncd.messages.node import AlarmEventMessage, NodeState
from timesyncd.web import stream as module
from timesyncd.web.app import WebServer, serve
from timesyncd.web.query import BadQuery, StreamQuery
from timesyncd.web.stream import EventStream, StreamFilter, frames
from timesyncd.web.view import StreamEvent


@pytest.fixture
def view() -> FakeView:
    return FakeView()


@pytest.fixture
async def stream(view: FakeView) -> AsyncIterator[EventStream]:
    stream = EventStream(view)
    yield stream
    stream.close()


def parse(frame: bytes) -> list[tuple[str, Any]]:
    """The events of a piece of a stream: kind and data; comments and fields of the stream itself left out."""
    found = []
    for block in frame.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if "event" in fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


def last_id(frame: bytes) -> str:
    return [line for line in frame.decode().splitlines() if line.startswith("id: ")][-1].removeprefix("id: ")


def node_event(view: FakeView, sequence: int, node: str = "trainer-01") -> StreamEvent:
    return StreamEvent("node", view.node().model_copy(update={"sequence": sequence, "node": node}))


EVERYTHING = StreamFilter()


class ViewerFrames:
    """One viewer's connection."""

    def __init__(self, sent: Any) -> None:
        self._sent = sent

    async def next(self) -> bytes:
        frame = await anext(self._sent)
        assert isinstance(frame, bytes)
        return frame


@asynccontextmanager
async def viewer(
    stream: EventStream, chosen: StreamFilter = EVERYTHING, last: str | None = None, heartbeat_s: float = 15.0
) -> AsyncIterator[ViewerFrames]:
    added = stream.add_viewer(chosen, last)
    async with asyncio.timeout(60), aclosing(frames(stream, added, heartbeat_s)) as sent:
        yield ViewerFrames(sent)
    stream.remove_viewer(added)


def sequences(frame: bytes) -> list[int]:
    return [data["sequence"] for kind, data in parse(frame) if kind == "node"]


async def test_a_viewer_first_gets_a_snapshot(stream: EventStream, view: FakeView) -> None:
    """The first events are a reset, the own node, the other nodes, grandmasters, jobs, findings and hubs."""
    async with viewer(stream) as connection:
        first = parse(await connection.next())

    messages = [*view.states, *view.grandmasters(), *view.jobs(), *view.findings(), *view.hubs()]
    assert [kind for kind, _ in first] == ["reset", "node", "node", "grandmaster", "job", "finding", "hub"]
    assert [data for _, data in first[1:]] == [as_json(message) for message in messages]


async def test_then_a_viewer_gets_the_changes(stream: EventStream, view: FakeView) -> None:
    """A published event reaches the viewer under the next id, without a wait between the state and the changes."""
    async with viewer(stream) as connection:
        opening = await connection.next()
        view.events.publish(node_event(view, 1))
        view.events.publish(node_event(view, 2))
        later = [await connection.next() for _ in range(2)]

    [before, first, second] = [int(last_id(frame).partition("-")[2]) for frame in (opening, *later)]
    assert [sequences(frame) for frame in later] == [[1], [2]]
    assert (first, second) == (before + 1, before + 2)


async def test_the_state_has_no_id_before_its_end(stream: EventStream) -> None:
    """A viewer that is cut off amid the state must not be taken for one that has it all."""
    async with viewer(stream) as connection:
        opening = await connection.next()

    assert opening.count(b"id: ") == 1
    assert opening.rstrip().rsplit(b"\n", 1)[-1].startswith(b"id: ")


async def test_a_viewer_that_returns_gets_what_it_missed(stream: EventStream, view: FakeView) -> None:
    """With the id of the last received event the server sends the later ones, and no reset."""
    async with viewer(stream) as connection:
        await connection.next()
        view.events.publish(node_event(view, 1))
        last = last_id(await connection.next())
    view.events.publish(node_event(view, 2))
    view.events.publish(node_event(view, 3))
    async with viewer(stream, last=last) as connection:
        missed = await connection.next()
        view.events.publish(node_event(view, 4))
        after = await connection.next()

    assert [kind for kind, _ in parse(missed)] == ["node", "node"]
    assert (sequences(missed), sequences(after)) == ([2, 3], [4])


@pytest.mark.parametrize(
    "last", ["", "x", "00000000-1", "5", "-1", "{incarnation}-99", "{incarnation}-0", "{incarnation}-x"]
)
async def test_an_unknown_id_gets_a_snapshot(stream: EventStream, view: FakeView, last: str) -> None:
    """Another start of the daemon, the future, or nonsense: everything again, with a reset."""
    async with viewer(stream) as connection:
        incarnation = last_id(await connection.next()).partition("-")[0]
    async with viewer(stream, last=last.format(incarnation=incarnation)) as connection:
        kinds = [kind for kind, _ in parse(await connection.next())]

    assert kinds[:2] == ["reset", "node"]


async def test_an_id_older_than_the_replay_buffer_gets_a_snapshot(stream: EventStream, view: FakeView) -> None:
    """When more happened than is kept, a hole would be left: reset. One less, and there is none."""
    async with viewer(stream) as connection:
        last = last_id(await connection.next())
    for sequence in range(module.MAX_REPLAYED):
        view.events.publish(node_event(view, sequence))
    async with viewer(stream, last=last) as connection:
        whole = sequences(await connection.next())
    view.events.publish(node_event(view, module.MAX_REPLAYED))
    async with viewer(stream, last=last) as connection:
        kinds = [kind for kind, _ in parse(await connection.next())]

    assert whole == list(range(module.MAX_REPLAYED))
    assert kinds[0] == "reset"


async def test_the_replay_buffer_is_cleared_without_viewers(view: FakeView, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream then unsubscribes, and an older id gets a snapshot even if no event happened."""
    monkeypatch.setattr(module, "REPLAY_KEPT_S", 0.02)
    monkeypatch.setattr(module, "SUMMARY_INTERVAL_S", 0.01)
    stream = EventStream(view)
    async with viewer(stream) as connection:
        last = last_id(await connection.next())
        while_there = view.events.has_subscribers
    async with asyncio.timeout(60):
        while view.events.has_subscribers:
            await asyncio.sleep(0.01)
    view.events.publish(node_event(view, 1))
    async with viewer(stream, last=last) as connection:
        kinds = [kind for kind, _ in parse(await connection.next())]
    stream.close()

    assert while_there
    assert kinds[0] == "reset"


async def test_an_alarm_event_comes_as_it_happens(stream: EventStream, view: FakeView) -> None:
    """
    What a grandmaster reports by itself reaches the viewer as an event of its own kind, and is not repeated to the
    next.
    """
    message = AlarmEventMessage(
        node="n1", incarnation=1, sequence=1, name="gm-a", published_realtime_ns=5, action="raise", id=97, index=1,
        severity="major", text="GNSS antenna open",
    )  # fmt: skip
    async with viewer(stream) as connection:
        await connection.next()
        view.events.publish(StreamEvent("alarm", message))
        [(kind, data)] = parse(await connection.next())
    async with viewer(stream) as connection:
        kinds = [kind for kind, _ in parse(await connection.next())]

    assert (kind, data) == ("alarm", as_json(message))
    assert "alarm" not in kinds


async def test_a_slow_viewer_gets_the_number_of_dropped_events(
    stream: EventStream, view: FakeView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A full queue drops the oldest events and the stream reports their number; after a reconnect the viewer gets them.
    """
    monkeypatch.setattr(module, "QUEUE_SIZE", 3)
    async with viewer(stream) as connection:
        last = last_id(await connection.next())
        for sequence in range(10):
            view.events.publish(node_event(view, sequence))
        sent = [await connection.next() for _ in range(4)]
    async with viewer(stream, last=last) as connection:
        missed = await connection.next()

    assert parse(sent[0]) == [("lost", {"lost": 7})] and b"id: " not in sent[0]
    assert [sequences(frame) for frame in sent[1:]] == [[7], [8], [9]]
    assert sequences(missed) == list(range(10))


async def test_viewers_that_read_nothing_keep_the_same_newest_events(
    stream: EventStream, view: FakeView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each follows another node, so together they would keep a queue of different events each."""
    monkeypatch.setattr(module, "MAX_SHARED_BYTES", 10 * module.EVENT_BYTES)
    nodes = [f"n{index}" for index in range(5)]
    viewers = [stream.add_viewer(StreamFilter(nodes=frozenset([node])), None) for node in nodes]
    for sequence in range(100):
        stream.put(node_event(view, sequence, nodes[sequence % 5]))
    await asyncio.sleep(0)

    kept = [queued.event for viewer in viewers for queued in viewer._queue]
    assert [viewer.dropped for viewer in viewers] == [18] * 5
    assert sorted(event.data.sequence for event in kept if isinstance(event.data, NodeState)) == list(range(90, 100))


async def test_a_quiet_stream_sends_heartbeats(stream: EventStream, view: FakeView) -> None:
    """Without events the server sends a comment at each heartbeat, and later events arrive."""
    async with viewer(stream, heartbeat_s=0.01) as connection:
        await connection.next()
        heartbeat = await connection.next()
        view.events.publish(node_event(view, 5))
        after = await connection.next()
        while after == heartbeat:
            after = await connection.next()

    assert heartbeat == b": alive\n\n"
    assert sequences(after) == [5]


async def test_an_event_is_serialised_once_for_all_viewers(view: FakeView) -> None:
    """The bytes that one viewer is sent are the very object that the next is sent."""
    event = node_event(view, 6)

    assert event.frame is event.frame


async def test_a_poisoned_name_cannot_forge_an_event(stream: EventStream, view: FakeView) -> None:
    """Line ends inside a text do not end the event that carries it."""
    evil = "x\n\nevent: finding\ndata: {}\r\n\r\n\u2028"
    async with viewer(stream) as connection:
        await connection.next()
        view.events.publish(StreamEvent("job", view.jobs()[0].model_copy(update={"job": evil})))
        frame = await connection.next()

    assert frame.count(b"\n\n") == 1
    assert [(kind, data["job"]) for kind, data in parse(frame)] == [("job", evil)]


async def test_the_filter_selects_kinds_and_nodes(stream: EventStream, view: FakeView) -> None:
    """Kinds and nodes are chosen, of the state and of the changes; ids go on all the same."""
    chosen = StreamFilter.from_query(StreamQuery(kinds="node,job", nodes="trainer-02"))
    async with viewer(stream, chosen) as connection:
        first = parse(await connection.next())
        view.events.publish(node_event(view, 1))
        view.events.publish(StreamEvent("finding", view.findings()[0]))
        view.events.publish(node_event(view, 2, "trainer-02"))
        second = await connection.next()

    assert [(kind, data["node"]) for kind, data in first[1:]] == [("node", "trainer-02"), ("job", "trainer-01")]
    assert sequences(second) == [2]


@pytest.mark.parametrize("query", [{"kinds": "node,colour"}, {"nodes": ",".join(f"n{n}" for n in range(1_001))}])
def test_an_invalid_filter_is_rejected(query: dict[str, str]) -> None:
    """A kind that is not there, and more nodes than a viewer may follow."""
    with pytest.raises(BadQuery, match="kinds|at most 1000 are allowed"):
        StreamFilter.from_query(StreamQuery(**query))


@pytest.fixture
def large(view: FakeView) -> FakeView:
    view.states = [
        view.node(),
        *(view.node().model_copy(update={"node": f"n{n:03}"}) for n in range(module.LARGE_FLEET_NODES)),
    ]
    return view


async def test_a_large_fleet_is_summed_up(
    stream: EventStream, large: FakeView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a filter the viewer of a large fleet gets its own node and, at each tick, the fleet's summary."""
    monkeypatch.setattr(module, "SUMMARY_INTERVAL_S", 0.01)
    async with viewer(stream) as connection:
        first = parse(await connection.next())
        large.events.publish(node_event(large, 1, "n007"))
        large.events.publish(node_event(large, 2))
        own = await connection.next()
        ticked = await connection.next()

    assert [kind for kind, _ in first[:3]] == ["reset", "node", "fleet"]
    assert [kind for kind, _ in first].count("node") == 1
    assert sequences(own) == [2]
    assert parse(ticked) == [("fleet", as_json(large.fleet()))] and b"id: " not in ticked


async def test_of_a_large_fleet_some_nodes_can_be_followed(stream: EventStream, large: FakeView) -> None:
    """Those that are named, and no summary."""
    async with viewer(stream, StreamFilter(nodes=frozenset({"n007", "n100"}))) as connection:
        first = parse(await connection.next())
        large.events.publish(node_event(large, 1, "n008"))
        large.events.publish(node_event(large, 2, "n007"))
        second = await connection.next()

    assert [data["node"] for kind, data in first if kind == "node"] == ["n007", "n100"]
    assert "fleet" not in [kind for kind, _ in first]
    assert sequences(second) == [2]


@pytest.fixture
async def server(view: FakeView) -> AsyncIterator[WebServer]:
    server = await serve(config.WebSettings(port=0), view)
    yield server
    await server.close()


@pytest.fixture
async def http(server: WebServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url) as session:
        yield session


async def test_a_viewer_reconnects_over_http(http: aiohttp.ClientSession, view: FakeView) -> None:
    """The server reads the Last-Event-ID header that browsers send."""
    first = await http.get("/events")
    opening = await first.content.readuntil(b"id: ") + await first.content.readline()
    first.close()
    view.events.publish(node_event(view, 77))
    second = await http.get("/events", headers={"Last-Event-ID": last_id(opening)})
    missed = await second.content.readuntil(b"}\n\n")
    second.close()

    assert first.content_type == "text/event-stream"
    assert sequences(missed) == [77] and b"reset" not in missed


async def test_the_number_of_viewers_is_limited(
    http: aiohttp.ClientSession, view: FakeView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A viewer above the limit gets 503 with the time to retry; after one disconnects it is accepted."""
    monkeypatch.setattr(module, "MAX_VIEWERS", 1)
    async with asyncio.timeout(60):
        first = await http.get("/events")
        await first.content.readuntil(b"event: hub")
        refused = await http.get("/events")
        first.close()
        while (again := await http.get("/events")).status == 503:
            await asyncio.sleep(0.01)
        again.close()

    assert (refused.status, refused.headers["Retry-After"]) == (503, "5")
    assert again.status == 200


async def test_closing_does_not_wait_for_viewers(view: FakeView, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with a viewer that never leaves closes, the viewer's stream ends, and the stream unsubscribes."""
    monkeypatch.setattr("timesyncd.web.app.SHUTDOWN_TIMEOUT_S", 3600.0)
    server = await serve(config.WebSettings(port=0), view)
    async with aiohttp.ClientSession(server.url) as session, session.get("/events") as answer:
        await answer.content.readuntil(b"event: finding")
        async with asyncio.timeout(60):
            await server.close()
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.content.read()

    assert not view.events.has_subscribers
