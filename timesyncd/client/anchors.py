"""Anchors: readings of all clocks of this node at one moment, kept beside a profiler's trace to put it on the common clock."""

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
from timesyncd.clocks import RawReading, boot_id, time_namespace

FORMAT = "timesyncd anchors"
VERSION = 1

#: The anchor file of a trace has the trace's name and this suffix.
SUFFIX = ".anchors"

#: The interval of anchors; each is taken by the next call of `step`. The first ones come sooner, each after twice the time, for short traces.
ANCHOR_INTERVAL_NS = 2_000_000_000
FIRST_ANCHOR_INTERVAL_NS = 10_000_000

#: A full file replaces the old one: some days of anchors, at most about 100 MB.
MAX_ANCHORS_PER_FILE = 100_000
OLD_SUFFIX = ".old"

#: The name of an annotated anchor in the trace: this and its number.
ANNOTATION = "timesyncd anchor "

#: All anchors of a process may be in one trace, whatever their files are: no two have one number.
_NUMBERS = itertools.count(1)

Annotate = Callable[[str], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class ReferenceOffset:
    """CLOCK_REALTIME minus the reference at the anchor, +- bound_ns (None: unknown). The bound grows by growth_ppb into the future, by past_growth_ppb into the past."""

    offset_ns: int
    bound_ns: int | None
    growth_ppb: int
    past_growth_ppb: int


@dataclass(frozen=True, slots=True)
class Anchor:
    """
    The readings of this machine's clocks at one moment, and what was known of CLOCK_REALTIME then.

    `reason_code` and `reason` give the cause of an unknown bound. `raw_ns` is CLOCK_MONOTONIC_RAW, which is never slewed. `before_ns` and
    `after_ns` are CLOCK_REALTIME around the annotation `number` in the trace; None: it was not annotated.
    """

    number: int
    realtime_ns: int
    monotonic_ns: int
    raw_ns: int
    real_minus_boot_ns: int
    status: str
    reason_code: str
    reason: str
    gm: ReferenceOffset
    utc: ReferenceOffset
    grandmaster_identity: str | None
    utc_seconds_removed: int | None
    before_ns: int | None = None
    after_ns: int | None = None


@dataclass(frozen=True, slots=True)
class AnchorsHeader:
    """The first line of a file: the process whose anchors it holds. Ranks of one boot and one time namespace read one clock."""

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
    Writes the anchors of one trace to `<path>.anchors`, one a line: at the start, at the end, and every two seconds in between (at first
    sooner), if `step` is called once a step. It has no thread.

    It never raises because of a disk or a daemon; `problem` is the first thing that went wrong. In a forked child it does nothing.
    `annotate`, such as torch.profiler.record_function, also puts each anchor into the trace, so that the profiler's own error is measured
    and not assumed. `step` writes at most one line to a file, and does not wait otherwise.
    """

    def __init__(self, job: Job, path: Path | str, annotate: Annotate | None = None) -> None:
        self.path = Path(f"{path}{SUFFIX}")
        self.problem: str | None = None
        self._job = job
        self._annotate = annotate
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._taken = 0
        self._due_ns = 0
        self._interval_ns = FIRST_ANCHOR_INTERVAL_NS
        self._file: int | None = None
        self._head = _line({"format": FORMAT, "version": VERSION} | asdict(_header(job)))
        self._open()
        self.step()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def step(self) -> None:
        """Call it once a step, from any thread. While no anchor is due, it only reads a clock."""
        if time.monotonic_ns() >= self._due_ns:
            self._take()

    def close(self) -> None:
        """Write the last anchor: call it after the profiler has stopped, and before the process ends."""
        self._take()
        if os.getpid() == self._pid and self._lock.acquire(blocking=False):
            self._close_file()
            self._lock.release()

    def _take(self) -> None:
        """A signal handler in the middle of it does not wait for it, nor does another thread."""
        if self._file is None or os.getpid() != self._pid or not self._lock.acquire(blocking=False):
            return
        try:
            self._due_ns = time.monotonic_ns() + self._interval_ns
            self._interval_ns = min(2 * self._interval_ns, ANCHOR_INTERVAL_NS)
            self._write(_line(asdict(self._anchor())))
            self._taken += 1
            if self._taken % MAX_ANCHORS_PER_FILE == 0:
                self._start_new_file()
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

    def _start_new_file(self) -> None:
        self._close_file()
        os.replace(self.path, f"{self.path}{OLD_SUFFIX}")
        self._open()

    def _write(self, line: bytes) -> None:
        """An incomplete line is the last one: nothing follows half a line."""
        assert self._file is not None
        if os.write(self._file, line) != len(line):
            raise OSError("the disk is full")

    def _give_up(self, error: OSError) -> None:
        self._set_problem(error, "no further anchor is written")
        self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            os.close(file)
        except OSError as error:  # the descriptor is closed in any case
            self._set_problem(error, "anchors may be missing at the end of the file")

    def _set_problem(self, error: OSError, consequence: str) -> None:
        """Keeps the first problem."""
        self.problem = self.problem or f"{self.path}: {error.strerror or error}; {consequence}"


def record_anchors(job: Job, folder: Path | str, annotate: Annotate | None = None) -> Anchors:
    """The anchors for all traces that this process writes to a folder, in `rank-<rank>-<pid>.anchors` there."""
    return Anchors(job, Path(folder) / f"rank-{job.rank}-{os.getpid()}", annotate)


def take_anchor(job: Job, number: int, before_ns: int | None = None, after_ns: int | None = None) -> Anchor:
    """An anchor of this moment."""
    clock = job.clock
    real_ns, mono_ns, boot_ns, raw_ns = max((_read_clocks() for _ in range(3)), key=_speed)
    known = clock.snapshot()
    gm, status, reason = _offset(
        known, Reference.GRANDMASTER, (real_ns, boot_ns), Reason.OK if known else clock.reason_code()
    )
    utc, _, _ = _offset(known, Reference.UTC, (real_ns, boot_ns), Reason.OK)
    return Anchor(
        number=number,
        realtime_ns=real_ns,
        monotonic_ns=mono_ns,
        raw_ns=raw_ns,
        real_minus_boot_ns=real_ns - boot_ns,
        status=status.name,
        reason_code=reason.code,
        reason=reason.text,
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


def _speed(read: tuple[int, int, int, int]) -> int:
    real_ns, _, boot_ns, raw_ns = read
    return 2 * real_ns - boot_ns - raw_ns


def _offset(
    known: ErrorBound | None, reference: Reference, reading: tuple[int, int], absence: Reason
) -> tuple[ReferenceOffset, ClockStatus, Reason]:
    """`absence`: why there is no bound at all."""
    if known is None:
        return ReferenceOffset(0, None, 0, 0), ClockStatus.UNKNOWN, absence
    interval, reason = interval_now(known, reference, lambda: reading, RawReading.read)
    growth_ppb = reference_bound(known, reference).bound.growth_ppb
    past_growth_ppb = max(growth_ppb, known.past_growth_ppb)
    if interval.earliest is None or interval.latest is None:
        return ReferenceOffset(0, None, growth_ppb, past_growth_ppb), interval.status, reason
    offset_ns = reading[0] - (interval.earliest + interval.latest) // 2
    bound_ns = (interval.latest - interval.earliest + 1) // 2
    return ReferenceOffset(offset_ns, bound_ns, growth_ppb, past_growth_ppb), interval.status, reason


def _header(job: Job) -> AnchorsHeader:
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
