"""What systemd's journal is given: a priority for each line, and nothing of that on a terminal."""

from __future__ import annotations

import io
import logging
import os
import sys
from pathlib import Path

import pytest

from timesyncd import __main__ as program
from timesyncd.cli import now
from timesyncd.cli._journal import JournalFormatter, is_journal, log_unexpected
from timesyncd.errors import ConfigError


@pytest.mark.parametrize(
    ("level", "prefix"),
    [("CRITICAL", "<3>"), ("ERROR", "<3>"), ("WARNING", "<4>"), ("INFO", "<6>"), ("DEBUG", "<7>")],
)
def test_a_level_is_a_priority(level: str, prefix: str) -> None:
    """Each level of logging is the priority of syslog that `journalctl -p` selects by."""
    record = logging.LogRecord("x", logging.getLevelNamesMapping()[level], "x.py", 1, "lost", (), None)

    assert JournalFormatter("%(levelname)s %(message)s").format(record) == f"{prefix}{level} lost"


def test_each_line_of_a_traceback_has_its_priority() -> None:
    """The journal makes an entry of each line, so a line without a prefix would be information."""
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        record = logging.LogRecord("x", logging.CRITICAL, "x.py", 1, "failed", (), sys.exc_info())
    lines = JournalFormatter("%(message)s").format(record).splitlines()

    assert len(lines) > 3
    assert [line for line in lines if not line.startswith("<3>")] == []


def test_an_unexpected_failure_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """What ends the daemon is an error in the journal, with the place where it arose."""
    error = ZeroDivisionError("by zero")
    log_unexpected(type(error), error, None)

    assert [record.levelname for record in caplog.records] == ["CRITICAL"]
    assert "ZeroDivisionError: by zero" in caplog.text


def _connected(path: Path) -> str:
    status = path.stat()
    return f"{status.st_dev}:{status.st_ino}"


def test_the_journal_is_the_stream_that_systemd_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that a shell redirected elsewhere is none, also while JOURNAL_STREAM is inherited."""
    journal, file = tmp_path / "journal", tmp_path / "file"
    journal.touch()
    file.touch()
    monkeypatch.setenv("JOURNAL_STREAM", _connected(journal))

    with journal.open("a") as connected, file.open("a") as redirected:
        assert (is_journal(connected), is_journal(redirected), is_journal(io.StringIO())) == (True, False, False)
        monkeypatch.delenv("JOURNAL_STREAM")
        assert not is_journal(connected)


def test_a_configuration_error_is_an_error_in_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line that states what is wrong is found by `journalctl -p err`."""

    def fail(_: object) -> int:
        raise ConfigError("bad")

    stream = tmp_path / "journal"
    with stream.open("w") as connected:
        monkeypatch.setattr(now, "run", fail)
        monkeypatch.setattr(sys, "stderr", connected)
        monkeypatch.setenv("JOURNAL_STREAM", f"{os.fstat(connected.fileno()).st_dev}:{stream.stat().st_ino}")
        status = program.main(["now"])

    assert (status, stream.read_text()) == (2, "<3>timesyncd: bad\n")
