"""What was read from a log, and what was left out and why. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class LogReport:
    """
    Counts of one log. `messages` are the lines of the program, `measurements` those that were replayed.

    `unreadable` lines are cut or garbled, `first_unreadable` is the number of the first. `lost` counts the notices that
    the logging service had dropped lines, `lost_lines` the lines where it reports that. `contradictions` are state
    changes that cannot follow one another, so lines are missing between them. `unlocked` are measurements in servo
    state s0. `longest_pause_ns` is the longest time between two measurements, which ends at line `pause_line`.
    """

    kind: str
    lines: int = 0
    messages: int = 0
    measurements: int = 0
    steps: int = 0
    restarts: int = 0
    parent_changes: int = 0
    foreign_steering: int = 0
    unreadable: int = 0
    first_unreadable: int | None = None
    lost: int = 0
    lost_lines: int = 0
    contradictions: int = 0
    duplicates: int = 0
    unlocked: int = 0
    without_bound: int = 0
    other_messages: int = 0
    other_instances: int = 0
    other_ports: int = 0
    first_t_s: str | None = None
    last_t_s: str | None = None
    longest_pause_ns: int = 0
    pause_line: int | None = None
    clock: str | None = None
    notes: list[str] = field(default_factory=list)

    def count_lines(self, lines: Iterable[str]) -> Iterator[str]:
        """The lines, counted."""
        for line in lines:
            self.lines += 1
            yield line

    def add_unreadable(self, line: int) -> None:
        self.unreadable += 1
        self.first_unreadable = self.first_unreadable or line

    def add_measurement(self, t_s: str, pause_ns: int, line: int) -> None:
        """`pause_ns` is the time since the measurement before, 0 for the first one."""
        self.measurements += 1
        self.first_t_s = t_s if self.first_t_s is None else self.first_t_s
        self.last_t_s = t_s
        if pause_ns > self.longest_pause_ns:
            self.longest_pause_ns, self.pause_line = pause_ns, line

    def add_note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)
