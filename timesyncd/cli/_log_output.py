"""
How the lines of a log are written: for people, for systemd's journal with the priority that `journalctl -p` selects by
(sd-daemon(3)), and as JSON.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

from timesyncd.units import printable

log = logging.getLogger(__name__)

ERROR = 3
_WARNING = 4
_INFORMATION = 6
_DEBUG = 7


def is_journal(stream: TextIO) -> bool:
    """Whether systemd connected this stream with its journal: JOURNAL_STREAM of systemd.exec(5) names its device and inode."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):  # closed, or no file
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def with_priority(text: str, priority: int) -> str:
    """Each line with its prefix: the journal makes an entry of each line."""
    return "\n".join(f"<{priority}>{line}" for line in text.splitlines())


def print_error(text: str) -> None:
    """One line on standard error, without what a terminal acts on; in the journal it is an error."""
    text = "\n".join(map(printable, text.splitlines()))
    print(with_priority(text, ERROR) if is_journal(sys.stderr) else text, file=sys.stderr)


def print_lines(lines: Iterable[str]) -> None:
    """
    Lines on standard output, without what a terminal acts on: files and hubs name jobs, nodes and hosts as they like.
    """
    print("\n".join(map(printable, lines)))


def formatter(stream: TextIO) -> logging.Formatter:
    """The journal has the time of each line by itself."""
    if is_journal(stream):
        return JournalFormatter("%(levelname)s %(message)s")
    return LineFormatter("%(asctime)s %(levelname)s %(message)s")


class LineFormatter(logging.Formatter):
    """
    A record's message is one line without what a terminal acts on, whatever it quotes: no text from elsewhere can look
    like another line of the log. A traceback follows in lines of its own.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return "\n".join(map(printable, super().formatException(ei).split("\n")))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time` in UTC (RFC 3339), `level`, `logger`, `message`, and of an error its `traceback`."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)


class JournalFormatter(LineFormatter):
    """A record as the journal takes it: the journal has the time, and `journalctl -p` the level."""

    def format(self, record: logging.LogRecord) -> str:
        return with_priority(super().format(record), _priority(record.levelno))


def log_unexpected(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """For `sys.excepthook`: the interpreter would write the traceback without priorities."""
    log.critical("unexpected failure", exc_info=(kind, error, trace))


def _priority(level: int) -> int:
    if level >= logging.ERROR:
        return ERROR
    if level >= logging.WARNING:
        return _WARNING
    return _INFORMATION if level >= logging.INFO else _DEBUG
