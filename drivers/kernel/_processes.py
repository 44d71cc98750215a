"""The processes that may have to do with clocks, looked for in /proc, and their command lines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from timesyncd.clocks import NS_PER_S

LOOK_EVERY_NS = 30 * NS_PER_S
LOOK_AT_MOST_EVERY_NS = 5 * NS_PER_S


@dataclass(frozen=True, slots=True)
class Process:
    """`comm` is what the kernel calls it, at most 15 characters; `command` the words that it shows as its command line."""

    pid: int
    comm: str
    command: tuple[str, ...]


def look(proc: Path, comms: frozenset[str]) -> tuple[Process, ...] | None:
    """Every process with one of these names, of this pid namespace. None: others' processes are hidden from us."""
    try:
        (proc / "1" / "comm").read_text()
        pids = [int(path.name) for path in proc.iterdir() if path.name.isdecimal()]
    except OSError:
        return None
    return tuple(process for pid in sorted(pids) if (process := _process(proc / str(pid), comms)) is not None)


def _process(folder: Path, comms: frozenset[str]) -> Process | None:
    """None too where it has just ended."""
    try:
        comm = (folder / "comm").read_text(errors="replace").strip()
        if comm not in comms:
            return None
        line = (folder / "cmdline").read_text(errors="replace")
    except OSError:
        return None
    return Process(int(folder.name), comm, tuple(line.rstrip("\0").split("\0")))


def options(process: Process, valued: str) -> Iterator[tuple[str, str]]:
    """
    Each option with its value, as getopt(3) reads its command line: `valued` are the letters that have one. A long option is
    given as `--name`, and its value is the next word where it holds no `=`.
    """
    words = iter(process.command[1:])
    for word in words:
        if word == "--":
            return
        if word.startswith("--"):
            name, has_value, value = word.partition("=")
            yield name, value if has_value else next(words, "")
        elif word.startswith("-"):
            yield from _short(word[1:], valued, words)


def _short(letters: str, valued: str, words: Iterator[str]) -> Iterator[tuple[str, str]]:
    for at, letter in enumerate(letters):
        if letter in valued:
            yield letter, letters[at + 1 :] or next(words, "")
            return
        yield letter, ""


class Lookout:
    """Looks in a thread, since a node may have thousands of processes; between two looks the last one counts."""

    def __init__(self, proc: Path, comms: frozenset[str]) -> None:
        self._proc = proc
        self._comms = comms
        self._looked_ns: int | None = None
        self._wanted = False
        self._seen: tuple[Process, ...] | None = None

    def want(self) -> None:
        """Something changed: look again as soon as may be."""
        self._wanted = True

    async def seen(self, boottime_ns: int) -> tuple[Process, ...] | None:
        if self._is_due(boottime_ns):
            self._looked_ns, self._wanted = boottime_ns, False
            self._seen = await asyncio.to_thread(look, self._proc, self._comms)
        return self._seen

    def _is_due(self, boottime_ns: int) -> bool:
        if self._looked_ns is None:
            return True
        return boottime_ns - self._looked_ns >= (LOOK_AT_MOST_EVERY_NS if self._wanted else LOOK_EVERY_NS)
