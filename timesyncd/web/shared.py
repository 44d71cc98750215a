"""
One answer for all viewers that ask the same: a page of each of 200 viewers asks for the same lists, map and charts.

A client that accepts an older answer says so as to any HTTP cache, by `Cache-Control: max-age=SECONDS` (RFC 9111, section 5.2.1.1).
Every other client gets an answer of its own.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

from aiohttp import web

from timesyncd.web.responses import Answer, JsonAnswer

#: No answer is kept longer, whatever a client accepts.
KEPT_S = 5
MAX_KEPT = 32
MAX_KEPT_BYTES = 2**20

_MAX_AGE = re.compile(r"\s*max-age\s*=\s*([0-9]{1,9})\s*", re.ASCII)


def accepted_age_s(request: web.Request) -> int:
    """How old an answer the client accepts; 0: it wants one of its own."""
    directives = request.headers.get("Cache-Control", "").split(",")
    found = [int(match[1]) for match in map(_MAX_AGE.fullmatch, directives) if match]
    return min([KEPT_S, *found]) if found else 0


class _Kept(NamedTuple):
    began_s: float
    making: asyncio.Task[Answer]


class SharedAnswers:
    """The JSON answers of the last KEPT_S seconds, by path and query. An error is never shared."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    async def answer(
        self, key: str, accepted_s: int, make: Callable[[], Coroutine[Any, Any, Answer]]
    ) -> tuple[Answer, int]:
        """The answer, and its age in seconds, rounded up; 0: it was computed for this client."""
        loop = asyncio.get_running_loop()
        kept = self._kept.get(key)
        if kept is not None and loop.time() - kept.began_s < accepted_s:
            answer = await asyncio.shield(kept.making)
            if isinstance(answer, JsonAnswer):
                return answer, math.ceil(loop.time() - kept.began_s)
        if kept is None and len(self._kept) >= MAX_KEPT:
            return await make(), 0
        return await asyncio.shield(self._make(key, make)), 0

    def close(self) -> None:
        for kept in self._kept.values():
            kept.making.cancel()

    def _make(self, key: str, make: Callable[[], Coroutine[Any, Any, Answer]]) -> Awaitable[Answer]:
        """Begins it in a task, which goes on where its client leaves."""
        loop = asyncio.get_running_loop()
        kept = self._kept[key] = _Kept(loop.time(), loop.create_task(make(), name="answer"))
        kept.making.add_done_callback(lambda _: None if _is_shareable(kept.making) else self._forget(key, kept))
        loop.call_later(KEPT_S, self._forget, key, kept)
        return kept.making

    def _forget(self, key: str, kept: _Kept) -> None:
        if self._kept.get(key) is kept:
            del self._kept[key]


def _is_shareable(made: asyncio.Task[Answer]) -> bool:
    if made.cancelled() or made.exception() is not None:
        return False
    answer = made.result()
    return isinstance(answer, JsonAnswer) and len(answer.body) <= MAX_KEPT_BYTES


SHARED = web.AppKey("shared", SharedAnswers)
