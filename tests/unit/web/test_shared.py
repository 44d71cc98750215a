"""An answer that viewers share: who gets one, how old it says to be, and what is never shared."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import aiohttp
import pytest
from fake_view import FakeView, as_json

from timesyncd import config
from timesyncd.errors import StoreError
from timesyncd.messages.fleet import FleetSummary
from timesyncd.web import responses
from timesyncd.web import shared as module
from timesyncd.web.app import serve
from timesyncd.web.responses import Answer, JsonAnswer, error_response
from timesyncd.web.shared import SharedAnswers

OLD = {"Cache-Control": "max-age=1"}


class CountingView(FakeView):
    """Each reading of the fleet's summary has another number of nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.readings = 0

    def fleet(self) -> FleetSummary:
        self.readings += 1
        return super().fleet().model_copy(update={"nodes": self.readings})


@pytest.fixture
def view() -> CountingView:
    return CountingView()


@pytest.fixture
async def http(view: CountingView) -> AsyncIterator[aiohttp.ClientSession]:
    server = await serve(config.WebSettings(port=0), view)
    async with aiohttp.ClientSession(server.url) as session:
        yield session
    await server.close()


async def seen(http: aiohttp.ClientSession, **headers: str) -> tuple[int, str | None]:
    async with http.get(
        "/api/v1/fleet", headers={name.replace("_", "-"): text for name, text in headers.items()}
    ) as got:
        return (await got.json())["nodes"], got.headers.get("Age")


async def test_without_a_word_each_answer_is_its_own(http: aiohttp.ClientSession) -> None:
    """A state that is shared would be older than its reader takes it to be."""
    assert [await seen(http) for _ in range(3)] == [(1, None), (2, None), (3, None)]


@pytest.mark.parametrize(
    "text", ["no-cache", "max-age=0", "max-age=-1", "max-age", "max-age=x", "s-maxage=5", "max-stale=5"]
)
async def test_another_directive_accepts_no_older_answer(http: aiohttp.ClientSession, text: str) -> None:
    """Only `max-age` says that an older answer is accepted."""
    await seen(http, Cache_Control="max-age=1")

    assert await seen(http, Cache_Control=text) == (2, None)


async def test_viewers_that_accept_its_age_share_one(http: aiohttp.ClientSession) -> None:
    """The age is rounded up, so that no reader takes the answer to be newer than it is."""
    assert [await seen(http, Cache_Control="max-age=1") for _ in range(2)] == [(1, None), (1, "1")]
    assert await seen(http, Cache_Control="no-transform, max-age=600") == (1, "1")


async def test_none_is_older_than_its_reader_accepts(http: aiohttp.ClientSession) -> None:
    """After a second another one is made, which a reader that accepts more gets too."""
    await seen(http, Cache_Control="max-age=1")
    await asyncio.sleep(1.01)

    assert await seen(http, Cache_Control="max-age=3") == (1, "2")
    assert await seen(http, Cache_Control="max-age=1") == (2, None)
    assert await seen(http, Cache_Control="max-age=3") == (2, "1")


async def test_one_copy_serves_as_each_client_asks(http: aiohttp.ClientSession, view: CountingView) -> None:
    """Compressed or not, whole or as 304, and without a body for HEAD."""
    nodes = [as_json(node) for node in view.nodes(view.node_names())]
    async with http.get("/api/v1/nodes", headers=OLD) as first:
        tag = first.headers["ETag"]
        assert (await first.json())["items"] == nodes
    async with http.get("/api/v1/nodes", headers=OLD | {"Accept-Encoding": "identity"}) as plain:
        assert "Content-Encoding" not in plain.headers and (await plain.json())["items"] == nodes
    async with http.get("/api/v1/nodes", headers=OLD | {"If-None-Match": tag}) as unchanged:
        assert unchanged.status == 304
    async with http.head("/api/v1/nodes", headers=OLD) as head:
        assert head.headers["Age"] == "1" and await head.read() == b""


async def test_what_a_role_below_reader_may_see_is_not_shared(http: aiohttp.ClientSession) -> None:
    """There the answer may depend on who asks."""
    for _ in range(2):
        async with http.get("/api/v1/node", headers=OLD) as answer:
            assert answer.status == 200 and "Age" not in answer.headers


def counted(
    *answers: Answer | Exception, wait_s: float = 0.0
) -> tuple[list[int], Callable[[], Coroutine[Any, Any, Answer]]]:
    """One after the other; and how many were made."""
    made = [0]

    async def make() -> Answer:
        made[0] += 1
        await asyncio.sleep(wait_s)
        answer = answers[min(made[0], len(answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return made, make


def answer(text: str = "{}") -> JsonAnswer:
    return JsonAnswer(text.encode(), "tag", False, {})


async def test_viewers_wait_for_the_one_that_is_being_made() -> None:
    """A slow chart is computed once for all, also where its first viewer left."""
    shared, (made, make) = SharedAnswers(), counted(answer(), wait_s=0.05)
    first = asyncio.create_task(shared.answer("a", 1, make))
    await asyncio.sleep(0)
    first.cancel()
    found = await asyncio.gather(*(shared.answer("a", 1, make) for _ in range(20)))

    assert made == [1]
    assert {age_s for _, age_s in found} == {1}


async def test_another_query_has_another_answer() -> None:
    """The key is the path with its query."""
    shared, (made, make) = SharedAnswers(), counted(answer())
    for key in "ab":
        await shared.answer(key, 1, make)

    assert made == [2]


async def test_an_error_is_not_shared() -> None:
    """Who waits for an answer that becomes an error asks by itself, and the next one again."""
    shared, (made, make) = (
        SharedAnswers(),
        counted(error_response(503, "busy"), error_response(503, "busy"), answer(), wait_s=0.02),
    )
    both = await asyncio.gather(*(shared.answer("a", 1, make) for _ in range(2)))
    third, age_s = await shared.answer("a", 1, make)

    assert [type(each) for each, _ in both].count(JsonAnswer) == 0 and both[0][0] is not both[1][0]
    assert isinstance(third, JsonAnswer) and age_s == 0 and made == [3]


async def test_an_exception_reaches_its_own_request() -> None:
    """The next one tries again."""
    shared, (_, make) = SharedAnswers(), counted(StoreError("gone"), answer())
    with pytest.raises(StoreError):
        await shared.answer("a", 1, make)
    found, _ = await shared.answer("a", 1, make)

    assert isinstance(found, JsonAnswer)


@pytest.mark.parametrize("what", ["many", "large"])
async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Beyond the limits each viewer gets its own."""
    monkeypatch.setattr(module, "MAX_KEPT", 2)
    shared, (made, make) = SharedAnswers(), counted(answer("x" * (2**20 + 1) if what == "large" else "{}"))
    for key in ("a", "b", "c") if what == "many" else ("c",):
        await shared.answer(key, 1, make)
    before = made[0]
    await shared.answer("c", 1, make)

    assert made[0] == before + 1


async def test_none_is_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no viewer asks again, the memory is free after KEPT_S."""
    monkeypatch.setattr(module, "KEPT_S", 0.02)
    shared, (_, make) = SharedAnswers(), counted(answer())
    await shared.answer("a", 1, make)
    await asyncio.sleep(0.05)

    assert shared._kept == {}


def test_a_shared_answer_is_compressed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compression costs more than the rest of a response."""
    calls = []

    def compress(body: bytes) -> bytes:
        calls.append(body)
        return gzip.compress(body)

    monkeypatch.setattr(responses, "_gzip", compress)
    one = answer(json.dumps(list(range(1_000))))

    async def both() -> list[bytes]:
        return [await one._in_gzip() for _ in range(2)]

    first, second = asyncio.run(both())
    assert first == second and gzip.decompress(first) == one.body and len(calls) == 1
