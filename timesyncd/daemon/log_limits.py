"""
Limits on what libraries log about other people's input: anybody who can connect could fill the disk.

A library's record of one kind passes once a minute, and the next one that passes states how many did not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from aiohttp.http_exceptions import HttpProcessingError

from timesyncd.clocks import NS_PER_S
from timesyncd.units import printable

#: The libraries that log errors which a stranger causes: malformed requests, and no file descriptor for a connection.
LIMITED_LOGGERS = ("aiohttp.server", "asyncio", "aiomqtt", "paho")

EVERY_NS = 60 * NS_PER_S

#: Kinds come from a library's own texts, so there are few; beyond this all others count as one kind.
MAX_KINDS = 256


def limit_library_logs() -> None:
    for name in LIMITED_LOGGERS:
        logging.getLogger(name).addFilter(LogLimit())


class LogLimit(logging.Filter):
    """
    Passes a record whose kind did not pass for a minute. A kind is the text before its arguments, and the error's type.

    A malformed request is no fault of ours, so its record passes in one line without a traceback, printable.
    """

    def __init__(self, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__()
        self._monotonic_ns = monotonic_ns
        self._passed: dict[tuple[str, str], tuple[int, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        kind = str(record.msg)[:80].partition("\n")[0], type(error).__name__
        if kind not in self._passed and len(self._passed) >= MAX_KINDS:
            kind = "", ""
        now_ns = self._monotonic_ns()
        passed_ns, held_back = self._passed.get(kind, (now_ns - EVERY_NS, 0))
        if now_ns - passed_ns < EVERY_NS:
            self._passed[kind] = passed_ns, held_back + 1
            return False
        self._passed[kind] = now_ns, 0
        text = record.getMessage()
        if isinstance(error, HttpProcessingError):
            text = f"{text}: {error.message.partition(chr(10))[0]}"
            record.exc_info = record.exc_text = None
        if held_back:
            text += f" ({held_back} more like it since the last line)"
        record.msg, record.args = printable(text), None
        return True
