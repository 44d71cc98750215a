"""
The running programs whose lines share a log: which lines belong together, and which of them are replayed. Pure.

Lines of one program that was started again belong together: same name, host and tag, another pid, one after the other.
Lines that are mixed, or whose monotonic timestamps restart (another boot), do not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from timesyncd.errors import TraceError
from timesyncd.logs.lines import Origin

#: So many choices are listed in an error.
_LISTED = 12


class Instance(NamedTuple):
    """One start of one program. `sink` is the clock that phc2sys steers; `boot` counts the boots in the log from 0."""

    origin: Origin
    tag: str = ""
    sink: str = ""
    boot: int = 0

    @property
    def label(self) -> str:
        """Its whole name, without the boot."""
        program, host, pid = self.origin
        process = f"{program or 'no name'}[{pid}]" if pid is not None else program or ""
        return " ".join(part for part in (host, process, self.tag, self.sink) if part) or "no name"

    def is_called(self, wanted: str) -> bool:
        """Whether the label, or one part of it, is this."""
        program, host, pid = self.origin
        boot = f"boot {1 + self.boot}"
        label = self.label.removeprefix(f"{host} ")
        parts = {self.label, label, f"{self.label} {boot}", f"{label} {boot}", boot, self.tag, self.tag.strip("[]:")}
        return wanted in parts | {program, host, self.sink, None if pid is None else str(pid), f"{program}[{pid}]"}


@dataclass(slots=True)
class Lines:
    """Where an instance's measurements are: line numbers from 1, and nanoseconds of its own time."""

    first: int
    last: int
    first_ns: int
    last_ns: int
    measurements: int = 1


class Instances:
    """The instances that a log shows so far, and the choice among them."""

    def __init__(self, name: str, wanted: str | None = None) -> None:
        self._name, self._wanted = name, wanted
        self._seen: dict[Instance, Lines] = {}
        self.others: set[Instance] = set()
        """Instances that are not wanted."""
        self._origins: set[Origin] = set()
        self._other_origins: set[Origin] = set()

    def add(self, instance: Instance, line: int, time_ns: int) -> bool:
        """Count one measurement; whether its instance is a new one that the choice contains."""
        if self._wanted is not None and not instance.is_called(self._wanted):
            self.others.add(instance)
            self._other_origins.add(instance.origin)
            return False
        lines = self._seen.get(instance)
        if lines is None:
            self._seen[instance] = Lines(line, line, time_ns, time_ns)
            self._origins.add(instance.origin)
            return True
        lines.last, lines.last_ns, lines.measurements = line, time_ns, lines.measurements + 1
        return False

    def knows(self, origin: Origin) -> bool:
        """Whether a measurement that is replayed came from this program."""
        return origin in self._origins

    def rejects(self, origin: Origin) -> bool:
        """Whether measurements came from this program, and none of them is wanted."""
        return origin in self._other_origins and origin not in self._origins

    def __contains__(self, instance: Instance) -> bool:
        return instance in self._seen

    def __len__(self) -> int:
        return len(self._seen)

    def check(self, line: int | None = None) -> None:
        """Raises TraceError where the lines are those of several programs; `line` is where that shows."""
        if self._wanted is not None and not self._seen and self.others:
            raise TraceError(f"{self._name}: no instance {self._wanted!r}; it has {_listed(self.others)}")
        chains: dict[tuple[str | None, str | None, str, str], list[Instance]] = {}
        for instance in self._seen:
            origin = instance.origin
            chains.setdefault((origin.program, origin.host, instance.tag, instance.sink), []).append(instance)
        if len(chains) > 1 or not all(self._is_one_after_another(chain) for chain in chains.values()):
            where = self._name if line is None else f"{self._name}:{line}"
            raise TraceError(
                f"{where}: these are the lines of {len(self._seen)} instances: choose one with --instance:"
                f" {_listed(self._seen)}"
            )

    def _is_one_after_another(self, chain: Iterable[Instance]) -> bool:
        """Whether each was started after the one before had ended, in one boot."""
        last: tuple[Instance, Lines] | None = None
        for instance, lines in sorted(((each, self._seen[each]) for each in chain), key=lambda pair: pair[1].first):
            if last is not None:
                before, earlier = last
                if before.boot != instance.boot or lines.first < earlier.last or lines.first_ns < earlier.last_ns:
                    return False
            last = instance, lines
        return True


def _listed(instances: Collection[Instance]) -> str:
    """The instances' labels, quoted, as --instance takes them."""
    several_boots = len({instance.boot for instance in instances}) > 1
    names = [
        repr(f"{instance.label} boot {1 + instance.boot}" if several_boots else instance.label)
        for instance in instances
    ]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
