"""
Which findings become a message, and when. Pure: time is an argument.

Many findings that begin together are one message. A finding that an operator acknowledged or silenced is in none; once
a silence is over and the finding still holds, it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import groupby

from timesyncd.clocks import NS_PER_S
from timesyncd.messages.node import FindingMessage, Severity

#: What follows a first finding within this time joins its message.
GATHER_NS = 10 * NS_PER_S

#: So many subjects of one finding, and so many findings, are named in a message.
MAX_SUBJECTS, MAX_KINDS = 5, 20

_ORDER: tuple[Severity, ...] = ("critical", "warning", "info")

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Notice:
    """A message for people. `severity`: the worst of what began; None: things only ended."""

    title: str
    body: str
    severity: Severity | None


class Grouping:
    """The findings that one receiver is to learn of, by (id, subject)."""

    def __init__(self, severity: Severity, every_ns: int) -> None:
        self._rank = _ORDER.index(severity)
        self._every_ns = every_ns
        self._sent_ns: int | None = None
        self._first_ns: int | None = None
        self._waiting: dict[Key, FindingMessage] = {}
        self._reported: set[Key] = set()

    def accept(self, finding: FindingMessage, now_ns: int) -> None:
        """A finding began, changed or ended."""
        key = finding.id, finding.subject
        if _ORDER.index(finding.severity) > self._rank:
            return
        if finding.until_realtime_ns is None and key in self._reported:
            self._waiting.pop(key, None)  # it ended and began again before anybody learnt of its end
            return
        self._waiting[key] = finding
        if self._first_ns is None:
            self._first_ns = now_ns

    def due(self, handled: Collection[Key], node: str, now_ns: int) -> Notice | None:
        """
        The message that is due now; None: none is. `handled` findings are those that somebody took.

        An end is reported where the begin was. A finding that began and ended within the wait is reported as both.
        """
        if self._first_ns is None or now_ns < self._first_ns + GATHER_NS:
            return None
        if self._sent_ns is not None and now_ns < self._sent_ns + self._every_ns:
            return None
        began = {key: each for key, each in self._waiting.items() if key not in self._reported and key not in handled}
        ended = {key: each for key, each in self._waiting.items() if key in self._reported}
        # What is silent and still holds waits for the silence's end; what ended in silence is forgotten.
        silent = {key: each for key, each in self._waiting.items() if key in handled and key not in self._reported}
        self._waiting = {key: each for key, each in silent.items() if each.until_realtime_ns is None}
        self._first_ns = now_ns if self._waiting else None
        if not began and not ended:
            return None
        self._reported |= {key for key, each in began.items() if each.until_realtime_ns is None}
        self._reported -= ended.keys()
        self._sent_ns = now_ns
        return notice(list(began.values()), list(ended.values()), node)


def notice(began: list[FindingMessage], ended: list[FindingMessage], node: str) -> Notice:
    """The message of these findings."""
    counted = [(severity, sum(each.severity == severity for each in began)) for severity in _ORDER]
    parts = [f"{count} {severity}" for severity, count in counted if count]
    if ended:
        parts.append(f"{len(ended)} ended")
    lines = [*_lines(began, ""), *_lines(ended, "ended: ")]
    worst = next((severity for severity, count in counted if count), None)
    return Notice(f"timesyncd on {node}: {', '.join(parts)}", "\n".join(lines), worst)


def _lines(findings: Iterable[FindingMessage], prefix: str) -> list[str]:
    """One paragraph for each finding's id, the worst first: whom it concerns, and of one of them evidence and remedy."""
    ordered = sorted(findings, key=lambda each: (_ORDER.index(each.severity), each.id))
    groups = [list(group) for _, group in groupby(ordered, key=lambda each: (each.severity, each.id))]
    lines = []
    for group in groups[:MAX_KINDS]:
        first = group[0]
        subjects = [each.subject for each in group]
        named = ", ".join(subjects[:MAX_SUBJECTS])
        more = f" and {len(subjects) - MAX_SUBJECTS} more" if len(subjects) > MAX_SUBJECTS else ""
        lines.append(f"{prefix}{first.severity} {first.id}: {named}{more}")
        if not prefix:
            lines += [f"  {first.evidence}", f"  {first.cause}: {first.remedy}"]
            lines += ["  it is over already"] if first.until_realtime_ns is not None else []
    if len(groups) > MAX_KINDS:
        lines.append(f"{prefix}{len(groups) - MAX_KINDS} other findings")
    return lines
