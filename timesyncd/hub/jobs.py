"""Joins the marks of a job's ranks by (uid, job, attempt, step, sync). Pure: time is an argument."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, field

from timesyncd.bound import Bound
from timesyncd.clocks import NS_PER_S, STEP_TOLERANCE_NS
from timesyncd.job_messages import Mark, MarkBatch
from timesyncd.joblink import job_id
from timesyncd.overhead import Arrival, Sync, compare, spokesman

STEP_CLOSED_AFTER_NS = 10 * NS_PER_S
JOB_ENDS_AFTER_NS = 60 * NS_PER_S

#: Memory: any local user can name jobs. What does not fit is refused and counted, never swapped for what is known.
MAX_JOBS = 256
MAX_JOBS_OF_A_USER = 64
MAX_OPEN_SYNCS = 1_000
MAX_CLOSED_SYNCS = 10_000
MAX_BATCHES_REMEMBERED = 256

#: How fast a clock's bound may have grown since a mark, while only the batch's bound is told: the kernel's limit of a slew.
SLEW_LIMIT_PPB = 500_000

#: What one state of a job can carry; more ranks than that nobody could be told of.
MAX_RANKS = 4_096

#: Of times and sizes, so that no difference of two leaves the 64 bits of a message: the year 2116, and as many bytes.
LARGEST = 2**62

#: Of bounds: eleven days.
LARGEST_BOUND_NS = 10**15

NOTHING_FORGOTTEN = (-1, -1)

JobKey = tuple[int, str, int]
SyncKey = tuple[int, int]
Order = tuple[int, int]


@dataclass
class Rank:
    """
    What is known of one rank. `batches` holds (incarnation, sequence) and real_minus_boot_ns of its newest batches, in
    order, so that a step of its clock is found whatever the order in which they came.
    """

    newest: MarkBatch
    lost: int = 0
    batches: list[tuple[Order, int]] = field(default_factory=list)

    @property
    def clock(self) -> str:
        return f"{self.newest.node}/{self.newest.boot_id}/{self.newest.time_namespace}"

    def accept(self, batch: MarkBatch) -> None:
        self.lost = max(self.lost, batch.lost)
        if _order(batch) >= _order(self.newest):
            self.newest = batch
        entry = (_order(batch), batch.real_minus_boot_ns)
        if entry not in self.batches:
            insort(self.batches, entry)
            del self.batches[:-MAX_BATCHES_REMEMBERED]

    @property
    def process(self) -> tuple[str, int]:
        return _process(self.newest)

    def is_newer_than(self, batch: MarkBatch) -> bool:
        return self.newest.node == batch.node and _order(self.newest) > _order(batch)

    def stepped_before(self, batch: MarkBatch) -> bool:
        """Whether the clock was set between the batch before this one and this one: its marks may be of either side."""
        index = bisect_left(self.batches, (_order(batch), batch.real_minus_boot_ns))
        if not 0 < index < len(self.batches):
            return False
        return abs(self.batches[index][1] - self.batches[index - 1][1]) > STEP_TOLERANCE_NS


@dataclass(frozen=True, slots=True)
class Marked:
    """A mark, the batch that brought it, and that batch's newest end: its bound was read then or later."""

    mark: Mark
    batch: MarkBatch
    newest_end_ns: int

    def error_ns(self, by_grandmaster: bool) -> int | None:
        """The clock's error at the mark: the batch's bound, and what a slew may have taken off it since the mark."""
        if self.batch.status not in ("SYNCHRONIZED", "HOLDOVER"):
            return None
        bound_ns = self.batch.gm_bound_ns if by_grandmaster else self.batch.utc_bound_ns
        return Bound(bound_ns, SLEW_LIMIT_PPB).at(max(0, self.newest_end_ns - self.mark.arrival_ns))


@dataclass
class OpenSync:
    """A synchronization of which marks are still awaited, by rank."""

    since_boottime_ns: int
    marks: dict[int, Marked] = field(default_factory=dict)


@dataclass
class Job:
    """
    One run of one attempt of a job: its ranks, what is open, and the window of closed synchronizations in order. `run`
    counts the times that the same (uid, job, attempt) began anew with other processes.
    """

    uid: int
    name: str
    attempt: int
    world_size: int
    heard_boottime_ns: int
    run: int = 0
    ranks: dict[int, Rank] = field(default_factory=dict)
    pending: dict[SyncKey, OpenSync] = field(default_factory=dict)
    window: list[Sync] = field(default_factory=list)
    forgotten: SyncKey = NOTHING_FORGOTTEN
    newest_step: int = 0
    complete: int = 0
    incomplete: int = 0

    @property
    def id(self) -> str:
        return job_id(self.uid, self.name, self.attempt)

    def newest_complete(self) -> Sync | None:
        """What speaks for the newest step of which a synchronization has all ranks."""
        complete = [sync for sync in self.window if self._is_complete(sync.arrivals)]
        return spokesman(sync for sync in complete if sync.step == complete[-1].step) if complete else None

    def on_one_clock(self) -> bool:
        """Whether all ranks are known, and read the same clock."""
        return self._is_complete(self.ranks) and len({rank.clock for rank in self.ranks.values()}) == 1

    def accept(self, batch: MarkBatch, now_boottime_ns: int) -> None:
        self.heard_boottime_ns = max(self.heard_boottime_ns, now_boottime_ns)
        self.world_size = max(self.world_size, batch.world_size)
        self.ranks.setdefault(batch.rank, Rank(batch)).accept(batch)
        newest_end_ns = max((mark.end_ns for mark in batch.marks), default=0)
        for mark in batch.marks:
            self._add(Marked(mark, batch, newest_end_ns), now_boottime_ns)

    def _add(self, marked: Marked, now_boottime_ns: int) -> None:
        key = (marked.mark.step, marked.mark.sync)
        if self._is_closed(key):
            return
        self.newest_step = max(self.newest_step, marked.mark.step)
        sync = self.pending.setdefault(key, OpenSync(now_boottime_ns))
        sync.marks[marked.batch.rank] = marked
        if len(self.pending) > MAX_OPEN_SYNCS:
            self._close(next(iter(self.pending)))

    def _is_closed(self, key: SyncKey) -> bool:
        index = bisect_left(self.window, key, key=_sync_key)
        return key <= self.forgotten or (index < len(self.window) and _sync_key(self.window[index]) == key)

    def advance(self, now_boottime_ns: int, window_steps: int) -> None:
        """Close what is complete or overdue, and let the window hold its newest steps."""
        for key, sync in list(self.pending.items()):
            overdue = now_boottime_ns - sync.since_boottime_ns >= STEP_CLOSED_AFTER_NS
            if overdue or self._is_complete(sync.marks):
                self._close(key)
        steps = sorted({sync.step for sync in self.window})
        first = bisect_left(self.window, steps[-window_steps:][0], key=lambda sync: sync.step) if steps else 0
        first = max(first, len(self.window) - MAX_CLOSED_SYNCS)
        if first > 0:
            self.forgotten = max(self.forgotten, _sync_key(self.window[first - 1]))
            del self.window[:first]

    def _close(self, key: SyncKey) -> None:
        marks = self.pending.pop(key).marks
        complete = self._is_complete(marks)
        self.complete += complete
        self.incomplete += not complete
        by_grandmaster = _share_grandmaster([marked.batch for marked in marks.values()])
        arrivals = {rank: self._arrival(marked, by_grandmaster) for rank, marked in sorted(marks.items())}
        kind = marks[min(marks)].mark.kind
        insort(self.window, Sync(*key, kind, arrivals, compare(arrivals) if complete else None), key=_sync_key)

    def _is_complete(self, by_rank: Sized) -> bool:
        return len(by_rank) >= self.world_size

    def _arrival(self, marked: Marked, by_grandmaster: bool) -> Arrival:
        batch = marked.batch
        rank = self.ranks[batch.rank]
        return Arrival(
            clock=None if rank.stepped_before(batch) else rank.clock,
            real_minus_boot_ns=batch.real_minus_boot_ns,
            arrival_ns=marked.mark.arrival_ns,
            end_ns=marked.mark.end_ns,
            error_ns=marked.error_ns(by_grandmaster),
        )


class Jobs:
    """All jobs that send marks. `refused` counts the batches that were not taken."""

    def __init__(self, window_steps: int) -> None:
        self.refused = 0
        self._window_steps = window_steps
        self._jobs: dict[JobKey, Job] = {}

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def accept(self, batch: MarkBatch, now_boottime_ns: int) -> None:
        """Taken in any order and any number of times to the same end, as long as its steps are open."""
        key = (batch.uid, batch.job, batch.attempt)
        job = self._jobs.get(key)
        if not _is_plausible(batch) or (job is None and self._is_full(batch.uid)):
            self.refused += 1
            return
        if job is not None and (rank := job.ranks.get(batch.rank)) and rank.process != _process(batch):
            if rank.is_newer_than(batch):
                return
            job = Job(*key, batch.world_size, now_boottime_ns, run=job.run + 1)
        job = self._jobs[key] = job or Job(*key, batch.world_size, now_boottime_ns)
        job.accept(batch, now_boottime_ns)

    def advance(self, now_boottime_ns: int) -> list[Job]:
        """Close what is due; returns the jobs that ended, which are forgotten."""
        for job in self:
            job.advance(now_boottime_ns, self._window_steps)
        ended = [job for job in self if now_boottime_ns - job.heard_boottime_ns >= JOB_ENDS_AFTER_NS]
        for job in ended:
            del self._jobs[job.uid, job.name, job.attempt]
        return ended

    def _is_full(self, uid: int) -> bool:
        of_this_user = sum(job.uid == uid for job in self)
        return len(self._jobs) >= MAX_JOBS or of_this_user >= MAX_JOBS_OF_A_USER


def _is_plausible(batch: MarkBatch) -> bool:
    """Any local user may send a datagram, and any number in it."""
    bounds = (batch.gm_bound_ns or 0, batch.utc_bound_ns or 0)
    return (
        0 <= batch.rank < batch.world_size <= MAX_RANKS
        and all(0 <= number < LARGEST for number in (batch.real_minus_boot_ns, batch.lost))
        and all(0 <= bound_ns <= LARGEST_BOUND_NS for bound_ns in bounds)
        and all(map(_is_plausible_mark, batch.marks))
    )


def _is_plausible_mark(mark: Mark) -> bool:
    """A clock that was set in between may have ended it before it began: that is told as a step."""
    numbers = (mark.step, mark.sync, mark.arrival_ns, mark.begin_ns, mark.end_ns, mark.bytes)
    return all(0 <= number < LARGEST for number in numbers)


def _order(batch: MarkBatch) -> Order:
    return batch.incarnation, batch.sequence


def _process(batch: MarkBatch) -> tuple[str, int]:
    return batch.node, batch.pid


def _sync_key(sync: Sync) -> SyncKey:
    return sync.step, sync.sync


def _share_grandmaster(batches: Sequence[MarkBatch]) -> bool:
    """Whether their gm bounds are against one clock on one scale; if not, only their utc bounds compare."""
    references = {(batch.grandmaster_identity, batch.utc_seconds_removed) for batch in batches}
    return len(references) == 1 and None not in references.pop()
