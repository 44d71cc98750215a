"""The HTTP side: what each path answers, what is refused, and what a viewer of the events is sent."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_view import FakeView

from timesyncd import config
from timesyncd.clocks import NS_PER_S, SystemClocks
from timesyncd.errors import ConfigError
from timesyncd.feed import Observation
from timesyncd.messages import AlarmEventMessage, Message
from timesyncd.sample import TimeErrorSeries
from timesyncd.store.writer import Store
from timesyncd.web import events
from timesyncd.web.app import PAGE_FILES, Server, current, serve
from timesyncd.web.events import Event, frames


def as_json(message: Message) -> Any:
    return message.model_dump(mode="json")


@pytest.fixture
def view() -> FakeView:
    return FakeView()


@pytest.fixture
async def server(view: FakeView) -> AsyncIterator[Server]:
    server = await serve(config.Web(port=0), view)
    yield server
    await server.close()


@pytest.fixture
async def http(server: Server) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url) as session:
        yield session


@pytest.mark.parametrize("path", ["nodes", "grandmasters", "jobs", "findings"])
async def test_a_list_is_served_as_the_messages_are(http: aiohttp.ClientSession, view: FakeView, path: str) -> None:
    """Each list answers with its messages' own JSON, nothing renamed or left out."""
    answer = await http.get(f"/api/v1/{path}")

    assert answer.content_type == "application/json"
    assert await answer.json() == [as_json(message) for message in getattr(view, path)()]


async def test_own_node(http: aiohttp.ClientSession, view: FakeView) -> None:
    """`node` is the daemon's own node alone."""
    answer = await http.get("/api/v1/node")

    assert await answer.json() == as_json(view.nodes()[0])


async def test_a_job_by_its_id(http: aiohttp.ClientSession, view: FakeView) -> None:
    """A job is found by its id."""
    answer = await http.get("/api/v1/jobs/0f3a9c51d2b4e687")

    assert await answer.json() == as_json(view.jobs()[0])


async def test_an_unknown_job_is_told_which_there_are(http: aiohttp.ClientSession) -> None:
    """An id that is not known is a 404 in JSON that names the ids that are."""
    answer = await http.get("/api/v1/jobs/nope")

    assert answer.status == 404
    assert (await answer.json())["error"] == "there is no job 'nope'; jobs known here: 0f3a9c51d2b4e687"


async def test_a_grandmaster_by_its_name(http: aiohttp.ClientSession, view: FakeView) -> None:
    """A unit is found by its name; for one that is not there the names that are known are told."""
    answer = await http.get("/api/v1/grandmasters/gm-a")
    unknown = await http.get("/api/v1/grandmasters/gm-z")

    assert await answer.json() == as_json(view.grandmasters()[0])
    assert unknown.status == 404
    assert (await unknown.json())["error"] == "there is no grandmaster 'gm-z'; grandmasters known here: gm-a"


async def test_without_a_store_there_is_no_course(http: aiohttp.ClientSession) -> None:
    """A daemon that keeps no history answers with an empty list."""
    answer = await http.get("/api/v1/grandmasters/gm-a/time-errors")

    assert (answer.status, await answer.json()) == (200, [])


async def test_a_day_of_time_errors_comes_from_the_store(view: FakeView, tmp_path: Path) -> None:
    """What the store holds of the last 24 hours, each step with its lowest and highest value; what is older is left out."""
    path = tmp_path / "history.sqlite"
    now_ns = time.time_ns()
    store = Store(config.Store(path=path), SystemClocks(), lambda problem: None)
    store.start()
    points = ((now_ns - 90_000 * NS_PER_S, 99), (now_ns - 10, 5), (now_ns - 5, -7))
    store.put(Observation(TimeErrorSeries("gm-a", "gnss-1", "te", points), None))
    store.stop()
    server = await serve(config.Web(port=0), view, path)
    async with aiohttp.ClientSession(server.url) as session:
        course = await (await session.get("/api/v1/grandmasters/gm-a/time-errors")).json()
    await server.close()

    assert [(step["channel"], step["metric"], step["lowest_ns"], step["highest_ns"]) for step in course] == [
        ("gnss-1", "te", -7, 5)
    ]


async def test_a_store_that_cannot_be_read_is_said(view: FakeView, tmp_path: Path) -> None:
    """503 with what the store said, and the page goes on without a course."""
    server = await serve(config.Web(port=0), view, tmp_path / "none.sqlite")
    async with aiohttp.ClientSession(server.url) as session:
        answer = await session.get("/api/v1/grandmasters/gm-a/time-errors")
        error = (await answer.json())["error"]
    await server.close()

    assert answer.status == 503
    assert error.endswith("none.sqlite: there is no store (timesyncd run makes it)")


async def test_an_unknown_path_is_told_which_there_are(http: aiohttp.ClientSession) -> None:
    """A path that is not served is a 404 in JSON that names the paths that are."""
    answer = await http.get("/api/v1/nodez")
    error = (await answer.json())["error"]

    assert (answer.status, error[:44]) == (404, "there is no /api/v1/nodez; there are: /, /ap")
    assert "/api/v1/jobs/{id}" in error


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/api/v1/node", "/events", "/nowhere"])
async def test_nothing_can_be_written(http: aiohttp.ClientSession, method: str, path: str) -> None:
    """Whatever does not read is a 405, on every path."""
    answer = await http.request(method, path)

    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
    assert "error" in await answer.json()


@pytest.mark.parametrize("path", ["/", "/api/v1/node", "/events", "/metrics", "/nowhere"])
async def test_a_foreign_name_is_refused(http: aiohttp.ClientSession, path: str) -> None:
    """A page on loopback that is asked by another site's name answers 421 in JSON, on every path."""
    async with asyncio.timeout(5):  # events that were served would never end
        answer = await http.get(path, headers={"Host": "evil.example"})
        error = (await answer.json())["error"]

    assert answer.status == 421
    assert error == "'evil.example' is not served here: ask 127.0.0.1, another IP address, or localhost"


async def test_health_says_what_is_wrong(http: aiohttp.ClientSession, view: FakeView) -> None:
    """200 while all is well, else 503 with the reason as its text."""
    well = await http.get("/healthz")
    view.wrong = "source ptp: no answer for 40 s"
    ill = await http.get("/healthz")

    assert (well.status, await well.text()) == (200, "ok\n")
    assert (ill.status, await ill.text()) == (503, "source ptp: no answer for 40 s\n")


async def test_metrics_are_passed_on(http: aiohttp.ClientSession) -> None:
    """The scrape is the view's bytes, under the text format's type."""
    answer = await http.get("/metrics")

    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert await answer.read() == b"timesyncd_gm_bound_seconds 1e-06\n"


@pytest.mark.parametrize("path", PAGE_FILES)
async def test_the_page_runs_no_script_but_its_own(http: aiohttp.ClientSession, path: str) -> None:
    """Every file of the page is served, under a policy that allows nothing inline and nothing from elsewhere."""
    answer = await http.get(path)
    text = await answer.text()

    assert answer.status == 200
    assert "script-src 'self'; style-src 'self'" in answer.headers["Content-Security-Policy"]
    assert "unsafe" not in answer.headers["Content-Security-Policy"]
    assert not any(banned in text for banned in ("http://", "https://", "innerHTML", "style=", "onclick="))


async def test_a_taken_port_is_one_line(server: Server, view: FakeView) -> None:
    """An address that cannot be had is a configuration error that names it."""
    port = int(server.url.rsplit(":", 1)[1].rstrip("/"))

    with pytest.raises(ConfigError, match=f"web: cannot listen on 127.0.0.1 port {port}: "):
        await serve(config.Web(port=port), view)


def parse(frame: bytes) -> list[tuple[int, str, Any]]:
    """The events of a piece of a stream: id, kind, data; comments and fields of the stream itself left out."""
    found = []
    for block in frame.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if "event" in fields:
            found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


def node_event(view: FakeView, sequence: int) -> Event:
    return Event("node", view.node().model_copy(update={"sequence": sequence}))


def stream_of(view: FakeView, heartbeat_s: float = 15.0) -> AsyncGenerator[bytes, None]:
    return frames(view.events, lambda: current(view), heartbeat_s)


async def test_a_viewer_first_gets_everything_as_it_stands(view: FakeView) -> None:
    """The first events are the own node, the other nodes, grandmasters, jobs and findings."""
    async with aclosing(stream_of(view)) as stream:
        first = parse(await anext(stream))

    messages = [*view.nodes(), *view.grandmasters(), *view.jobs(), *view.findings()]
    kinds = ["node", "node", "grandmaster", "job", "finding"]
    assert [(number, kind) for number, kind, _ in first] == list(enumerate(kinds, 1))
    assert [data for _, _, data in first] == [as_json(message) for message in messages]


async def test_then_what_changes(view: FakeView) -> None:
    """A published event reaches the viewer under the next id."""
    async with aclosing(stream_of(view)) as stream:
        await anext(stream)
        view.events.publish(node_event(view, 4712))
        [(number, kind, data)] = parse(await anext(stream))

    assert (number, kind, data["sequence"]) == (6, "node", 4712)


async def test_an_alarm_event_comes_as_it_happens(view: FakeView) -> None:
    """What a grandmaster reports by itself reaches the viewer as an event of its own kind, and is not repeated to the next."""
    message = AlarmEventMessage(
        node="n1", incarnation=1, sequence=1, name="gm-a", published_realtime_ns=5, action="raise", id=97, index=1,
        severity="major", text="GNSS antenna open",
    )  # fmt: skip
    async with aclosing(stream_of(view)) as stream:
        await anext(stream)
        view.events.publish(Event("alarm", message))
        [(_, kind, data)] = parse(await anext(stream))
    async with aclosing(stream_of(view)) as stream:
        kinds = [kind for _, kind, _ in parse(await anext(stream))]

    assert (kind, data) == ("alarm", as_json(message))
    assert "alarm" not in kinds


async def test_nothing_falls_between_the_state_and_the_changes(view: FakeView) -> None:
    """What is published while the first state is still being sent is sent after it."""
    async with aclosing(stream_of(view)) as stream:
        opening = await anext(stream)
        view.events.publish(node_event(view, 1))
        view.events.publish(node_event(view, 2))
        later = [parse(await anext(stream))[0] for _ in range(2)]

    assert len(parse(opening)) == 5
    assert [(number, data["sequence"]) for number, _, data in later] == [(6, 1), (7, 2)]


async def test_a_slow_viewer_is_told_what_it_lost(view: FakeView, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past its queue a viewer loses the oldest events, hears how many, and sees their ids missing."""
    monkeypatch.setattr(events, "QUEUE_SIZE", 3)
    async with aclosing(stream_of(view)) as stream:
        await anext(stream)
        for sequence in range(10):
            view.events.publish(node_event(view, sequence))
        heard = [parse(await anext(stream))[0] for _ in range(4)]

    assert heard[0] == (12, "lost", {"lost": 7})
    assert [(number, data["sequence"]) for number, _, data in heard[1:]] == [(13, 7), (14, 8), (15, 9)]


async def test_a_quiet_stream_shows_that_it_lives(view: FakeView) -> None:
    """With nothing to tell, a comment is sent at each heartbeat, and events come through after it."""
    async with asyncio.timeout(5), aclosing(stream_of(view, heartbeat_s=0.01)) as stream:
        await anext(stream)
        heartbeat = await anext(stream)
        view.events.publish(node_event(view, 5))
        after = await anext(stream)
        while after == heartbeat:
            after = await anext(stream)

    assert heartbeat == b": alive\n\n"
    assert parse(after)[0][2]["sequence"] == 5


async def test_an_event_is_serialised_once_for_all_viewers(view: FakeView) -> None:
    """The bytes that one viewer is sent are the very object that the next is sent."""
    event = node_event(view, 6)

    assert event.json is event.json


async def test_a_poisoned_name_cannot_forge_an_event(view: FakeView) -> None:
    """Line ends inside a text do not end the event that carries it."""
    evil = "x\n\nevent: finding\ndata: {}\r\n\r\n\u2028"
    async with aclosing(stream_of(view)) as stream:
        await anext(stream)
        view.events.publish(Event("job", view.jobs()[0].model_copy(update={"job": evil})))
        frame = await anext(stream)

    assert frame.count(b"\n\n") == 1
    assert [(kind, data["job"]) for _, kind, data in parse(frame)] == [("job", evil)]


async def test_a_viewer_that_leaves_is_forgotten(http: aiohttp.ClientSession, view: FakeView) -> None:
    """When the connection ends the feed has no subscriber left: nothing is kept, nothing is done."""
    answer = await http.get("/events")
    await answer.content.readuntil(b"event: finding")
    while_there = len(view.events._subscriptions)
    answer.close()
    async with asyncio.timeout(5):
        while view.events._subscriptions:
            await asyncio.sleep(0.01)

    assert (while_there, answer.content_type) == (1, "text/event-stream")


async def test_closing_does_not_wait_for_viewers(view: FakeView) -> None:
    """A server with a viewer that never leaves closes, and the viewer's stream ends."""
    server = await serve(config.Web(port=0), view)
    async with aiohttp.ClientSession(server.url) as session, session.get("/events") as answer:
        await answer.content.readuntil(b"event: finding")
        async with asyncio.timeout(1.5):  # less than the grace that answers under way are given
            await server.close()
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.content.read()

    assert not view.events._subscriptions
