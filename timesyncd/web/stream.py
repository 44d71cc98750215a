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
from timesyncd.web.responses import refusal
from timesyncd.web.routes import Route, Text
from timesyncd.web.view import Event, Kind, View

#: A viewer's own queue, and what is kept of the past for those who come back.
QUEUE_SIZE = 256
KEPT = 1_000
#: What is kept goes when nobody listened for so long.
LINGER_S = 300
MOST_VIEWERS = 64
#: Where more nodes are known they are summed up, once a second.
LARGE = 200
MOST_NODES = 1_000
FLEET_EVERY_S = 1.0
HEARTBEAT_S = 15.0
HEARTBEAT = b": alive\n\n"
RECONNECT = b"retry: 2000\n\n"
RESET = b"event: reset\ndata: {}\n\n"

#: With its number among the changes; None: a summary of its moment, which nobody need get later.
Numbered = tuple[int | None, Event]


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a viewer asked for; None: everything."""

    kinds: frozenset[str] | None = None
    nodes: frozenset[str] | None = None

    @classmethod
    def of(cls, query: StreamQuery) -> Chosen:
        """Raises BadQuery."""
        kinds = None if query.kinds is None else frozenset(query.kinds.split(","))
        nodes = None if query.nodes is None else frozenset(query.nodes.split(","))
        if unknown := sorted((kinds or frozenset()) - set(get_args(Kind))):
            raise BadQuery(f"kinds = {unknown[0]!r}: there are: {', '.join(get_args(Kind))}")
        if nodes is not None and len(nodes) > MOST_NODES:
            raise BadQuery(f"nodes: {len(nodes)} of them; at most {MOST_NODES}")
        return cls(kinds, nodes)

    def has(self, kind: Kind) -> bool:
        return self.kinds is None or kind in self.kinds

    def sums_up(self, is_large: bool) -> bool:
        """The summary instead of many nodes, or because it was asked for."""
        return is_large and self.nodes is None if self.kinds is None else "fleet" in self.kinds


class Viewer(Subscription[Numbered]):
    """A connection: `opening` is what it is sent at once."""

    def __init__(self, chosen: Chosen, opening: bytes) -> None:
        super().__init__(QUEUE_SIZE)
        self.chosen = chosen
        self.opening = opening


class Stream:
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
        self._kept: deque[tuple[int, Event]] = deque(maxlen=KEPT)
        self._own = ""
        self._is_large = False
        self._ticking: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        return len(self.viewers) >= MOST_VIEWERS

    def enter(self, chosen: Chosen, last_id: str | None) -> Viewer:
        """There is no wait between the state and the changes: nothing falls between them. To be left with `leave`."""
        if self._ticking is None:
            self._begin()
        missed = self._missed(last_id)
        if missed is None:
            told = chain([RESET], (event.frame for event in self._current(chosen)))
        else:
            told = chain(event.frame for _, event in missed if self._concerns(chosen, event))
        viewer = Viewer(chosen, b"".join([RECONNECT, *told, self._id(self._number)]))
        self.viewers.add(viewer)
        return viewer

    def leave(self, viewer: Viewer) -> None:
        self.viewers.discard(viewer)

    def put(self, event: Event) -> None:
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

    def frame(self, number: int | None, event: Event) -> bytes:
        return event.frame if number is None else self._id(number)[:-1] + event.frame

    def _id(self, number: int) -> bytes:
        """By itself it is no event, and the viewer keeps it all the same."""
        return f"id: {self._incarnation}-{number}\n\n".encode()

    def _begin(self) -> None:
        self._number += 1  # what happened while nobody listened was not counted
        self._own = self._view.node().node
        self._is_large = self._view.node_count() > LARGE
        self._view.events.attach(self)
        self._ticking = asyncio.get_running_loop().create_task(self._tick(), name="events")

    def _end(self) -> None:
        self._view.events.unsubscribe(self)
        self._kept.clear()
        self._ticking = None

    async def _tick(self) -> None:
        lonely_s = 0.0
        while lonely_s < LINGER_S:
            await asyncio.sleep(FLEET_EVERY_S)
            lonely_s = 0.0 if self.viewers else lonely_s + FLEET_EVERY_S
            self._is_large = self._view.node_count() > LARGE
            concerned = [viewer for viewer in self.viewers if viewer.chosen.sums_up(self._is_large)]
            if concerned:
                event = Event("fleet", self._view.fleet())
                for viewer in concerned:
                    viewer.put((None, event))
        self._end()

    def _missed(self, last_id: str | None) -> list[tuple[int, Event]] | None:
        """What came after this id; None: that is not known any more."""
        incarnation, _, number = (last_id or "").partition("-")
        if incarnation != self._incarnation or not number.isdecimal() or len(number) > 18:
            return None
        last, oldest = int(number), self._kept[0][0] if self._kept else self._number + 1
        if not oldest - 1 <= last <= self._number:
            return None
        return [(number, event) for number, event in self._kept if number > last]

    def _concerns(self, chosen: Chosen, event: Event) -> bool:
        if not chosen.has(event.kind):
            return False
        if not isinstance(event.data, NodeState):
            return True
        if chosen.nodes is not None:
            return event.data.node in chosen.nodes
        return not self._is_large or event.data.node == self._own

    def _current(self, chosen: Chosen) -> Iterator[Event]:
        """Everything as it stands; the first is this daemon's own node."""
        view = self._view
        if chosen.has("node"):
            yield from (Event("node", node) for node in self._nodes(chosen))
        if chosen.sums_up(self._is_large):
            yield Event("fleet", view.fleet())
        if chosen.has("grandmaster"):
            yield from (Event("grandmaster", unit) for unit in view.grandmasters())
        if chosen.has("job"):
            yield from (Event("job", job) for job in view.jobs())
        if chosen.has("finding"):
            yield from (Event("finding", finding) for finding in view.findings())
        if chosen.has("hub"):
            yield from (Event("hub", hub) for hub in view.hubs())

    def _nodes(self, chosen: Chosen) -> list[NodeState]:
        if chosen.nodes is not None:
            return self._view.nodes(sorted(chosen.nodes, key=lambda name: (name != self._own, name)))
        if self._is_large:
            return [self._view.node()]
        others = [name for name in self._view.node_names() if name != self._own]
        return [self._view.node(), *self._view.nodes(others)]


async def frames(stream: Stream, viewer: Viewer, heartbeat_s: float = HEARTBEAT_S) -> AsyncGenerator[bytes, None]:
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


STREAM = web.AppKey("stream", Stream)
VIEWERS = web.AppKey("viewers", set[asyncio.Task[None]])

COME_BACK_S = "5"


async def events(request: web.Request, query: StreamQuery) -> web.StreamResponse:
    """HEAD has no stream to end."""
    stream, chosen = request.app[STREAM], Chosen.of(query)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    if request.method == "HEAD":
        return web.Response(headers={"Content-Type": "text/event-stream"})
    if stream.is_full:
        return refusal(503, f"{MOST_VIEWERS} viewers are served already", {"Retry-After": COME_BACK_S})
    task = asyncio.current_task()
    assert task is not None
    viewer = stream.enter(chosen, request.headers.get("Last-Event-ID"))
    request.app[VIEWERS].add(task)
    try:
        await response.prepare(request)
        async with aclosing(frames(stream, viewer)) as told:
            async for frame in told:
                await response.write(frame)
    except ConnectionResetError:
        pass  # the viewer went away: that is how a stream ends
    finally:
        request.app[VIEWERS].discard(task)
        stream.leave(viewer)
    return response


async def cut_off(app: web.Application) -> None:
    for task in app[VIEWERS]:
        task.cancel()
    app[STREAM].close()


ROUTE = Route(
    "/events", "What changes, as server-sent events.", "reader", events, Text("text/event-stream"), StreamQuery, (503,)
)
