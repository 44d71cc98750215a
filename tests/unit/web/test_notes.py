"""Operators' notes over HTTP: who may write, how it is signed, and that no other site can."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from argparse import ArgumentParser
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_clocks import FakeClocks
from fake_view import FakeView

from timesyncd import config
from timesyncd.cli import status
from timesyncd.clocks import NS_PER_S
from timesyncd.config import SecretSettings, StoreSettings, TokenSettings
from timesyncd.messages.events import CloudEvents
from timesyncd.messages.notes import OperatorNote
from timesyncd.store.writer import Store
from timesyncd.web.app import serve
from timesyncd.web.notes import WRITE_HEADER

SECRETS = {"anna": "of-an-operator-0123456789", "grafana": "of-a-reader-0123456789ab"}
NOTE = {"kind": "comment", "text": "replaced the antenna", "author": "mallory", "subject": "gm-a"}


@pytest.fixture
def view() -> FakeView:
    return FakeView()


@pytest.fixture
async def http(view: FakeView, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """A server with a writer's and a reader's token, and a store with one note and one finding's event."""
    for name, secret in SECRETS.items():
        monkeypatch.setenv(f"TOKEN_{name}", secret)
    tokens = [
        TokenSettings(name="anna", role="writer", secret=SecretSettings(env="TOKEN_anna")),
        TokenSettings(name="grafana", role="reader", secret=SecretSettings(env="TOKEN_grafana")),
    ]
    store = Store(StoreSettings(path=tmp_path / "h.sqlite"), FakeClocks(), lambda problem: None, node="trainer-01")
    store.start()
    now_ns = time.time_ns()
    stored = OperatorNote(
        node="trainer-01", incarnation=3, sequence=1, id="trainer-01-3-1", kind="deploy", author="ben", text="v2 | <b>",
        subject="", finding=None, realtime_ns=now_ns - 5 * NS_PER_S, until_realtime_ns=None, published_realtime_ns=now_ns,
    )  # fmt: skip
    store.put_note(stored)
    store.put_note(stored)
    began = view.findings()[0].model_copy(update={"until_realtime_ns": None})
    store.put_event(CloudEvents("trainer-01", 3).finding(began, now_ns), now_ns - 9 * NS_PER_S)
    store.stop()
    server = await serve(config.WebSettings(port=0, token=tokens), view, store.location)
    async with aiohttp.ClientSession(server.url) as session:
        yield session
    await server.close()


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {SECRETS[name]}"}


async def post(http: aiohttp.ClientSession, note: dict[str, Any], headers: dict[str, str]) -> tuple[int, Any]:
    async with http.post("/api/v1/notes", json=note, headers=headers) as answer:
        return answer.status, await answer.json()


async def session_cookie(http: aiohttp.ClientSession) -> dict[str, str]:
    """What a browser of anna shows by itself."""
    async with http.post("/login", data={"token": SECRETS["anna"]}, allow_redirects=False) as answer:
        cookie = answer.cookies["timesyncd-session"].value
    http.cookie_jar.clear()
    return {"Cookie": f"timesyncd-session={cookie}"}


async def test_a_note_is_signed_with_the_token_s_name(http: aiohttp.ClientSession, view: FakeView) -> None:
    """A name in the request changes nothing."""
    status, written = await post(http, NOTE, bearer("anna"))

    assert (status, written["author"], written["subject"]) == (200, "anna", "gm-a")
    assert [note.author for note in view.notes] == ["anna"]


async def test_a_reader_writes_nothing(http: aiohttp.ClientSession, view: FakeView) -> None:
    """403, which names both roles; without credentials 401."""
    status, refused = await post(http, NOTE, bearer("grafana"))

    assert status == 403 and "requires the role writer; grafana has the role reader" in refused["error"]
    assert (await post(http, NOTE, {}))[0] == 401
    assert view.notes == []


async def test_another_site_cannot_write_with_a_browser_s_session(http: aiohttp.ClientSession, view: FakeView) -> None:
    """A form or a script of another site cannot send the header; one that could is refused by its origin."""
    cookie = await session_cookie(http)
    origin = {"Origin": str(http._base_url).rstrip("/")}

    assert (await post(http, NOTE, cookie | origin))[0] == 403
    assert (await post(http, NOTE, cookie | {WRITE_HEADER: "1", "Origin": "https://evil.example"}))[0] == 403
    assert view.notes == []
    assert (await post(http, NOTE, cookie | origin | {WRITE_HEADER: "1"}))[0] == 200


@pytest.mark.parametrize(
    ("note", "status", "text"),
    [
        ({"kind": "silence", "text": "x"}, 400, "acknowledge and silence need finding and subject"),
        ({"kind": "comment", "text": "x", "subject": "refused"}, 409, "no such finding is active"),
        ({"kind": "comment", "text": "x" * 9_000}, 413, "the form is too large"),
    ],
)
async def test_a_bad_note_is_refused_with_its_reason(
    http: aiohttp.ClientSession, note: dict[str, Any], status: int, text: str
) -> None:
    """In one line."""
    got, refused = await post(http, note, bearer("anna"))

    assert got == status and text in refused["error"]


async def test_a_note_is_json(http: aiohttp.ClientSession) -> None:
    """415 for anything else, which is what a form of another site could send."""
    async with http.post(
        "/api/v1/notes", data=b"{}", headers=bearer("anna") | {"Content-Type": "text/plain"}
    ) as answer:
        assert answer.status == 415


async def test_other_methods_are_refused(http: aiohttp.ClientSession) -> None:
    """A note is never changed or removed."""
    async with http.delete("/api/v1/notes", headers=bearer("anna")) as answer:
        assert answer.status == 405


async def test_notes_are_listed_from_the_store(http: aiohttp.ClientSession) -> None:
    """One that was put twice is there once."""
    async with http.get("/api/v1/notes", headers=bearer("grafana")) as answer:
        (item,) = (await answer.json())["items"]

    assert (item["author"], item["kind"], item["text"]) == ("ben", "deploy", "v2 | <b>")


async def test_handled_findings_are_listed(http: aiohttp.ClientSession, view: FakeView) -> None:
    """Who took which finding, and why."""
    active = next(each for each in view.findings() if each.until_realtime_ns is None)
    note = {"kind": "silence", "text": "known", "finding": active.id, "subject": active.subject, "silence_s": 3_600}
    await post(http, note, bearer("anna"))
    async with http.get("/api/v1/findings/handled", headers=bearer("grafana")) as answer:
        (item,) = (await answer.json())["items"]

    assert (item["finding"], item["author"], item["text"]) == (active.id, "anna", "known")


async def test_a_check_leaves_out_what_is_handled(
    http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch, view: FakeView, capsys: pytest.CaptureFixture[str]
) -> None:
    """`timesyncd status --nagios` asks this server, so that the command and the routes agree on every query."""
    monkeypatch.setenv("TIMESYNCD_TOKEN", SECRETS["grafana"])
    active = [each for each in view.findings() if each.until_realtime_ns is None]
    async with http.get("/healthz") as answer:
        page = str(answer.url.origin())

    async def check() -> str:
        parser = ArgumentParser()
        status.add_arguments(parser)
        await asyncio.to_thread(status.run, parser.parse_args(["--url", page, "--nagios"]))
        return capsys.readouterr().out

    before = await check()
    for each in active:
        note = {"kind": "silence", "text": "known", "finding": each.id, "subject": each.subject, "silence_s": 3_600}
        await post(http, note, bearer("anna"))
    after = await check()

    assert active and not before.startswith("TIMESYNCD UNKNOWN")
    assert active[0].id in before and active[0].id not in after


async def test_a_span_is_exported_as_markdown(http: aiohttp.ClientSession) -> None:
    """Finding and note in their order, foreign text escaped, and what is not known named."""
    async with http.get("/api/v1/postmortem", headers=bearer("grafana")) as answer:
        text = await answer.text()
        assert answer.content_type == "text/markdown"

    began, deploy = text.index(" began: "), text.index("deploy by **ben**: v2 \\| \\<b\\>")
    assert began < deploy
    assert "Findings: 0 began, 0 ended." in text
    assert "This daemon kept no alignment of the fleet in this span." in text
    assert "<b>" not in text


@pytest.mark.parametrize("damage", [f"text = '{'x' * 501}'", "kind = 'x'", "author = ''"])
async def test_a_damaged_row_hides_no_other(http: aiohttp.ClientSession, tmp_path: Path, damage: str) -> None:
    """Of the notes, and of the events of all nodes."""
    with closing(sqlite3.connect(tmp_path / "h.sqlite")) as connection, connection:
        names = "kind, author, text, node, subject, finding, realtime_ns, until_realtime_ns"
        connection.execute(f"INSERT INTO operator_note (note_id, {names}) SELECT 'bad', {names} FROM operator_note")
        connection.execute(f"UPDATE operator_note SET {damage} WHERE note_id = 'bad'")
        columns = "node, stream, sequence, realtime_ns, type, subject, time"
        connection.execute(f"INSERT INTO event ({columns}, event_id, data) SELECT {columns.replace('sequence', '99')}, 'bad', '[]' FROM event")  # fmt: skip
    items = {}
    for path in ("notes", "events"):
        async with http.get(f"/api/v1/{path}", headers=bearer("grafana")) as answer:
            assert answer.status == 200
            items[path] = [each["id"] for each in (await answer.json())["items"]]

    assert items["notes"] == ["trainer-01-3-1"]
    assert items["events"] and "bad" not in items["events"]
