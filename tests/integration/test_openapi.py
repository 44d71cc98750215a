"""
The HTTP side as its OpenAPI document describes it, asked by schemathesis over a real socket, with a real store behind.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import schemathesis
from fake_view import FakeView
from hypothesis import HealthCheck, settings
from schemathesis import CheckFunction
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import positive_data_acceptance
from sqlalchemy import insert

from timesyncd import config
from timesyncd.clocks import NS_PER_S
from timesyncd.store.engine import StoreLocation, migrate, writer_engine
from timesyncd.store.tables import event, rollup, time_error
from timesyncd.web import openapi
from timesyncd.web.app import ROUTES, serve

pytestmark = pytest.mark.integration

#: A stream of events has no end: it has tests of its own.
SCHEMA = schemathesis.openapi.from_dict(openapi.document(ROUTES)).exclude(path="/events")

Case = schemathesis.Case[Any]


@contextmanager
def serving(view: FakeView, store: StoreLocation) -> Iterator[str]:
    """A server in a thread of its own: schemathesis waits for its answers."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        server = asyncio.run_coroutine_threadsafe(serve(config.WebSettings(port=0), view, store), loop).result(60)
        yield server.url
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(60)
    finally:
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoreLocation:
    """With a minute of trainer-01's offsets, two events and a time error, of just now."""
    place = StoreLocation(path=tmp_path_factory.mktemp("store") / "history.sqlite")
    migrate(place)
    now_ns = time.time_ns()
    minute_ns = now_ns // (60 * NS_PER_S) * 60 * NS_PER_S - 60 * NS_PER_S
    values = {"count": 60, "minimum": -5, "maximum": 9, "mean": 1, "p50": 1, "p99": 8}
    key = {"node": "trainer-01", "source": "ptp", "quantity": "offset_ns", "span_s": 60, "realtime_ns": minute_ns}
    happened = {"node": "trainer-01", "stream": 1, "realtime_ns": now_ns, "time": "2026-03-01T12:00:00.000000000Z"}
    events = [
        happened | {"sequence": n, "event_id": f"3-{n}", "type": "timesyncd.test", "subject": "ptp", "data": {"n": n}}
        for n in (1, 2)
    ]
    engine = writer_engine(place)
    with engine.begin() as connection:
        connection.execute(insert(rollup), [key | values])
        connection.execute(insert(event), events)
        errors = {"source": "gm-a", "channel": "gnss-1", "metric": "te", "realtime_ns": now_ns - 1, "value_ns": -31}
        connection.execute(insert(time_error), [errors])
    engine.dispose()
    return place


@pytest.fixture(scope="module")
def url(store: StoreLocation) -> Iterator[str]:
    with serving(FakeView(), store) as url:
        yield url


def beyond_a_schema(case: Case) -> list[CheckFunction]:
    """
    A schema cannot express that a cursor is one that was given before, that two parameters exclude each other, or that
    one requires another.
    """
    asked = dict(case.query or {})
    needs_name = asked.get("subject") in ("job", "grandmaster")
    return [positive_data_acceptance] if "cursor" in asked or {"nodes", "job"} <= set(asked) or needs_name else []


@SCHEMA.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_route_answers_as_it_is_described(case: Case, url: str) -> None:
    """Whatever is asked of a route, its answer is one that the document defines: status, headers, type and content."""
    case.call_and_validate(base_url=url, excluded_checks=beyond_a_schema(case))


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/grandmasters/gm-a/time-errors",
        "/api/v1/events?limit=1",
        "/api/v1/events?type=timesyncd.test&node=trainer-01",
        "/api/v1/history?source=ptp&quantity=offset_ns",
        "/api/v1/history/sources",
        "/api/v1/nodes?limit=1",
        "/api/v1/jobs/0f3a9c51d2b4e687",
        "/api/v1/alignment?job=0f3a9c51d2b4e687",
    ],
)
def test_what_there_is_answers_as_it_is_described(path: str, url: str) -> None:
    """The answers that hold something fit the document too: schemathesis finds few of these by itself."""
    case = case_of(path)
    response = case.call(base_url=url)
    case.validate_response(response)

    assert response.status_code == 200
    assert response.json().get("items") != []


def test_events_go_on_page_by_page(url: str) -> None:
    """The newest first, from the store, until there are no more."""
    first = case_of("/api/v1/events?limit=1").call(base_url=url)
    second = case_of(f"/api/v1/events?limit=1&cursor={first.json()['next']}").call(base_url=url)

    assert [event["id"] for page in (first, second) for event in page.json()["items"]] == ["3-2", "3-1"]
    assert first.headers["link"][0].startswith("</api/v1/events?limit=1&cursor=")
    assert second.json()["next"] is None


def case_of(path: str) -> Case:
    """A route of the document, asked for one thing."""
    bare, _, asked = path.partition("?")
    query = dict(pair.split("=") for pair in asked.split("&") if pair)
    for route in ROUTES:
        template = re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", route.path)
        if found := re.fullmatch(template, bare):
            return SCHEMA[route.path]["GET"].Case(path_parameters=found.groupdict(), query=query)
    raise AssertionError(path)


@pytest.mark.parametrize("path", [route.path for route in ROUTES if route.path != "/events"])
def test_a_foreign_name_is_refused_as_it_is_described(path: str, url: str) -> None:
    """421, on every route, in the JSON of a refusal."""
    names = {name: {"name": "gm-a", "id": "0f3a9c51d2b4e687"}[name] for name in re.findall(r"{(\w+)}", path)}
    case = SCHEMA[path]["GET"].Case(path_parameters=names, headers={"Host": "evil.example"})
    response = case.call(base_url=url)
    case.validate_response(response)

    assert response.status_code == 421


def test_an_answer_that_does_not_fit_is_found(store: StoreLocation) -> None:
    """An answer that the document does not allow fails the check."""
    wrong = FakeView()
    wrong.states = [state.model_copy(update={"age_ns": -1}) for state in wrong.states]
    with serving(wrong, store) as url, pytest.raises(FailureGroup, match="-1 is not valid"):
        case_of("/api/v1/nodes").call_and_validate(base_url=url)
