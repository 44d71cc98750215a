"""The log-in leads back to the view that was asked for, and nowhere else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from fake_view import FakeView

from timesyncd import config
from timesyncd.config import SecretSettings, TokenSettings
from timesyncd.web.app import serve
from timesyncd.web.auth import login_location, safe_next

SECRET = "of-a-reader-0123456789ab"
HTML = {"Accept": "text/html"}


@asynccontextmanager
async def guarded() -> AsyncIterator[aiohttp.ClientSession]:
    """A client of a daemon that has just started and requires the secret of $TOKEN."""
    token = TokenSettings(name="anna", role="reader", secret=SecretSettings(env="TOKEN"))
    server = await serve(config.WebSettings(port=0, token=[token]), FakeView())
    async with aiohttp.ClientSession(server.url) as session:
        yield session
    await server.close()


@pytest.fixture
async def http(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[aiohttp.ClientSession]:
    monkeypatch.setenv("TOKEN", SECRET)
    async with guarded() as session:
        yield session


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/", "login"),
        ("/fleet", "login?next=fleet"),
        ("/fleet?from=-1h&at=5", "login?next=fleet%3Ffrom%3D-1h%26at%3D5"),
        ("/node/node-a?tz=utc", "../login?next=node%2Fnode-a%3Ftz%3Dutc"),
        ("/job/%3Cscript%3E", "../login?next=job%2F%253Cscript%253E"),
    ],
)
def test_a_view_leads_to_the_log_in(path: str, location: str) -> None:
    """Relative to the view, as a proxy may serve it below a prefix, with the view itself."""
    assert login_location(path) == location


@pytest.mark.parametrize(
    "text",
    ["//evil.example", "https://evil.example", "/fleet", "../x", "node/../../x", "node/a/b", "fleet\r\nSet-Cookie: x=1",
     "api/v1/config", "logout", "node/a\\evil", "javascript:alert(1)", "fleet#x"],
)  # fmt: skip
def test_the_log_in_leads_to_no_other_place(text: str) -> None:
    """Whatever a link says, only a view of this page follows the log-in."""
    assert safe_next(text) == ""


async def test_the_view_survives_a_wrong_token(http: aiohttp.ClientSession) -> None:
    """From the redirect through the form and a mistake back to the view."""
    asked = await http.get("/node/node-a?tz=utc", headers=HTML, allow_redirects=False)
    assert (asked.status, asked.headers["Location"]) == (303, "../login?next=node%2Fnode-a%3Ftz%3Dutc")

    form = await (await http.get("/login?next=node%2Fnode-a%3Ftz%3Dutc")).text()
    assert 'name="next" value="node/node-a?tz=utc"' in form
    assert "[[web.token]]" in form

    sent = {"next": "node/node-a?tz=utc"}
    wrong = await http.post("/login", data=sent | {"token": "a-wrong-token-0123456789"}, allow_redirects=False)
    assert wrong.status == 401 and 'value="node/node-a?tz=utc"' in await wrong.text()
    right = await http.post("/login", data=sent | {"token": SECRET}, allow_redirects=False)
    assert (right.status, right.headers["Location"]) == (303, "./node/node-a?tz=utc")


async def test_a_forged_view_is_ignored(http: aiohttp.ClientSession) -> None:
    """In the form and in the redirect."""
    form = await (await http.get('/login?next="><script>alert(1)</script>')).text()
    assert "<script>" not in form

    data = {"token": SECRET, "next": "//evil.example/"}
    answer = await http.post("/login", data=data, allow_redirects=False)
    assert answer.headers["Location"] == "./"


async def test_only_a_browser_is_redirected(http: aiohttp.ClientSession) -> None:
    """A program that asks for a view, and anybody who asks for data, gets 401."""
    assert (await http.get("/fleet", allow_redirects=False)).status == 401
    assert (await http.get("/api/v1/nodes", headers=HTML, allow_redirects=False)).status == 401


async def test_a_restart_ends_a_session_as_the_form_says(http: aiohttp.ClientSession) -> None:
    """No session is kept on a disk."""
    assert "12 hours, when you log out, or when the daemon restarts" in await (await http.get("/login")).text()
    answer = await http.post("/login", data={"token": SECRET}, allow_redirects=False)
    session = {"Cookie": answer.headers["Set-Cookie"].partition(";")[0]}
    async with guarded() as again:
        answers = [await each.get("/api/v1/nodes", headers=session) for each in (http, again)]

        assert [each.status for each in answers] == [200, 401]
