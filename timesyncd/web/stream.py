"""
`/events`, server-sent events: each viewer gets a snapshot of every current state, then the changes, from a bounded
queue of its own.

A slow viewer's queue drops its oldest events and reports their number. A viewer that reconnects with its Last-Event-ID
gets what it missed, while the replay buffer has it.

Why the framing is not aiohttp-sse's (tried with 3.0): it frames an event again for each viewer (14 us for a node's
state, against 0.3 us here, where all viewers share one frame), and it cannot send an id by itself, which ends the
snapshot so that a viewer that was cut off within it gets a new snapshot. It would replace some ten lines: heartbeat, id
and retry; resume and the bounded queue would stay here.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, get_args

from aiohttp import web

from timesyncd.feed import Subscription
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import NodeState
from timesyncd.web.query import BadQuery, StreamQuery
from timesyncd.web.responses import error_response
from timesyncd.web.routes import PlainText, Route
from timesyncd.web.view import StreamEvent, StreamEventKind, View

#: The size of each viewer's queue, and of the replay buffer for viewers that reconnect.
QUEUE_SIZE = 256
MAX_REPLAYED = 1_000
MAX_REPLAYED_BYTES = 8 * 2**20
MAX_QUEUED_BYTES = 4 * 2**20
#: The queues share their events, so none keeps one from which on all viewers together got so many bytes.
MAX_SHARED_BYTES = 32 * 2**20
#: What an event takes in memory with its frame, about: without the ranks of a job, and for each rank.
EVENT_BYTES, RANK_BYTES = 4_096, 1_536
#: The replay buffer is cleared after this time without a viewer.
REPLAY_KEPT_S = 300
MAX_VIEWERS = 256
#: In a fleet of more nodes a viewer gets a summary once a second instead of every node.
LARGE_FLEET_NODES = 200
MAX_NODES = 1_000
SUMMARY_INTERVAL_S = 1.0
HEARTBEAT_INTERVAL_S = 15.0
HEARTBEAT = b": alive\n\n"
RETRY_DELAY = b"retry: 2000\n\n"
RESET = b"event: reset\ndata: {}\n\n"


class QueuedEvent(NamedTuple):
    """
    `number` is its place in the stream; None: a summary, which is never replayed. `begins_bytes`: what all events before it take.
    """

    number: int | None
    event: StreamEvent
    begins_bytes: int


@dataclass(frozen=True, slots=True)
class StreamFilter:
    """The kinds of events and the nodes that a viewer requested; None: all."""

    kinds: frozenset[str] | None = None
    nodes: frozenset[str] | None = None

    @classmethod
    def from_query(cls, query: StreamQuery) -> StreamFilter:
        """Raises BadQuery."""
        kinds = None if query.kinds is None else frozenset(query.kinds.split(","))
        nodes = None if query.nodes is None else frozenset(query.nodes.split(","))
        if unknown := sorted((kinds or frozenset()) - set(get_args(StreamEventKind))):
            raise BadQuery(
                f"kinds = {unknown[0]!r}: unknown kind; the kinds are: {', '.join(get_args(StreamEventKind))}"
            )
        if nodes is not None and len(nodes) > MAX_NODES:
            raise BadQuery(f"nodes: {len(nodes)} names; at most {MAX_NODES} are allowed")
        return cls(kinds, nodes)

    def includes(self, kind: StreamEventKind) -> bool:
        return self.kinds is None or kind in self.kinds

    def includes_summary(self, is_large: bool) -> bool:
        """Whether the viewer gets the fleet's summary: in place of many nodes, or because it requested that kind."""
        return is_large and self.nodes is None if self.kinds is None else "fleet" in self.kinds


def weight_of(event: StreamEvent) -> int:
    """An estimate of its memory in bytes, which serializes nothing."""
    return EVENT_BYTES + RANK_BYTES * (len(event.data.ranks) if isinstance(event.data, JobState) else 0)


class Viewer(Subscription[QueuedEvent]):
    """
    One connection; `opening` is what the server sends first: the snapshot, or what the viewer missed.

    A queue beyond MAX_QUEUED_BYTES loses its oldest events, as one beyond QUEUE_SIZE does.
    """

    def __init__(self, stream_filter: StreamFilter, opening: bytes) -> None:
        super().__init__(QUEUE_SIZE)
        self.filter = stream_filter
        self.opening = opening
        self._queued_bytes = 0

    def put(self, value: QueuedEvent) -> None:
        weight = weight_of(value.event)
        while self._queue and (self._queued_bytes + weight > MAX_QUEUED_BYTES or len(self._queue) >= QUEUE_SIZE):
            self._drop_oldest()
        self._queued_bytes += weight
        super().put(value)

    def drop_before(self, begins_bytes: int) -> None:
        while self._queue and self._queue[0].begins_bytes < begins_bytes:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self._queued_bytes -= weight_of(self._queue.popleft().event)
        self.dropped += 1

    async def __anext__(self) -> QueuedEvent:
        value = await super().__anext__()
        self._queued_bytes -= weight_of(value.event)
        return value


class EventStream:
    """
    The viewers, and the newest events with their numbers. It subscribes to the view's events at the first viewer and
    unsubscribes REPLAY_KEPT_S after the last one left; an older Last-Event-ID then gets a new snapshot.
    """

    def __init__(self, view: View) -> None:
        self.dropped = 0
        self.viewers: set[Viewer] = set()
        self._view = view
        self._incarnation = secrets.token_hex(4)
        self._number = 0
        self._replay: deque[tuple[int, StreamEvent]] = deque()
        self._replay_bytes = self._put_bytes = 0
        self._own = ""
        self._is_large = False
        self._task: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        return len(self.viewers) >= MAX_VIEWERS

    def add_viewer(self, stream_filter: StreamFilter, last_id: str | None) -> Viewer:
        """
        A viewer with its snapshot. Nothing awaits between the snapshot and the changes, so no event is lost between
        them.
        """
        if self._task is None:
            self._start()
        missed = self._events_since(last_id)
        if missed is None:
            events = chain([RESET], (event.frame for event in self._snapshot(stream_filter)))
        else:
            events = chain(event.frame for _, event in missed if self._matches(stream_filter, event))
        viewer = Viewer(stream_filter, b"".join([RETRY_DELAY, *events, self._id(self._number)]))
        self.viewers.add(viewer)
        return viewer

    def remove_viewer(self, viewer: Viewer) -> None:
        self.viewers.discard(viewer)

    def put(self, event: StreamEvent) -> None:
        """Queues an event for each viewer whose filter it matches."""
        self._number += 1
        self._replay.append((self._number, event))
        self._replay_bytes += weight_of(event)
        while self._replay_bytes > MAX_REPLAYED_BYTES or len(self._replay) > MAX_REPLAYED:
            self._replay_bytes -= weight_of(self._replay.popleft()[1])
        self._queue(self._number, event, [viewer for viewer in self.viewers if self._matches(viewer.filter, event)])

    def _queue(self, number: int | None, event: StreamEvent, receivers: Iterable[Viewer]) -> None:
        queued = QueuedEvent(number, event, self._put_bytes)
        self._put_bytes += weight_of(event)
        for viewer in self.viewers:
            viewer.drop_before(self._put_bytes - MAX_SHARED_BYTES)
        for viewer in receivers:
            viewer.put(queued)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._stop()

    def frame(self, number: int | None, event: StreamEvent) -> bytes:
        return event.frame if number is None else self._id(number)[:-1] + event.frame

    def _id(self, number: int) -> bytes:
        """A frame with an id alone: it dispatches no event, but the viewer stores it as its Last-Event-ID."""
        return f"id: {self._incarnation}-{number}\n\n".encode()

    def _start(self) -> None:
        self._number += 1  # events without a viewer were not counted: an older id must not match
        self._own = self._view.node().node
        self._is_large = self._view.node_count() > LARGE_FLEET_NODES
        self._view.events.add(self)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="events")

    def _stop(self) -> None:
        self._view.events.unsubscribe(self)
        self._replay.clear()
        self._replay_bytes = 0
        self._task = None

    async def _run(self) -> None:
        without_viewer_s = 0.0
        while without_viewer_s < REPLAY_KEPT_S:
            await asyncio.sleep(SUMMARY_INTERVAL_S)
            without_viewer_s = 0.0 if self.viewers else without_viewer_s + SUMMARY_INTERVAL_S
            self._is_large = self._view.node_count() > LARGE_FLEET_NODES
            receivers = [viewer for viewer in self.viewers if viewer.filter.includes_summary(self._is_large)]
            if receivers:
                self._queue(None, StreamEvent("fleet", self._view.fleet()), receivers)
        self._stop()

    def _events_since(self, last_id: str | None) -> list[tuple[int, StreamEvent]] | None:
        """The events after this id; None: the replay buffer no longer has them all."""
        incarnation, _, number = (last_id or "").partition("-")
        if incarnation != self._incarnation or not number.isdecimal() or len(number) > 18:
            return None
        last, oldest = int(number), self._replay[0][0] if self._replay else self._number + 1
        if not oldest - 1 <= last <= self._number:
            return None
        return [(number, event) for number, event in self._replay if number > last]

    def _matches(self, stream_filter: StreamFilter, event: StreamEvent) -> bool:
        if not stream_filter.includes(event.kind):
            return False
        if not isinstance(event.data, NodeState):
            return True
        if stream_filter.nodes is not None:
            return event.data.node in stream_filter.nodes
        return not self._is_large or event.data.node == self._own

    def _snapshot(self, stream_filter: StreamFilter) -> Iterator[StreamEvent]:
        """Every current state; the first is that of this daemon's own node."""
        view = self._view
        if stream_filter.includes("node"):
            yield from (StreamEvent("node", node) for node in self._nodes(stream_filter))
        if stream_filter.includes_summary(self._is_large):
            yield StreamEvent("fleet", view.fleet())
        if stream_filter.includes("grandmaster"):
            yield from (StreamEvent("grandmaster", grandmaster) for grandmaster in view.grandmasters())
        if stream_filter.includes("job"):
            yield from (StreamEvent("job", job) for job in view.jobs())
        if stream_filter.includes("finding"):
            yield from (StreamEvent("finding", finding) for finding in view.findings())
        if stream_filter.includes("hub"):
            yield from (StreamEvent("hub", hub) for hub in view.hubs())

    def _nodes(self, stream_filter: StreamFilter) -> list[NodeState]:
        if stream_filter.nodes is not None:
            return self._view.nodes(sorted(stream_filter.nodes, key=lambda name: (name != self._own, name)))
        if self._is_large:
            return [self._view.node()]
        others = [name for name in self._view.node_names() if name != self._own]
        return [self._view.node(), *self._view.nodes(others)]


async def frames(
    stream: EventStream, viewer: Viewer, heartbeat_s: float = HEARTBEAT_INTERVAL_S
) -> AsyncGenerator[bytes, None]:
    """
    The frames for one viewer, without end: a heartbeat while nothing changes, and the number of dropped events before
    the next one.
    """
    reported = 0
    yield viewer.opening
    viewer.opening = b""  # sent; it may be large
    while True:
        try:
            async with asyncio.timeout(heartbeat_s):
                queued = await anext(viewer)
        except TimeoutError:
            yield HEARTBEAT
            continue
        if newly_lost := viewer.dropped - reported:
            reported += newly_lost
            yield b'event: lost\ndata: {"lost": %d}\n\n' % newly_lost
        yield stream.frame(queued.number, queued.event)


STREAM = web.AppKey("stream", EventStream)
VIEWER_TASKS = web.AppKey("viewers", set[asyncio.Task[None]])

RETRY_AFTER_S = "5"


async def events(request: web.Request, query: StreamQuery) -> web.StreamResponse:
    """Streams events until the viewer disconnects; HEAD gets the headers alone."""
    stream, stream_filter = request.app[STREAM], StreamFilter.from_query(query)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    if request.method == "HEAD":
        return web.Response(headers={"Content-Type": "text/event-stream"})
    if stream.is_full:
        return error_response(
            503,
            f"{MAX_VIEWERS} viewers are connected, which is the limit; retry in {RETRY_AFTER_S} s",
            {"Retry-After": RETRY_AFTER_S},
        )
    task = asyncio.current_task()
    assert task is not None
    viewer = stream.add_viewer(stream_filter, request.headers.get("Last-Event-ID"))
    request.app[VIEWER_TASKS].add(task)
    try:
        await response.prepare(request)
        async with aclosing(frames(stream, viewer)) as frames_of_viewer:
            async for frame in frames_of_viewer:
                await response.write(frame)
    except ConnectionResetError:
        pass  # the viewer disconnected: a stream ends so
    finally:
        request.app[VIEWER_TASKS].discard(task)
        stream.remove_viewer(viewer)
    return response


async def close_viewers(app: web.Application) -> None:
    for task in app[VIEWER_TASKS]:
        task.cancel()
    app[STREAM].close()


ROUTE = Route(
    "/events",
    "Current states and their changes, as server-sent events.",
    "reader",
    events,
    PlainText("text/event-stream"),
    StreamQuery,
    (503,),
)
