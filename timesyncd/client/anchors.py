"""Anchors: what this node's clocks showed together, kept beside a profiler's trace so that it can be put on the common clock."""

from __future__ import annotations

import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from timesyncd.bound import ClockStatus, ErrorBound, Reason, Reference, interval_now, reference_bound
from timesyncd.client.job import Job
from timesyncd.clocks import boot_id, time_namespace

FORMAT = "timesyncd anchors"
VERSION = 1

#: The side file of a trace has the trace's name and this.
SUFFIX = ".anchors"

#: An anchor is taken so often, by whichever call of `renew` comes next; at first sooner, twice as late each time, for short traces.
ANCHOR_INTERVAL_NS = 2_000_000_000
FIRST_ANCHOR_INTERVAL_NS = 10_000_000

#: A full file becomes the old one, in place of the one before: some days of anchors, and at most about 100 MB.
MAX_ANCHORS_PER_FILE = 100_000
OLD_SUFFIX = ".old"

#: What an annotated anchor is called in the trace: this and its number.
ANNOTATION = "timesyncd anchor "

#: A process' anchors, whichever of its files they are in, are in one trace: no two have one number.
_NUMBERS = itertools.count(1)

Annotate = Callable[[str], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class ReferenceOffset:
    """CLOCK_REALTIME less the reference at the anchor, +- bound_ns (None: unknown), which grows by growth_ppb in either direction of time."""

    offset_ns: int
    bound_ns: int | None
    growth_ppb: int
    past_growth_ppb: int


@dataclass(frozen=True, slots=True)
class Anchor:
    """
    What the machine's clocks showed at one moment, and what was known of CLOCK_REALTIME then; `reason`: why a bound is not. `raw_ns` is
    CLOCK_MONOTONIC_RAW, which nobody steers.

    `before_ns` and `after_ns` are CLOCK_REALTIME around the annotation `number` in the trace; None: it was not annotated.
    """

    number: int
    realtime_ns: int
    monotonic_ns: int
    raw_ns: int
    real_minus_boot_ns: int
    status: str
    reason: str
    gm: ReferenceOffset
    utc: ReferenceOffset
    grandmaster_identity: str | None
    utc_seconds_removed: int | None
    before_ns: int | None = None
    after_ns: int | None = None


@dataclass(frozen=True, slots=True)
class AnchorsHeader:
    """Whose anchors a file holds. Ranks of one boot and one time namespace read one clock."""

    job: str
    attempt: int
    rank: int
    world_size: int
    node: str
    host_name: str
    pid: int
    boot_id: str
    time_namespace: int


class Anchors:
    """
    The anchors of one trace, in `<path>.anchors`, a line each: one at the start, one at the end, and between them one every two
    seconds (at first sooner), when `renew` is called once a step. No thread.

    Never raises because of a disk or a daemon; `problem` says what went wrong first. In a forked child it does nothing.
    `annotate`, as torch.profiler.record_function, also shows each anchor in the trace, so that the profiler's own error is
    measured and not assumed. Writes one line to a file in `renew`: nothing else of it can wait.
    """

    def __init__(self, job: Job, path: Path | str, annotate: Annotate | None = None) -> None:
        self.path = Path(f"{path}{SUFFIX}")
        self.problem: str | None = None
        self._job = job
        self._annotate = annotate
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._kept = 0
        self._due_ns = 0
        self._every_ns = FIRST_ANCHOR_INTERVAL_NS
        self._file: int | None = None
        self._head = _line({"format": FORMAT, "version": VERSION} | asdict(_owner(job)))
        self._open()
        self.renew()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def renew(self) -> None:
        """To be called in each step, also from any thread; one reading of a clock while no anchor is due."""
        if time.monotonic_ns() >= self._due_ns:
            self._keep()

    def close(self) -> None:
        """The last anchor: after the profiler has stopped, and before the process ends."""
        self._keep()
        if os.getpid() == self._pid and self._lock.acquire(blocking=False):
            self._shut()
            self._lock.release()

    def _keep(self) -> None:
        """Not waited for by a signal handler that comes in the middle of it, nor by another thread."""
        if self._file is None or os.getpid() != self._pid or not self._lock.acquire(blocking=False):
            return
        try:
            self._due_ns = time.monotonic_ns() + self._every_ns
            self._every_ns = min(2 * self._every_ns, ANCHOR_INTERVAL_NS)
            self._write(_line(asdict(self._anchor())))
            self._kept += 1
            if self._kept % MAX_ANCHORS_PER_FILE == 0:
                self._begin_anew()
        except OSError as error:
            self._give_up(error)
        finally:
            self._lock.release()

    def _anchor(self) -> Anchor:
        number = next(_NUMBERS)
        if self._annotate is None:
            return take_anchor(self._job, number)
        before_ns = time.time_ns()
        with self._annotate(f"{ANNOTATION}{number}"):
            pass
        return take_anchor(self._job, number, before_ns, time.time_ns())

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._file = os.open(self.path, flags, 0o644)
            self._write(self._head)
        except OSError as error:
            self._give_up(error)

    def _begin_anew(self) -> None:
        self._shut()
        os.replace(self.path, f"{self.path}{OLD_SUFFIX}")
        self._open()

    def _write(self, line: bytes) -> None:
        """A line that is not written whole is the last: none stands after half a line."""
        assert self._file is not None
        if os.write(self._file, line) != len(line):
            raise OSError("the disk is full")

    def _give_up(self, error: OSError) -> None:
        self._say(error, "no anchor is kept from here on")
        self._shut()

    def _shut(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            os.close(file)
        except OSError as error:  # whatever it says, the descriptor is gone
            self._say(error, "anchors may be missing at its end")

    def _say(self, error: OSError, so: str) -> None:
        """The first problem is the one that is kept."""
        self.problem = self.problem or f"{self.path}: {error.strerror or error}; {so}"


def record_anchors(job: Job, folder: Path | str, annotate: Annotate | None = None) -> Anchors:
    """The anchors of all traces that this process writes to a folder, in `rank-<rank>-<pid>.anchors` there."""
    return Anchors(job, Path(folder) / f"rank-{job.rank}-{os.getpid()}", annotate)


def take_anchor(job: Job, number: int, before_ns: int | None = None, after_ns: int | None = None) -> Anchor:
    """An anchor of this moment."""
    clock = job.clock
    real_ns, mono_ns, boot_ns, raw_ns = max((_read_clocks() for _ in range(3)), key=_quickness)
    known = clock.snapshot()
    gm, status, reason = _part(known, Reference.GRANDMASTER, (real_ns, boot_ns), "" if known else clock.reason())
    utc, _, _ = _part(known, Reference.UTC, (real_ns, boot_ns), "")
    return Anchor(
        number=number,
        realtime_ns=real_ns,
        monotonic_ns=mono_ns,
        raw_ns=raw_ns,
        real_minus_boot_ns=real_ns - boot_ns,
        status=status.name,
        reason=reason,
        gm=gm,
        utc=utc,
        grandmaster_identity=None if known is None else known.grandmaster_identity,
        utc_seconds_removed=None if known is None else known.utc_seconds_removed,
        before_ns=before_ns,
        after_ns=after_ns,
    )


def _read_clocks() -> tuple[int, int, int, int]:
    """REALTIME first: a pause before the others makes the differences to them smaller."""
    real_ns, boot_ns = time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return real_ns, time.monotonic_ns(), boot_ns, time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


def _quickness(read: tuple[int, int, int, int]) -> int:
    real_ns, _, boot_ns, raw_ns = read
    return 2 * real_ns - boot_ns - raw_ns


def _part(
    known: ErrorBound | None, reference: Reference, reading: tuple[int, int], reason: str
) -> tuple[ReferenceOffset, ClockStatus, str]:
    if known is None:
        return ReferenceOffset(0, None, 0, 0), ClockStatus.UNKNOWN, reason
    interval, why = interval_now(known, reference, lambda: reading)
    growth_ppb = reference_bound(known, reference).bound.growth_ppb
    past_growth_ppb = max(growth_ppb, known.past_growth_ppb)
    if interval.earliest is None or interval.latest is None:
        return ReferenceOffset(0, None, growth_ppb, past_growth_ppb), interval.status, why.text
    offset_ns = reading[0] - (interval.earliest + interval.latest) // 2
    bound_ns = (interval.latest - interval.earliest + 1) // 2
    return (
        ReferenceOffset(offset_ns, bound_ns, growth_ppb, past_growth_ppb),
        interval.status,
        "" if why is Reason.OK else why.text,
    )


def _owner(job: Job) -> AnchorsHeader:
    return AnchorsHeader(
        job=job.name,
        attempt=job.attempt,
        rank=job.rank,
        world_size=job.world_size,
        node=job.node,
        host_name=socket.gethostname(),
        pid=os.getpid(),
        boot_id=f"{boot_id():032x}",
        time_namespace=time_namespace(),
    )


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"
