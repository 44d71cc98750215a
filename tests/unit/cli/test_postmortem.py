"""`timesyncd postmortem`: a span from a daemon, as Markdown on standard output."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from typing import Any

import pytest

from timesyncd.cli import postmortem
from timesyncd.client import api
from timesyncd.clocks import NS_PER_S
from timesyncd.errors import ConfigError


def run(*words: str) -> int:
    parser = ArgumentParser()
    postmortem.add_arguments(parser)
    return postmortem.run(parser.parse_args(["--url", "http://127.0.0.1:1/", *words]))


def test_the_document_is_printed_as_it_came(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The daemon is asked for exactly that span."""
    asked: list[str] = []

    def get(url: str, *_: Any) -> tuple[int, bytes]:
        asked.append(url)
        return 200, b"# Post-mortem\n"

    monkeypatch.setattr(api, "get", get)

    assert run("--from", "2026-03-01T03:00:00Z", "--to", "2026-03-01T04:00:00Z") == 0
    assert capsys.readouterr().out == "# Post-mortem\n"
    assert asked == ["http://127.0.0.1:1/api/v1/postmortem?since=1772334000000000000&until=1772337600000000000"]


@pytest.mark.parametrize(
    ("answer", "text"),
    [((403, b'{"error": "requires the role reader"}'), "requires the role reader"), ((502, b"<html>"), "status 502")],
)
def test_a_refusal_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: tuple[int, bytes], text: str
) -> None:
    """On standard error, with exit status 1, also where a proxy answered."""
    monkeypatch.setattr(api, "get", lambda *_: answer)

    assert run("--from", "2h") == 1
    written = capsys.readouterr()
    assert written.out == "" and text in written.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--from", "1h", "--to", "2h"), "--from 1h is not before --to 2h"),
        (("--from", "2999-01-01T00:00:00Z"), "--from 2999-01-01T00:00:00Z is not before --to now"),
    ],
)
def test_a_begin_after_the_end_is_named_by_the_options(words: tuple[str, ...], text: str) -> None:
    """Before the daemon is asked."""
    with pytest.raises(ConfigError, match=text):
        run(*words)


def test_a_time_may_be_a_span_before_now() -> None:
    """As people write it; anything else is refused with what is allowed."""
    assert abs(postmortem.time_ns_of("2h") - (time.time_ns() - 7_200 * NS_PER_S)) < 60 * NS_PER_S
    with pytest.raises(ConfigError, match="2026-03-01T03:00:00Z"):
        postmortem.time_ns_of("yesterday")
