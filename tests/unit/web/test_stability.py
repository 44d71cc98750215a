"""`/api/v1/stability`: what `timesyncd stability` computes, from a real store."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_clocks import FakeClocks
from fake_view import FakeView
from samples import HEALTHY, nth

from timesyncd import config
from timesyncd.clocks import NS_PER_S
from timesyncd.config import StoreSettings
from timesyncd.model.observation import Observation
from timesyncd.stability.readings import Reading
from timesyncd.stability.report import stability_of
from timesyncd.store.time_errors import offset_readings
from timesyncd.store.writer import Store
from timesyncd.web import stability
from timesyncd.web.app import serve

START_NS = HEALTHY.as_of_ns + HEALTHY.real_minus_boot_ns
SPAN = f"since={START_NS - 60 * NS_PER_S}&until={START_NS + 3_600 * NS_PER_S}"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """With 64 samples of the source ptp."""
    made = Store(StoreSettings(path=tmp_path / "h.sqlite"), FakeClocks(), lambda problem: None, node="trainer-01")
    made.start()
    made.next_incarnation("trainer-01")
    for index in range(64):
        made.put(Observation(nth(index, offset_ns=7 * index % 31), None))
    made.stop()
    yield made


@pytest.fixture
async def http(store: Store) -> AsyncIterator[aiohttp.ClientSession]:
    server = await serve(config.WebSettings(port=0), FakeView(), store.location)
    async with aiohttp.ClientSession(server.url) as session:
        yield session
    await server.close()


async def get(http: aiohttp.ClientSession, query: str, status: int = 200, below: str = "") -> Any:
    async with http.get(f"/api/v1/stability{below}?{query}") as answer:
        assert answer.status == status, await answer.text()
        return await answer.json()


async def test_the_answer_is_the_command_s_report(http: aiohttp.ClientSession, store: Store) -> None:
    """The same numbers as `timesyncd stability` prints of the same store and span."""
    [series] = (await get(http, f"source=ptp&{SPAN}"))["series"]
    readings = offset_readings(store.location, "ptp", START_NS - 60 * NS_PER_S, START_NS + 3_600 * NS_PER_S)
    assert readings is not None
    report = stability_of(readings, 3_660 * NS_PER_S)

    assert report is not None
    assert (series["report"]["samples"], series["problem"]) == (64, None)
    assert [each["mtie_ns"] for each in series["report"]["deviations"]] == [each.mtie_ns for each in report.deviations]
    assert [each["mask"] for each in series["report"]["verdicts"]] == [each.mask for each in report.verdicts]


async def test_the_readings_are_those_of_the_store(http: aiohttp.ClientSession, store: Store) -> None:
    """Time, offset and reference of each reading of the span, so that a command can subtract them from another node's."""
    answer = await get(http, f"source=ptp&{SPAN}", below="/readings")
    expected = offset_readings(store.location, "ptp", START_NS - 60 * NS_PER_S, START_NS + 3_600 * NS_PER_S)

    assert expected is not None
    assert list(map(Reading, answer["at_ns"], answer["te_ns"], answer["reference"])) == list(expected)
    assert (len(answer["at_ns"]), set(answer["reference"]), answer["problem"]) == (
        64,
        {HEALTHY.grandmaster_identity},
        None,
    )


async def test_readings_that_are_not_served_have_their_reason(
    http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty span is no error; too long a one, and a source that the store does not know, are."""
    empty = await get(http, "source=ptp&since=1000000000&until=2000000000", below="/readings")
    monkeypatch.setattr(stability, "MAX_READINGS", 10)
    long = await get(http, f"source=ptp&{SPAN}", below="/readings")

    assert (empty["at_ns"], empty["problem"]) == ([], None)
    assert (long["at_ns"], long["problem"]) == ([], "more than 10 readings: ask for a shorter span")
    assert "ptp" in (await get(http, "source=absent", 404, below="/readings"))["error"]


async def test_what_is_unknown_has_its_reason(http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few readings, and too many for the daemon to compute; no number is made up."""
    [empty] = (await get(http, "source=ptp&since=1000000000&until=2000000000"))["series"]
    monkeypatch.setattr(stability, "MAX_READINGS", 10)
    [long] = (await get(http, f"source=ptp&{SPAN}"))["series"]

    assert (empty["report"], empty["problem"]) == (None, "fewer than two readings in this span")
    assert (long["report"], "more than 10 readings" in long["problem"]) == (None, True)


async def test_an_unknown_source_is_an_error(http: aiohttp.ClientSession) -> None:
    """It names those that the store has."""
    assert "ptp" in (await get(http, "source=absent", 404))["error"]
    assert "source" in (await get(http, SPAN, 400))["error"]


async def test_a_source_without_a_reading_yet_is_no_error(http: aiohttp.ClientSession) -> None:
    """A daemon that has just started polls it: it is unknown, with the reason."""
    polled = next(source.name for source in FakeView().node().sources if source.name != "ptp")
    answer = await get(http, f"source={polled}&{SPAN}")

    assert (answer["series"], answer["problem"]) == ([], f"the store has no reading of {polled} yet")
    assert (await get(http, f"source=gm-a&{SPAN}"))["problem"] == "the store has no reading of gm-a yet"
    assert (await get(http, f"source={polled}&{SPAN}", below="/readings"))["problem"] == answer["problem"]


async def test_one_answer_is_computed_at_a_time(http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many callers do not take the daemon's processor: the others get an answer that says to try again."""
    monkeypatch.setattr(stability, "WAIT_S", 0.0)
    with stability._computing:
        assert "try again" in (await get(http, f"source=ptp&{SPAN}", 503))["error"]

    assert (await get(http, f"source=ptp&{SPAN}"))["series"]


async def test_a_request_waits_for_the_one_before_it(http: aiohttp.ClientSession) -> None:
    """A page that opens two views gets both answers."""
    stability._computing.acquire()
    waiting = asyncio.create_task(get(http, f"source=ptp&{SPAN}"))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    stability._computing.release()

    assert (await waiting)["series"]


async def test_readings_too_far_apart_have_no_report(http: aiohttp.ClientSession, store: Store) -> None:
    """Their differences exceed 64 bits: the report is unknown, with the reason."""
    with closing(sqlite3.connect(store.location.path or "")) as connection, connection:
        connection.execute("UPDATE clock_sample SET offset_ns = iif(id % 2, 9223372036854775807, -9223372036854775808)")
    [series] = (await get(http, f"source=ptp&{SPAN}"))["series"]

    assert series["report"] is None
    assert "64 bits" in series["problem"]
