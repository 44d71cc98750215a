"""
The leap seconds that the system's file lists: read once a day, since an update of tzdata may bring the next one.

A read that fails keeps the last table, and is tried again within seconds: without a file descriptor, say, only that moment's
read fails. The table states itself until when it holds.
"""

from __future__ import annotations

import logging
from pathlib import Path

from timesyncd.clocks import NS_PER_S
from timesyncd.config import read_file
from timesyncd.errors import Malformed
from timesyncd.model.leap import LeapTable, parse_leap_seconds

log = logging.getLogger(__name__)

#: As tzdata installs it.
LEAP_SECONDS_LIST = Path("/usr/share/zoneinfo/leap-seconds.list")

READ_EVERY_NS = 86_400 * NS_PER_S
#: After the first failure in a row; twice as long after each further one.
RETRY_NS = 5 * NS_PER_S
MAX_RETRY_NS = 3_600 * NS_PER_S


class LeapTableReader:
    """`table` is the last one that was read; None: there was none yet, as in a container without tzdata."""

    def __init__(self, path: Path = LEAP_SECONDS_LIST) -> None:
        self.table: LeapTable | None = None
        self._path = path
        self._next_ns = 0
        self._failures = 0

    def tick(self, now_boottime_ns: int) -> None:
        """Read the file if it is due."""
        if now_boottime_ns < self._next_ns:
            return
        try:
            self.table = parse_leap_seconds(read_file(self._path).decode())
        except (OSError, UnicodeDecodeError, Malformed) as error:
            if isinstance(error, FileNotFoundError) and self.table is None:
                self._next_ns = now_boottime_ns + READ_EVERY_NS
                return
            self._next_ns = now_boottime_ns + retry_ns(self._failures)
            self._failures += 1
            self._log_failure(error)
            return
        if self._failures:
            log.info("%s: read again", self._path)
        self._failures = 0
        self._next_ns = now_boottime_ns + READ_EVERY_NS

    def _log_failure(self, error: Exception) -> None:
        """Once for failures in a row."""
        if self._failures == 1:
            instead = "its last content counts" if self.table else "leap seconds are judged by their dates alone"
            reason = getattr(error, "strerror", None) or error
            log.warning("%s: %s; %s until it can be read", self._path, reason, instead)


def retry_ns(failures: int) -> int:
    """How long to wait after a failure with so many before it."""
    return min(RETRY_NS << min(failures, 20), MAX_RETRY_NS)
