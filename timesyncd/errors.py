"""Every failure that timesyncd expects, in one small tree."""

from __future__ import annotations

from enum import StrEnum


class TimesyncdError(Exception):
    """A failure that timesyncd expects; its text is one line that says what and where."""


class ConfigError(TimesyncdError):
    """The configuration cannot be used; the text names file, key path, value and what is allowed."""


class SourceError(TimesyncdError):
    """A clock source or a grandmaster could not be read. Drivers raise nothing else."""


class Unreachable(SourceError):
    """No answer: no socket, no route, a time-out."""


class Malformed(SourceError):
    """An answer came that is not what its protocol says."""


class Refused(SourceError):
    """A well-formed answer says no: not authorised, not supported, no such object."""


class StoreError(TimesyncdError):
    """The store cannot be opened, read or written."""


class TraceError(TimesyncdError):
    """A recorded trace cannot be read further; the text names its file, the line, and what is wrong there."""


class AlignmentError(TimesyncdError):
    """
    The clocks of a job's nodes do not agree as required; the text names the nodes, the reason and what to do.

    `reason_code` is a timesyncd.client.AlignmentReason.
    """

    def __init__(self, text: str, reason_code: StrEnum) -> None:
        super().__init__(text, reason_code)
        self.reason_code = reason_code

    def __str__(self) -> str:
        return str(self.args[0])


class SyncError(TimesyncdError):
    """A job's ranks could not synchronize: one is gone, or they are out of step; the text says what was being done, and what to do."""
