"""The past for charts over HTTP: on a grid, as of one moment, from a real store."""

from __future__ import annotations

import sqlite3
import time
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
from timesyncd.messages.fleet import Rollup, Summary
from timesyncd.model.observation import Observation
from timesyncd.store.writer import Store
from timesyncd.web.app import serve
from timesyncd.web.query import MAX_TIME_NS

JOB = "0f3a9c51d2b4e687"
#: The place of the nodes of FakeView.
RACK = ""
START_NS = HEALTHY.as_of_ns + HEALTHY.real_minus_boot_ns
MINUTE_NS = 60 * NS_PER_S


def rollup(source: str, quantity: str, minute: int, value: int) -> Rollup:
    of = Summary(count=6, minimum=value - 1, maximum=value + 1, mean=value, p50=value, p99=value + 1)
    begins_ns = START_NS // MINUTE_NS * MINUTE_NS + minute * MINUTE_NS
    return Rollup(source=source, span_s=60, begins_realtime_ns=begins_ns, quantities={quantity: of})


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """A hub with eight samples of its own, two minutes of its fleet and one of a job."""
    view = FakeView()
    store = Store(StoreSettings(path=tmp_path / "h.sqlite"), FakeClocks(), lambda problem: None, node=view.node().node)
    store.start()
    store.next_incarnation(view.node().node)
    for index in range(8):
        store.put(Observation(nth(index, offset_ns=index), None))
    store.put_rollups([rollup("@fleet", "alignment_ns", 0, 500), rollup("@fleet", "alignment_ns", 2, 700)])
    store.put_rollups([rollup(f"@job/{JOB}", "alignment_ns", 0, 90)])
    store.put_rollups(
        [rollup(f"@rack/{RACK}", "widest_bound_ns", minute, value) for minute, value in ((0, 900), (1, 2_000))]
    )
    store.put_rollups([rollup(f"@rack/{RACK}", "without_bound", 3, 4), rollup("@rack/gone", "without_bound", 0, 4)])
    store.stop()
    server = await serve(config.WebSettings(port=0), view, store.location)
    async with aiohttp.ClientSession(server.url) as session:
        yield session
    await server.close()


async def get(http: aiohttp.ClientSession, path: str) -> Any:
    async with http.get(f"/api/v1/{path}") as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def test_the_fleet_s_past_is_a_grid_with_holes(http: aiohttp.ClientSession) -> None:
    """Minimum, median and maximum for each step; the minute without a value is null."""
    begin_ns = START_NS // MINUTE_NS * MINUTE_NS
    found = await get(http, f"series?since={begin_ns}&until={begin_ns + 3 * MINUTE_NS}&points=4")

    assert (found["begin_ms"], found["step_ms"], found["steps"]) == (begin_ns // 10**6, 60_000, 3)
    assert found["quantities"]["alignment_ns"] == {
        "minimum": [499, None, 699],
        "median": [500, None, 700],
        "maximum": [501, None, 701],
    }
    assert abs(found["as_of_realtime_ns"] - time.time_ns()) < 60 * NS_PER_S
    assert found["lag_ns"] == found["as_of_realtime_ns"] - (begin_ns + 3 * MINUTE_NS)


async def test_a_job_s_past_is_under_its_id(http: aiohttp.ClientSession) -> None:
    """Another job's values are not in it."""
    begin_ns = START_NS // MINUTE_NS * MINUTE_NS
    found = await get(http, f"series?subject=job&name={JOB}&since={begin_ns}&until={begin_ns + MINUTE_NS}&points=3")

    assert [value for value in found["quantities"]["alignment_ns"]["median"] if value] == [90, 90]


async def test_a_node_s_past_keeps_the_extremes(http: aiohttp.ClientSession) -> None:
    """Raw samples while they are few, with both extremes of each step; there are at most so many steps."""
    query = f"since={START_NS}&until={START_NS + 8 * NS_PER_S}&points=100"
    found = await get(http, f"series?subject=node&source=ptp&quantities=offset_ns,path_delay_ns&{query}")
    offsets = found["quantities"]["offset_ns"]
    extremes = [value for name in ("minimum", "maximum") for value in offsets[name] if value is not None]

    assert (min(extremes), max(extremes)) == (0, 7)
    assert found["steps"] <= 100


async def test_a_quantity_that_is_not_stored_is_left_out(http: aiohttp.ClientSession) -> None:
    """So is all of an unknown node; nothing is invented."""
    assert (await get(http, "series?subject=node&name=absent"))["quantities"] == {}
    assert (await get(http, "series?subject=grandmaster&name=gm-a"))["lag_ns"] is None


async def test_an_unpolled_grandmaster_has_one_unknown_span(http: aiohttp.ClientSession) -> None:
    """Its states are null, not the last known ones, and its sky is empty."""
    found = await get(http, "grandmasters/gm-a/states?since=1000000000&until=5000000000")

    assert found["spans"] == [
        {"begin_ms": 1_000, "end_ms": 5_000, "clock_state": None, "gnss_state": None, "antenna": None}
    ]
    assert (await get(http, "grandmasters/gm-a/sky"))["satellites"] == []


@pytest.mark.parametrize("query", ["subject=job", "subject=job&name=x", "subject=grandmaster"])
async def test_a_subject_needs_its_name(http: aiohttp.ClientSession, query: str) -> None:
    """404, with what to give."""
    async with http.get(f"/api/v1/series?{query}") as answer:
        assert answer.status == 404
        assert (await answer.json())["error"].startswith("name: ")


async def test_the_lateness_of_a_job_is_one_answer(http: aiohttp.ClientSession) -> None:
    """At most so many steps; an unknown job is not found."""
    found = await get(http, f"jobs/{FakeView().jobs()[0].job_id}/lateness?steps=1")

    assert (len(found["steps"]), found["unit_ns"]) == (1, 1)
    async with http.get("/api/v1/jobs/ffffffffffffffff/lateness") as answer:
        assert answer.status == 404


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("series?points=1", "points = '1': Input should be greater than or equal to 2"),
        ("series?points=9999", "points = '9999': Input should be less than or equal to 5000"),
    ],
)
async def test_an_invalid_query_is_rejected(http: aiohttp.ClientSession, query: str, error: str) -> None:
    """400, with what is allowed."""
    async with http.get(f"/api/v1/{query}") as answer:
        assert (answer.status, await answer.json()) == (400, {"error": error})


@pytest.mark.parametrize("since", [0, START_NS, MAX_TIME_NS - 1])
@pytest.mark.parametrize(
    "path",
    ["series?points=2", "series?subject=node&points=2", "fleet/racks?points=2", "grandmasters/gm-a/sky?points=2"],
)
async def test_a_span_to_the_end_of_time_is_answered(http: aiohttp.ClientSession, path: str, since: int) -> None:
    """The last of two steps ends later than the store's columns hold."""
    assert await get(http, f"{path}&since={since}&until=9999-12-31T00:00:00Z")


async def test_the_racks_past_is_a_grid_of_whole_minutes(http: aiohttp.ClientSession) -> None:
    """The widest bound of each step and the most nodes without one; a place that no node has now is left out."""
    begin_ns = START_NS // MINUTE_NS * MINUTE_NS
    found = await get(http, f"fleet/racks?since={begin_ns}&until={begin_ns + 4 * MINUTE_NS}&points=5")

    assert (found["begin_ms"], found["step_ms"], found["steps"]) == (begin_ns // 10**6, 60_000, 4)
    assert found["racks"] == [RACK]
    assert found["widest_bound_ns"] == [[901, 2_001, None, None]]
    assert found["without_bound"] == [[None, None, None, 5]]
    assert found["lag_ns"] == found["as_of_realtime_ns"] - (begin_ns + 4 * MINUTE_NS)


async def test_a_long_answer_is_compressed_for_who_accepts_it(http: aiohttp.ClientSession) -> None:
    """With a tag of its own, by which a client asks whether its copy is current; a client that accepts none gets the same JSON."""
    path = "/api/v1/jobs"
    async with http.get(path, headers={"Accept-Encoding": "gzip"}) as answer:
        compressed = await answer.json()
        assert (answer.headers["Content-Encoding"], answer.headers["Vary"]) == ("gzip", "Accept-Encoding")
        tag = answer.headers["ETag"]
    async with http.get(path, headers={"Accept-Encoding": "identity"}) as answer:
        assert "Content-Encoding" not in answer.headers
        assert await answer.json() == compressed
    async with http.get(path, headers={"Accept-Encoding": "gzip", "If-None-Match": tag}) as answer:
        assert (tag.endswith('-gzip"'), answer.status) == (True, 304)
    async with http.get("/api/v1/build", headers={"Accept-Encoding": "gzip"}) as answer:
        assert "Content-Encoding" not in answer.headers


@pytest.mark.parametrize("count", ["0", "-1"])
async def test_a_damaged_count_hides_no_other_quantity(http: aiohttp.ClientSession, tmp_path: Path, count: str) -> None:
    """A roll-up of no sample is none, also where hours are merged."""
    with closing(sqlite3.connect(tmp_path / "h.sqlite")) as connection, connection:
        connection.execute(f"UPDATE rollup SET span_s = 3600, count = {count} WHERE source = '@fleet'")

    assert (await get(http, "series?since=0"))["quantities"] == {}


@pytest.mark.parametrize("terms", ['{"a":[1]}', '{"b":"x"}', '{"c":1e400}', '{"d":99999999999999999999}'])
async def test_damaged_terms_are_left_out(http: aiohttp.ClientSession, tmp_path: Path, terms: str) -> None:
    """The offsets of the same samples are answered."""
    with closing(sqlite3.connect(tmp_path / "h.sqlite")) as connection, connection:
        connection.execute("UPDATE clock_sample SET terms = ?", (terms,))
    span = f"since={START_NS - MINUTE_NS}&until={START_NS + 10 * MINUTE_NS}"
    found = await get(http, f"series?subject=node&source=ptp&quantities=offset_ns,term:a&{span}")

    assert list(found["quantities"]) == ["offset_ns"]


@pytest.mark.parametrize(
    "damage",
    [
        'ports = \'[{"clients":"x"}]\'',
        "ports = '[{\"clients\":1e400}]'",
        "satellites = '[{\"cn0_db_hz\":1}]'",
        'satellites = \'[{"number":1.5,"cn0_db_hz":"x"}]\'',
        "satellites = '[1]', ports = '[1]'",
    ],
)
async def test_a_damaged_list_is_left_out(http: aiohttp.ClientSession, tmp_path: Path, damage: str) -> None:
    """Of a grandmaster's ports and satellites."""
    with closing(sqlite3.connect(tmp_path / "h.sqlite")) as connection, connection:
        connection.execute(
            f"INSERT INTO grandmaster_sample (source, realtime_ns, boottime_ns, whole) VALUES ('gm', {START_NS}, 1, 1)"
        )
        connection.execute(f"UPDATE grandmaster_sample SET {damage}")
    span = f"since={START_NS - MINUTE_NS}&until={START_NS + 10 * MINUTE_NS}"

    assert (await get(http, f"series?subject=grandmaster&name=gm&{span}"))["quantities"] == {}
    assert (await get(http, f"grandmasters/gm/sky?{span}"))["satellites"] == []
