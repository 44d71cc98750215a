"""The exceptions of timesyncd: one small tree of the failures that it expects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum


class TimesyncdError(Exception):
    """A failure that timesyncd expects; its text is one line that states what failed and where."""


class ConfigError(TimesyncdError):
    """The configuration is invalid; the text names file, key path, value and what is allowed."""


class ConfigErrors(ConfigError):
    """Several values of the configuration are wrong. `texts`: one line for each of them, at least one."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = tuple(texts)
        more = f"; {len(texts) - 1} more: timesyncd check-config prints them" if len(texts) > 1 else ""
        super().__init__(texts[0] + more)


class SourceError(TimesyncdError):
    """A clock source or a grandmaster could not be read. Drivers raise no other exception."""


class Unreachable(SourceError):
    """No reply: no socket, no route, or a timeout."""


class Malformed(SourceError):
    """A reply that does not conform to its protocol."""


class Refused(SourceError):
    """A well-formed reply that reports an error: not authorized, not supported, no such object."""


class StoreError(TimesyncdError):
    """The store cannot be opened, read or written."""


class TraceError(TimesyncdError):
    """A recorded trace cannot be read; the text names its file, the line, and the error there."""


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
    """
    A job's ranks could not synchronize: a rank exited, or they are at different steps; the text names the operation and
    what to do.
    """


def suggestion(name: str, known: Iterable[str]) -> str:
    """For an error that names an unknown `name`: as "; did you mean port?", or nothing where no known name is near."""
    from difflib import get_close_matches  # only where something is wrong

    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
