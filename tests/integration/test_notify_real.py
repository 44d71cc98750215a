"""A daemon with `[[notify]]`, whose findings apprise itself posts to a local server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from timesyncd.clocks import Clocks, SystemClocks
from timesyncd.config.sections import NotifySettings, SecretSettings
from timesyncd.errors import ConfigError
from timesyncd.integrations.notify import grouping, sender
from timesyncd.integrations.notify.sender import Notifier
from timesyncd.messages.events import BEGAN, ENDED
from timesyncd.messages.fleet import CloudEvent

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings(
        "ignore:'imghdr' is deprecated:DeprecationWarning"
    ),  # apprise imports it for old Pythons
]

#: Patience, not an expectation.
TIMEOUT_S = 60

FINDING = {
    "id": "source-lost", "severity": "critical", "subject": "ptp", "since_realtime_ns": 5, "until_realtime_ns": None,
    "evidence": "no answer", "cause": "it is down", "remedy": "look there",
}  # fmt: skip


class Receiver:
    """What was posted; the first `refusals` posts are refused."""

    def __init__(self, refusals: int = 0) -> None:
        self.posts: list[dict[str, Any]] = []
        self.refusals = refusals
        self.port = 0


@contextmanager
def receiver(refusals: int = 0) -> Iterator[Receiver]:
    found = Receiver(refusals)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            refused = found.refusals > 0
            found.refusals -= refused
            if not refused:
                found.posts.append(json.loads(body))
            self.send_response(503 if refused else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    found.port = server.server_port
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait for further findings, and none before another try."""
    monkeypatch.setattr(grouping, "GATHER_NS", 0)
    monkeypatch.setattr(sender, "TICK_S", 0.05)
    monkeypatch.setattr(sender, "RETRY_AFTER_S", (0.05, 0.05))


def notifier(folder: Path, port: int, handled: set[tuple[str, str]], clocks: Clocks, options: str = "") -> Notifier:
    path = folder / "url"
    path.write_text(f"json://127.0.0.1:{port}/{options}\n")
    settings = NotifySettings(url=SecretSettings(file=path), every_s=10)
    return Notifier([settings], "hub-a", clocks, lambda: handled)


def event(type: str = BEGAN, **changes: Any) -> CloudEvent:
    return CloudEvent(
        id="1-1", source="/cluster/node/hub-a", type=type, subject="ptp", time="-", data=FINDING | changes
    )


async def until_posted(found: Receiver, count: int) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while len(found.posts) < count:
            await asyncio.sleep(0.05)


@pytest.mark.usefixtures("at_once")
async def test_a_finding_is_posted(folder: Path) -> None:
    """Title, text and type as apprise sends them; a refused post is tried again, and other events are not sent."""
    with receiver(refusals=1) as found:
        made = notifier(folder, found.port, set(), SystemClocks())
        task = asyncio.create_task(made.run())
        made.accept_event(event(type="timesyncd.operator.comment"), 7)
        made.accept_event(event(), 7)
        await until_posted(found, 1)
        task.cancel()

    [post] = found.posts
    assert (post["title"], post["type"]) == ("timesyncd on hub-a: 1 critical", "failure")
    assert post["message"].splitlines()[0] == "critical source-lost: ptp"


@pytest.mark.usefixtures("at_once")
async def test_foreign_text_is_no_markup_where_it_is_sent(folder: Path) -> None:
    """A finding may quote a job's name: a mail in HTML shows it, and a chat notifies no group for it."""
    with receiver() as found:
        made = notifier(folder, found.port, set(), SystemClocks(), "?format=html")
        task = asyncio.create_task(made.run())
        made.accept_event(event(evidence='job "<img src=x><!channel>" is late'), 7)
        await until_posted(found, 1)
        task.cancel()

    assert "&lt;img" in found.posts[0]["message"] and "&lt;!channel&gt;" in found.posts[0]["message"]
    assert "<img" not in found.posts[0]["message"] and "<!" not in found.posts[0]["message"]


@pytest.mark.usefixtures("at_once")
async def test_an_acknowledged_finding_is_not_posted(folder: Path) -> None:
    """The second finding arrives, so the first one was withheld and not late."""
    with receiver() as found:
        made = notifier(folder, found.port, {("source-lost", "ptp")}, SystemClocks())
        task = asyncio.create_task(made.run())
        made.accept_event(event(), 7)
        made.accept_event(event(type=ENDED, subject="other", until_realtime_ns=9), 7)
        await until_posted(found, 1)
        task.cancel()

    assert [post["message"].splitlines()[0] for post in found.posts] == ["critical source-lost: other"]


def test_an_address_that_apprise_does_not_know_is_an_error(folder: Path) -> None:
    """The error names the section, and not the URL, which is a secret."""
    path = folder / "url"
    path.write_text("no-such-service-of-apprise://secret")
    settings = NotifySettings(url=SecretSettings(file=path))

    with pytest.raises(ConfigError, match=r"notify\[0\]\.url: apprise knows no such service") as raised:
        Notifier([settings], "hub-a", SystemClocks(), set)
    assert "secret" not in str(raised.value)
