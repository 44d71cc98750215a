"""
Server-sent events: each viewer gets the state of everything, then what changes; a slow viewer is told what it lost.

`/events`: a viewer's connection.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain
from typing import get_args

from aiohttp import web

from timesyncd.feed import Subscription
from timesyncd.messages.node import NodeState
from timesyncd.web.query import BadQuery, StreamQuery
from timesyncd.web.responses import error_response
from timesyncd.web.routes import PlainText, Route
from timesyncd.web.view import StreamEvent, StreamEventKind, View

#: A viewer's own queue, and what is kept of the past for those who come back.
QUEUE_SIZE = 256
MAX_REPLAYED = 1_000
#: What is kept goes when nobody listened for so long.
REPLAY_KEPT_S = 300
MAX_VIEWERS = 64
#: Where more nodes are known they are summed up, once a second.
LARGE_FLEET_NODES = 200
MAX_NODES = 1_000
SUMMARY_INTERVAL_S = 1.0
HEARTBEAT_INTERVAL_S = 15.0
HEARTBEAT = b": alive\n\n"
RETRY_DELAY = b"retry: 2000\n\n"
RESET = b"event: reset\ndata: {}\n\n"

#: With its number among the changes; None: a summary of its moment, which nobody need get later.
NumberedEvent = tuple[int | None, StreamEvent]


@dataclass(frozen=True, slots=True)
class StreamFilter:
    """What a viewer asked for; None: everything."""

    kinds: frozenset[str] | None = None
    nodes: frozenset[str] | None = None

    @classmethod
    def of(cls, query: StreamQuery) -> StreamFilter:
        """Raises BadQuery."""
        kinds = None if query.kinds is None else frozenset(query.kinds.split(","))
        nodes = None if query.nodes is None else frozenset(query.nodes.split(","))
        if unknown := sorted((kinds or frozenset()) - set(get_args(StreamEventKind))):
            raise BadQuery(f"kinds = {unknown[0]!r}: there are: {', '.join(get_args(StreamEventKind))}")
        if nodes is not None and len(nodes) > MAX_NODES:
            raise BadQuery(f"nodes: {len(nodes)} of them; at most {MAX_NODES}")
        return cls(kinds, nodes)

    def has(self, kind: StreamEventKind) -> bool:
        return self.kinds is None or kind in self.kinds

    def sums_up(self, is_large: bool) -> bool:
        """The summary instead of many nodes, or because it was asked for."""
        return is_large and self.nodes is None if self.kinds is None else "fleet" in self.kinds


class Viewer(Subscription[NumberedEvent]):
    """A connection: `opening` is what it is sent at once."""

    def __init__(self, chosen: StreamFilter, opening: bytes) -> None:
        super().__init__(QUEUE_SIZE)
        self.chosen = chosen
        self.opening = opening


class EventStream:
    """
    The newest changes, numbered, and who is told of them. It listens from the first viewer on until none was there for a
    while: an id of before that begins anew.
    """

    def __init__(self, view: View) -> None:
        self.dropped = 0
        self.viewers: set[Viewer] = set()
        self._view = view
        self._incarnation = secrets.token_hex(4)
        self._number = 0
        self._kept: deque[tuple[int, StreamEvent]] = deque(maxlen=MAX_REPLAYED)
        self._own = ""
        self._is_large = False
        self._ticking: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        return len(self.viewers) >= MAX_VIEWERS

    def enter(self, chosen: StreamFilter, last_id: str | None) -> Viewer:
        """There is no wait between the state and the changes: nothing falls between them. To be left with `leave`."""
        if self._ticking is None:
            self._begin()
        missed = self._missed(last_id)
        if missed is None:
            told = chain([RESET], (event.frame for event in self._current(chosen)))
        else:
            told = chain(event.frame for _, event in missed if self._concerns(chosen, event))
        viewer = Viewer(chosen, b"".join([RETRY_DELAY, *told, self._id(self._number)]))
        self.viewers.add(viewer)
        return viewer

    def leave(self, viewer: Viewer) -> None:
        self.viewers.discard(viewer)

    def put(self, event: StreamEvent) -> None:
        """Something changed."""
        self._number += 1
        self._kept.append((self._number, event))
        for viewer in self.viewers:
            if self._concerns(viewer.chosen, event):
                viewer.put((self._number, event))

    def close(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            self._end()

    def frame(self, number: int | None, event: StreamEvent) -> bytes:
        return event.frame if number is None else self._id(number)[:-1] + event.frame

    def _id(self, number: int) -> bytes:
        """By itself it is no event, and the viewer keeps it all the same."""
        return f"id: {self._incarnation}-{number}\n\n".encode()

    def _begin(self) -> None:
        self._number += 1  # what happened while nobody listened was not counted
        self._own = self._view.node().node
        self._is_large = self._view.node_count() > LARGE_FLEET_NODES
        self._view.events.attach(self)
        self._ticking = asyncio.get_running_loop().create_task(self._tick(), name="events")

    def _end(self) -> None:
        self._view.events.unsubscribe(self)
        self._kept.clear()
        self._ticking = None

    async def _tick(self) -> None:
        lonely_s = 0.0
        while lonely_s < REPLAY_KEPT_S:
            await asyncio.sleep(SUMMARY_INTERVAL_S)
            lonely_s = 0.0 if self.viewers else lonely_s + SUMMARY_INTERVAL_S
            self._is_large = self._view.node_count() > LARGE_FLEET_NODES
            concerned = [viewer for viewer in self.viewers if viewer.chosen.sums_up(self._is_large)]
            if concerned:
                event = StreamEvent("fleet", self._view.fleet())
                for viewer in concerned:
                    viewer.put((None, event))
        self._end()

    def _missed(self, last_id: str | None) -> list[tuple[int, StreamEvent]] | None:
        """What came after this id; None: that is not known any more."""
        incarnation, _, number = (last_id or "").partition("-")
        if incarnation != self._incarnation or not number.isdecimal() or len(number) > 18:
            return None
        last, oldest = int(number), self._kept[0][0] if self._kept else self._number + 1
        if not oldest - 1 <= last <= self._number:
            return None
        return [(number, event) for number, event in self._kept if number > last]

    def _concerns(self, chosen: StreamFilter, event: StreamEvent) -> bool:
        if not chosen.has(event.kind):
            return False
        if not isinstance(event.data, NodeState):
            return True
        if chosen.nodes is not None:
            return event.data.node in chosen.nodes
        return not self._is_large or event.data.node == self._own

    def _current(self, chosen: StreamFilter) -> Iterator[StreamEvent]:
        """Everything as it stands; the first is this daemon's own node."""
        view = self._view
        if chosen.has("node"):
            yield from (StreamEvent("node", node) for node in self._nodes(chosen))
        if chosen.sums_up(self._is_large):
            yield StreamEvent("fleet", view.fleet())
        if chosen.has("grandmaster"):
            yield from (StreamEvent("grandmaster", unit) for unit in view.grandmasters())
        if chosen.has("job"):
            yield from (StreamEvent("job", job) for job in view.jobs())
        if chosen.has("finding"):
            yield from (StreamEvent("finding", finding) for finding in view.findings())
        if chosen.has("hub"):
            yield from (StreamEvent("hub", hub) for hub in view.hubs())

    def _nodes(self, chosen: StreamFilter) -> list[NodeState]:
        if chosen.nodes is not None:
            return self._view.nodes(sorted(chosen.nodes, key=lambda name: (name != self._own, name)))
        if self._is_large:
            return [self._view.node()]
        others = [name for name in self._view.node_names() if name != self._own]
        return [self._view.node(), *self._view.nodes(others)]


async def frames(
    stream: EventStream, viewer: Viewer, heartbeat_s: float = HEARTBEAT_INTERVAL_S
) -> AsyncGenerator[bytes, None]:
    """What one viewer is sent."""
    lost = 0
    yield viewer.opening
    while True:
        try:
            async with asyncio.timeout(heartbeat_s):
                number, event = await anext(viewer)
        except TimeoutError:
            yield HEARTBEAT
            continue
        if newly_lost := viewer.dropped - lost:
            lost += newly_lost
            yield b'event: lost\ndata: {"lost": %d}\n\n' % newly_lost
        yield stream.frame(number, event)


STREAM = web.AppKey("stream", EventStream)
VIEWER_TASKS = web.AppKey("viewers", set[asyncio.Task[None]])

RETRY_AFTER_S = "5"


async def events(request: web.Request, query: StreamQuery) -> web.StreamResponse:
    """HEAD has no stream to end."""
    stream, chosen = request.app[STREAM], StreamFilter.of(query)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    if request.method == "HEAD":
        return web.Response(headers={"Content-Type": "text/event-stream"})
    if stream.is_full:
        return error_response(503, f"{MAX_VIEWERS} viewers are served already", {"Retry-After": RETRY_AFTER_S})
    task = asyncio.current_task()
    assert task is not None
    viewer = stream.enter(chosen, request.headers.get("Last-Event-ID"))
    request.app[VIEWER_TASKS].add(task)
    try:
        await response.prepare(request)
        async with aclosing(frames(stream, viewer)) as told:
            async for frame in told:
                await response.write(frame)
    except ConnectionResetError:
        pass  # the viewer went away: that is how a stream ends
    finally:
        request.app[VIEWER_TASKS].discard(task)
        stream.leave(viewer)
    return response


async def close_viewers(app: web.Application) -> None:
    for task in app[VIEWER_TASKS]:
        task.cancel()
    app[STREAM].close()


ROUTE = Route(
    "/events",
    "What changes, as server-sent events.",
    "reader",
    events,
    PlainText("text/event-stream"),
    StreamQuery,
    (503,),
)
