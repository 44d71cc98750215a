"""`/events`: a viewer's connection."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from aiohttp import web

from timesyncd.web.refusals import refusal
from timesyncd.web.routes import StreamQuery
from timesyncd.web.routes_part import Route, Text
from timesyncd.web.stream import MOST_VIEWERS, Chosen, Stream, frames

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
