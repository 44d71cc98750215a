"""The HTTP server: the response of each path, and rejected requests."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncIterator, Sequence
from importlib.resources import files
from typing import Any

import aiohttp
import pytest
from exported import exported
from fake_view import FakeView, as_json

from timesyncd import config
from timesyncd.client.api import fetch_all
from timesyncd.errors import ConfigError
from timesyncd.messages.node import Message
from timesyncd.web import app, openapi
from timesyncd.web.app import LOGIN_FILES, ROUTES, WebServer, serve
from timesyncd.web.connections import ConnectionLimiter


@pytest.fixture
def view() -> FakeView:
    return FakeView()


@pytest.fixture
async def server(view: FakeView) -> AsyncIterator[WebServer]:
    server = await serve(config.WebSettings(port=0), view)
    yield server
    await server.close()


@pytest.fixture
async def http(server: WebServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url) as session:
        yield session


def messages(view: FakeView, path: str) -> list[Any]:
    found: Sequence[Message] = view.nodes(view.node_names()) if path == "nodes" else getattr(view, path)()
    return [as_json(message) for message in found]


@pytest.mark.parametrize("path", ["nodes", "grandmasters", "jobs", "findings", "hubs"])
async def test_a_list_is_served_as_the_messages_are(http: aiohttp.ClientSession, view: FakeView, path: str) -> None:
    """Each list answers with its messages' own JSON, nothing renamed or left out."""
    answer = await http.get(f"/api/v1/{path}")

    assert answer.content_type == "application/json"
    assert await answer.json() == {"items": messages(view, path), "next": None}


async def test_own_node(http: aiohttp.ClientSession, view: FakeView) -> None:
    """`node` is the daemon's own node alone."""
    answer = await http.get("/api/v1/node")

    assert await answer.json() == as_json(view.node())


async def test_a_job_by_its_id(http: aiohttp.ClientSession, view: FakeView) -> None:
    """A job is found by its id."""
    answer = await http.get("/api/v1/jobs/0f3a9c51d2b4e687")

    assert await answer.json() == as_json(view.jobs()[0])


async def test_the_error_for_an_unknown_job_names_the_known_ones(http: aiohttp.ClientSession) -> None:
    """An id that is not known is a 404 in JSON that names the ids that are."""
    answer = await http.get("/api/v1/jobs/nope")

    assert answer.status == 404
    assert (await answer.json())["error"] == "unknown job 'nope'; the known jobs are: 0f3a9c51d2b4e687"


async def test_a_grandmaster_by_its_name(http: aiohttp.ClientSession, view: FakeView) -> None:
    """A grandmaster is found by its name; the error for an unknown one names the known grandmasters."""
    answer = await http.get("/api/v1/grandmasters/gm-a")
    unknown = await http.get("/api/v1/grandmasters/gm-z")

    assert await answer.json() == as_json(view.grandmasters()[0])
    assert unknown.status == 404
    assert (await unknown.json())["error"] == "unknown grandmaster 'gm-z'; did you mean gm-a? (1 known)"


async def test_without_a_store_there_are_no_time_errors(http: aiohttp.ClientSession) -> None:
    """A daemon that keeps no history answers with an empty list."""
    answer = await http.get("/api/v1/grandmasters/gm-a/time-errors")

    assert (answer.status, await answer.json()) == (200, {"items": [], "next": None})


async def test_the_error_for_an_unknown_path_names_the_paths(http: aiohttp.ClientSession) -> None:
    """An unknown path gets status 404 in JSON with every path of the server."""
    answer = await http.get("/api/v1/nodez")
    error = (await answer.json())["error"]

    assert (answer.status, error[:49]) == (404, "unknown path /api/v1/nodez; the paths are: /, /ap")
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
    """A server on loopback answers 421 in JSON to a Host header with another site's name, on every path."""
    async with asyncio.timeout(60):  # events that were served would never end
        answer = await http.get(path, headers={"Host": "evil.example"})
        error = (await answer.json())["error"]

    assert answer.status == 421
    assert error == "Host: 'evil.example' is not a name of this server; use 127.0.0.1, another IP address, or localhost"


async def test_health_reports_a_fault(http: aiohttp.ClientSession, view: FakeView) -> None:
    """Status 200 while the daemon works, else 503 with the fault as text."""
    well = await http.get("/healthz")
    view.fault = "source ptp: no answer for 40 s"
    ill = await http.get("/healthz")

    assert (well.status, await well.text()) == (200, "ok\n")
    assert (ill.status, await ill.text()) == (503, "source ptp: no answer for 40 s\n")


async def test_metrics_are_passed_on(http: aiohttp.ClientSession) -> None:
    """The scrape is the view's bytes, under the text format's type."""
    answer = await http.get("/metrics")

    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert await answer.read() == b"timesyncd_gm_bound_seconds 1e-06\n"


@pytest.mark.parametrize("path", [*LOGIN_FILES, "/", "/fleet", "/node/n1", "/timeline"])
async def test_the_page_runs_no_script_but_its_own(http: aiohttp.ClientSession, path: str) -> None:
    """Every file of the page is served, under a policy that allows nothing inline and nothing from elsewhere."""
    answer = await http.get(path)
    text = await answer.text()

    assert answer.status == 200
    assert "script-src 'self'; style-src 'self'" in answer.headers["Content-Security-Policy"]
    assert "unsafe" not in answer.headers["Content-Security-Policy"]
    assert not any(banned in text for banned in ("http://", "https://", "innerHTML", "style=", "onclick="))


@pytest.mark.parametrize("path", ["/healthz", "/api/v1/nodes", "/api/v1/nowhere", "/metrics", "/style.css"])
async def test_no_cache_keeps_an_answer(http: aiohttp.ClientSession, path: str) -> None:
    """A proxy's cache would show one client what another one may read, and would keep what a forged request caused."""
    answer = await http.get(path, headers={"X-Forwarded-Host": "evil.example", "X-Original-URL": "/login"})

    assert answer.headers["Cache-Control"] == "no-store"
    assert "evil.example" not in await answer.text() + str(answer.headers)


async def test_slow_browsers_are_no_reason_to_fail_a_probe(
    http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While answers that no client reads take all their room, a large one has to wait, and /healthz is as it is."""
    monkeypatch.setattr(ConnectionLimiter, "has_room", False)

    assert [(await http.get(path)).status for path in ("/api/v1/nodes", "/healthz")] == [503, 200]


async def test_a_taken_port_is_one_line(server: WebServer, view: FakeView) -> None:
    """An address that cannot be had is a configuration error that names it, and states what to do."""
    port = int(server.url.rsplit(":", 1)[1].rstrip("/"))

    taken = rf"web: cannot listen on 127.0.0.1 port {port}: another process uses it; set \[web\] port, or end"
    with pytest.raises(ConfigError, match=taken):
        await serve(config.WebSettings(port=port), view)


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "port to one above 1023"),
        (errno.EADDRNOTAVAIL, "host to an address"),
        (errno.EIO, "host and port"),
    ],
)
def test_every_reason_not_to_listen_has_its_remedy(number: int, advice: str) -> None:
    """A port below 1024, another machine's address, and whatever else the kernel reports."""
    reason, remedy = app._listen_error(OSError(number, "reason"), 80)

    assert reason
    assert f"set [web] {advice}" in remedy


async def names(http: aiohttp.ClientSession, query: str) -> list[str]:
    answer = await http.get(f"/api/v1/nodes?{query}")
    return [node["node"] for node in (await answer.json())["items"]]


def fleet(view: FakeView) -> None:
    """Five nodes in two racks, of which the third is in holdover and has no grandmaster."""
    first = view.node()
    view.states = [
        first.model_copy(
            update={
                "node": f"n{n}",
                "topology": f"hall-1/rack-{n // 3}",
                "status": "HOLDOVER" if n == 2 else "SYNCHRONIZED",
                "grandmaster": None if n == 2 else "gm-a",
                "grandmaster_identity": None if n == 2 else "001122.fffe.334455",
            }
        )
        for n in range(5)
    ]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("status=HOLDOVER", ["n2"]),
        ("grandmaster=gm-a", ["n0", "n1", "n3", "n4"]),
        ("grandmaster=001122.fffe.334455&topology=hall-1/rack-1", ["n3", "n4"]),
        ("topology=hall-1", ["n0", "n1", "n2", "n3", "n4"]),
        ("topology=hall-1/rack", []),
        ("q=4", ["n4"]),
    ],
)
async def test_nodes_are_filtered(http: aiohttp.ClientSession, view: FakeView, query: str, found: list[str]) -> None:
    """By status, by grandmaster, by place (whole parts of its name), by a part of the node's name."""
    fleet(view)

    assert await names(http, query) == found


async def test_a_list_goes_on_page_by_page(http: aiohttp.ClientSession, view: FakeView) -> None:
    """`next`, and the Link header, lead through the whole list; a node that appears or disappears in between moves no page."""
    fleet(view)
    first = await http.get("/api/v1/nodes?limit=2&status=SYNCHRONIZED")
    del view.states[0]
    second = await http.get(first.links["next"]["url"])
    pages = [await answer.json() for answer in (first, second)]

    assert [[node["node"] for node in page["items"]] for page in pages] == [["n0", "n1"], ["n3", "n4"]]
    assert pages[0]["next"] is not None and pages[1]["next"] is None
    assert "next" not in second.links


async def test_the_commands_read_every_page(server: WebServer, view: FakeView) -> None:
    """What `status` asks for is whole, however large the fleet."""
    view.states = [view.node().model_copy(update={"node": f"n{n:04}"}) for n in range(1_001)]
    answer = await asyncio.to_thread(fetch_all, server.url)

    assert [node["node"] for node in answer["nodes"]] == [f"n{n:04}" for n in range(1_001)]
    assert [job["job"] for job in answer["jobs"]] == ["llama-pretrain"]


async def test_findings_of_a_span(http: aiohttp.ClientSession, view: FakeView) -> None:
    """Findings active at some moment of the range; `active` selects those without an end."""
    [standing] = view.findings()
    ended = standing.model_copy(update={"id": "clock-holdover", "since_realtime_ns": 100, "until_realtime_ns": 200})
    view.findings = lambda: [standing, ended]  # type: ignore[method-assign]

    async def found(query: str) -> list[str]:
        answer = await http.get(f"/api/v1/findings?{query}")
        return [finding["id"] for finding in (await answer.json())["items"]]

    assert await found("") == ["grandmaster-alarm", "clock-holdover"]
    assert await found("active=true") == ["grandmaster-alarm"]
    assert await found("since=199&until=1970-01-01T00:00:01Z") == ["clock-holdover"]
    assert await found("since=200&until=201") == []


async def test_alignment_of_some_of_a_job_or_of_all(http: aiohttp.ClientSession) -> None:
    """The nodes that are named, a job's by its id or its name, or every one; a job that is not known is a 404."""
    query = ("nodes=trainer-02", "job=0f3a9c51d2b4e687", "job=llama-pretrain", "")
    answers = [await (await http.get(f"/api/v1/alignment?{each}")).json() for each in query]
    unknown = await http.get("/api/v1/alignment?job=nope")

    found = [[node["node"] for node in answer["nodes"]] for answer in answers]
    assert found == [["trainer-02"], *[["trainer-01", "trainer-02"]] * 3]
    assert (unknown.status, (await unknown.json())["error"]) == (
        404,
        "unknown job 'nope'; the known jobs are: llama-pretrain",
    )


async def test_a_request_can_name_ten_thousand_nodes(http: aiohttp.ClientSession) -> None:
    """A request's line has room for the nodes of a whole fleet."""
    query = ",".join(f"trainer-{n:05}.cluster" for n in range(10_000))
    answer = await http.get(f"/api/v1/alignment?nodes={query}")

    assert answer.status == 200


@pytest.mark.parametrize(
    ("query", "error"),
    [
        (
            "nodes?colour=red",
            "colour = 'red': unknown parameter; allowed here: cursor, grandmaster, limit, q, status, topology",
        ),
        ("nodes?limit=1&limit=2", "limit: given 2 times; give it once"),
        ("nodes?limit=1001", "limit = '1001': Input should be less than or equal to 1000"),
        ("nodes?cursor=never", "cursor: not a cursor of this list; use `next` of the previous page"),
        ("node?x=1", "x = '1': unknown parameter; allowed here: none"),
        ("alignment?nodes=a&job=b", "give nodes or job, not both"),
    ],
)
async def test_an_invalid_query_is_rejected(http: aiohttp.ClientSession, query: str, error: str) -> None:
    """400, with what is allowed."""
    answer = await http.get(f"/api/v1/{query}")

    assert (answer.status, await answer.json()) == (400, {"error": error})


async def test_a_current_copy_is_not_sent_again(http: aiohttp.ClientSession, view: FakeView) -> None:
    """The tag of a state is weak and the same while only its age differs; another status is another tag."""
    tag = (await http.get("/api/v1/node")).headers["ETag"]
    view.states[0] = view.node().model_copy(update={"age_ns": 5, "sequence": 9_999})
    older = await http.get("/api/v1/node", headers={"If-None-Match": tag})
    view.states[0] = view.node().model_copy(update={"status": "HOLDOVER"})
    changed = await http.get("/api/v1/node", headers={"If-None-Match": tag})

    assert tag.startswith("W/")
    assert (older.status, await older.read(), older.headers["ETag"]) == (304, b"", tag)
    assert changed.status == 200 and changed.headers["ETag"] != tag


async def test_the_document_is_the_published_one(http: aiohttp.ClientSession) -> None:
    """What is served is schemas/openapi.json, under a strong tag."""
    answer = await http.get("/api/v1/openapi.json")
    published = files("timesyncd.schemas").joinpath("openapi.json").read_text()

    assert exported(json.dumps(await answer.json())) == exported(json.dumps(json.loads(published)))
    assert not answer.headers["ETag"].startswith("W/")


def test_committed_is_exported() -> None:
    """schemas/openapi.json is what the routes give; `make schemas` makes it so."""
    assert exported(files("timesyncd.schemas").joinpath("openapi.json").read_text()) == exported(openapi.text(ROUTES))


async def test_the_configuration_is_for_administrators(http: aiohttp.ClientSession) -> None:
    """On a loopback address without tokens a local client has the role reader, which is not enough."""
    answer = await http.get("/api/v1/config")

    assert (answer.status, await answer.json()) == (
        403,
        {"error": "/api/v1/config requires the role admin; a client on this host has the role reader"},
    )
