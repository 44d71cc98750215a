"""Each command that asks a daemon, where another program answers at its address: one line, and never a traceback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from timesyncd.__main__ import main
from timesyncd.cli._top_data import DaemonFeed
from timesyncd.errors import SourceError
from timesyncd.kubernetes.controller import fleet_states

BODIES = {
    "null": b"null",
    "a list": b"[]",
    "an object": b"{}",
    "items is a number": b'{"items": 5, "next": null}',
    "an item is a number": b'{"items": [5], "next": null}',
    "an item is empty": b'{"items": [{}], "next": null, "plan": 5}',
    "no last page": b'{"items": [], "next": "a", "next_step": 0}',
    "nested": b"[" * 100_000,
    "octets": bytes(range(256)),
}

COMMANDS = [
    ["status"],
    ["status", "gm-a"],
    ["status", "--json"],
    ["explain"],
    ["postmortem", "--from", "1h"],
    ["audit", "--job", "llm", "--out", "unused"],
    ["advise", "llm"],
    ["policy", "llm"],
    ["policy", "0123456789abcdef"],
]


@contextmanager
def answering(body: bytes) -> Iterator[str]:
    """A server that gives one reply to each request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_another_program_s_reply_gives_one_line(
    body: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The line names the address; the exit status is that of a failure, and nothing is printed as if it were an answer."""
    monkeypatch.chdir(tmp_path)
    with answering(body) as url:
        for command in COMMANDS:
            status = main([*command, "--url", url])
            output = capsys.readouterr()

            assert (status, output.out) == (1, ""), command
            assert output.err.count("\n") == 1 and url in output.err, command
            assert "Traceback" not in output.err and "object" not in output.err, command


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_check_of_nagios_is_unknown_then(body: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 3 and one line, since 1 would be a warning."""
    with answering(body) as url:
        assert main(["status", "--nagios", "--url", url]) == 3
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_top_and_the_kubernetes_controller_report_it(body: bytes) -> None:
    """As an error that both expect: top shows it in its banner, and the controller logs it and asks again."""
    with answering(body) as url:
        feed = DaemonFeed(url)
        for ask in (feed.round, lambda: feed.detail("nodes", "a"), lambda: feed.lateness("a")):
            with pytest.raises(SourceError, match="^http://127.0.0.1"):
                ask()
        with pytest.raises(SourceError, match="^http://127.0.0.1"):
            fleet_states(url.rstrip("/"), None)
