"""
A grandmaster's web interface over real TLS: one session, whatever generation its log-in is of, and the history behind
it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from aiohttp import web
from web_interface import (
    COOKIE,
    GOOD,
    PASSWORD,
    TOKEN,
    Lab,
    S,
    ScriptedWebInterface,
    one_file,
    polled_error,
)

from timesyncd.drivers.timeprovider._web import WebReading
from timesyncd.drivers.timeprovider._web_session import LOGIN_PAUSE_S
from timesyncd.errors import Refused

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("nothing_left")]


async def test_an_honest_grandmaster(lab: Lab) -> None:
    """Channel states, then the newest point of each metric of each measured channel."""
    grandmaster = await lab.serve(ScriptedWebInterface())
    reader = await lab.reader(grandmaster.port)

    actual = await reader.poll(0)

    assert actual == WebReading(GOOD, 37, (), ())


async def test_one_session(lab: Lab) -> None:
    """One log-in lasts, also across close and open; each request bears its cookie."""
    grandmaster = await lab.serve(ScriptedWebInterface())
    reader = await lab.reader(grandmaster.port)
    await reader.poll(0)
    await reader.poll(60 * S)
    await reader.close()
    await reader.open()
    await reader.poll(120 * S)

    assert grandmaster.logins == 1
    assert {received.cookies.get("sid") for received in grandmaster.received[2:]} == {f"{COOKIE}1"}


REFUSALS: dict[str, Callable[[], web.Response]] = {
    "a page": lambda: web.Response(text="<html>log in</html>", content_type="text/html"),
    "a redirect to the page": lambda: web.Response(status=302, headers={"Location": "/login.html"}),
    "401": lambda: web.Response(status=401),
    "403": lambda: web.Response(status=403),
    "an error in JSON": lambda: web.json_response({"error": "session expired"}),
    "nothing": lambda: web.Response(),
}


@pytest.mark.parametrize("no_session", REFUSALS.values(), ids=REFUSALS.keys())
async def test_a_session_that_ended(lab: Lab, no_session: Callable[[], web.Response]) -> None:
    """
    However a grandmaster states that the session ended: one new log-in, whose new cookie is used, and the reading is
    whole.
    """
    grandmaster = await lab.serve(ScriptedWebInterface(no_session=no_session))
    reader = await lab.reader(grandmaster.port)
    await reader.poll(0)
    grandmaster.session = None

    actual = await reader.poll(60 * S)

    assert actual.time_errors == GOOD
    assert grandmaster.logins == 2
    assert grandmaster.received[-1].cookies["sid"] == f"{COOKIE}2"


async def test_a_session_that_ends_between_two_charts(lab: Lab) -> None:
    """The chart that came too late is asked for again."""
    grandmaster = await lab.serve(ScriptedWebInterface())
    reader = await lab.reader(grandmaster.port)

    async def too_late(request: web.Request) -> web.StreamResponse:
        del grandmaster.answers["/get_chart_data"]
        grandmaster.session = None
        return grandmaster.no_session()

    await reader.poll(0)
    grandmaster.answers["/get_chart_data"] = too_late

    actual = await reader.poll(60 * S)

    assert actual.time_errors == GOOD
    assert grandmaster.logins == 2


async def test_a_page_with_a_token(lab: Lab) -> None:
    """A grandmaster whose log-in page holds a hidden token gets it back with the log-in."""
    grandmaster = await lab.serve(ScriptedWebInterface(with_token=True))
    reader = await lab.reader(grandmaster.port)

    actual = await reader.poll(0)

    assert actual.time_errors == GOOD
    assert ("csrf_token", TOKEN) in [field for received in grandmaster.received for field in received.fields]


async def test_a_login_that_redirects(lab: Lab) -> None:
    """A log-in that answers with its own front page is good when data follows; the front page is not fetched."""
    grandmaster = ScriptedWebInterface()

    async def log_in(request: web.Request) -> web.StreamResponse:
        answer = grandmaster.log_in({name: str(value) for name, value in (await request.post()).items()})
        answer.set_status(302)
        answer.headers["Location"] = "/index.html"
        return answer

    grandmaster.answers["/login"] = log_in
    await lab.serve(grandmaster)
    reader = await lab.reader(grandmaster.port)

    assert (await reader.poll(0)).time_errors == GOOD
    assert "/index.html" not in {received.path for received in grandmaster.received}


async def test_a_log_in_rejected_with_status_200(lab: Lab) -> None:
    """It is found out by the next read, reported once, and not repeated for ten minutes: grandmasters lock accounts."""
    grandmaster = await lab.serve(ScriptedWebInterface(password="another"))
    reader = await lab.reader(grandmaster.port)

    first = await polled_error(reader, Refused, 0)
    await reader.close()
    await reader.open()
    second = await polled_error(reader, Refused, 60 * S)

    assert "/channels_thresholdValue: the response is HTML (19 octets) instead of JSON" in first
    assert "the log-in opened no session" in first
    assert "username and password" in first
    assert "the last log-in was rejected; the next is tried in 540 s" in second
    assert grandmaster.logins == 1

    grandmaster.password = PASSWORD

    assert (await reader.poll(LOGIN_PAUSE_S * S)).time_errors == GOOD


@pytest.mark.parametrize(("status", "held"), [(401, True), (403, True), (503, False)])
async def test_a_log_in_rejected_with_an_error_status(lab: Lab, status: int, held: bool) -> None:
    """A plain no holds the next log-in back; a grandmaster that is just starting does not."""
    grandmaster = await lab.serve(ScriptedWebInterface())
    reader = await lab.reader(grandmaster.port)
    asked = 0

    async def refuse(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return web.Response(status=status)

    grandmaster.answers["/login"] = refuse

    assert f"/login: HTTP status {status}" in await polled_error(reader, Refused, 0)
    await polled_error(reader, Refused, 60 * S)
    assert asked == (1 if held else 2)


async def test_history_fills_the_hole(lab: Lab) -> None:
    """After a start one file a poll comes, each once; after ten minutes without a reading they come again."""
    grandmaster = await lab.serve(ScriptedWebInterface())
    reader = await lab.reader(grandmaster.port, fill_history=True)

    series = [(await reader.poll(minute * 60 * S)).series for minute in (0, 1, 2, 3, 14)]

    assert series == [
        (one_file("te", 0),),
        (one_file("cte", 1),),
        (one_file("max_te", 2),),
        (),
        (one_file("te", 0),),
    ]
