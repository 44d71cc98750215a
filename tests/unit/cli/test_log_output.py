"""The lines of a log: for people, for systemd's journal with a priority each, and as JSON."""

from __future__ import annotations

import io
import json
import logging
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from timesyncd import __main__ as program
from timesyncd.build import this_build
from timesyncd.cli import now
from timesyncd.cli._log_output import (
    JournalFormatter,
    JsonFormatter,
    LineFormatter,
    is_journal,
    log_unexpected,
    print_error,
)
from timesyncd.cli.run import machine_lines
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


@pytest.mark.parametrize("kind", [LineFormatter, JournalFormatter])
def test_what_a_line_quotes_is_neither_another_line_nor_a_command(kind: type[logging.Formatter]) -> None:
    """A name with a line's end, or with what a terminal acts on, cannot pretend to be a line of the daemon."""
    text = "x\n2026-01-01 00:00:00,000 CRITICAL clock is fine\r\x1b[2J\u2028"
    record = logging.LogRecord("x", logging.WARNING, "x.py", 1, "rejected %s", (text,), None)
    line = kind("%(levelname)s %(message)s").format(record)

    assert line.isprintable()
    assert line.endswith(r"rejected x\n2026-01-01 00:00:00,000 CRITICAL clock is fine\r\x1b[2J\u2028")


def test_a_traceback_keeps_its_lines_and_nothing_else() -> None:
    """An error's own text may quote anything."""
    try:
        raise ValueError("bad \x1b[2J text")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "x.py", 1, "failed", (), sys.exc_info())
    lines = LineFormatter("%(message)s").format(record).split("\n")

    assert len(lines) > 3 and all(line.isprintable() for line in lines)


def test_an_error_of_a_command_is_printable(capsys: pytest.CaptureFixture[str]) -> None:
    """A server's answer or a file's name may be in it."""
    print_error("http://x/: \x1b]0;owned\x07\nsecond line")

    assert capsys.readouterr().err == "http://x/: \\x1b]0;owned\\x07\nsecond line\n"


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


def test_a_record_as_json_is_one_line() -> None:
    """With the time in UTC, and a traceback inside the object."""
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        record = logging.LogRecord(
            "timesyncd.x", logging.ERROR, "x.py", 1, "it %s", ("failed",), (type(error), error, None)
        )
    record.created = 1.5
    line = JsonFormatter().format(record)

    assert "\n" not in line
    entry = json.loads(line)
    assert entry.pop("traceback").endswith("ValueError: two\nlines")
    assert entry == {
        "time": "1970-01-01T00:00:01.500000+00:00", "level": "error", "logger": "timesyncd.x", "message": "it failed",
    }  # fmt: skip


def test_the_first_lines_name_build_configuration_and_machine(tmp_path: Path) -> None:
    """A daemon's log says what runs on what, before anything can fail."""
    path = tmp_path / "t.toml"
    path.write_text(
        f'[node]\nname = "node-a"\nruntime_dir = "{tmp_path}/run"\n[log]\nformat = "json"\n'
        '[[source]]\nname = "kernel"\ndriver = "kernel"\n'
    )
    command = [sys.executable, "-m", "timesyncd", "run", "--config", str(path), "-v"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as daemon:
        assert daemon.stderr is not None
        entries = []
        for line in daemon.stderr:
            entries.append(json.loads(line))
            if entries[-1]["level"] == "debug":
                break
        daemon.terminate()

    lines = [entry["message"] for entry in entries]
    assert lines[:2] == [str(this_build()), f"configuration {path}"]
    assert lines[2].startswith("node         node-a")
    assert f"kernel       {platform.release()}" in lines
    assert lines[-1] == "kernel: poll: 1 readings"


def test_the_clocks_of_the_machine_are_named(tmp_path: Path) -> None:
    """As sysfs has them; without any, the line says so."""
    assert list(machine_lines(tmp_path))[1] == "phc          none: this kernel has no PTP hardware clock"
    clock = tmp_path / "sys/class/ptp/ptp0"
    clock.mkdir(parents=True)
    (clock / "clock_name").write_text("igb\n")
    assert list(machine_lines(tmp_path))[1] == "phc          /dev/ptp0: igb, at most unknown ppb of frequency"
