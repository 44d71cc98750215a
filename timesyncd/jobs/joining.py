"""
Joins the marks of a job's ranks by (uid, job, attempt, step, sync), and compares the hashes of the ranks' replicas.
Pure: time is an argument.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

from timesyncd.clocks import NS_PER_S
from timesyncd.ipc.job_datagram import Kind, Mark, Trait, job_id, kinds_with
from timesyncd.jobs.arrivals import StepMark, Sync, compare, widest_skew_sync
from timesyncd.jobs.exposed import own_part, own_wait
from timesyncd.jobs.losses import JobLosses
from timesyncd.jobs.missing_ranks import SIGNS, Presence
from timesyncd.jobs.ranks import (
    BatchNumbers,
    Flows,
    OpenMessage,
    OpenSync,
    Rank,
    ReceivedMark,
    head_of,
    is_plausible,
    joined_realtime_ns,
    one_way,
    process_of,
    share_grandmaster,
)
from timesyncd.jobs.window import JobWindow
from timesyncd.messages.jobs import MarkBatch

#: Hashes of replicas are kept of so many steps, the newest, and of so many ranks each.
MAX_REPLICA_STEPS, MAX_REPLICA_RANKS = 4, 4096


@dataclass(frozen=True, slots=True)
class DivergedReplicas:
    """The ranks whose replica in the step with this key differed from that of most ranks."""

    step: int
    ranks: tuple[int, ...]


@dataclass(slots=True)
class Replicas:
    """The hashes of the ranks' replicas, by step and rank, of the newest steps."""

    _hashes: dict[int, dict[int, int]] = field(default_factory=dict)

    def put(self, rank: int, step: int, replica: int) -> None:
        """The first hash of a rank and step counts; a step older than all known ones is ignored."""
        hashes = self._hashes.setdefault(step, {})
        if len(hashes) < MAX_REPLICA_RANKS:
            hashes.setdefault(rank, replica)
        if len(self._hashes) > MAX_REPLICA_STEPS:
            del self._hashes[min(self._hashes)]

    def diverged(self) -> DivergedReplicas | None:
        """By the newest step with hashes of two ranks; None: the replicas are equal, or nothing is known."""
        step = max((step for step, hashes in self._hashes.items() if len(hashes) > 1), default=None)
        if step is None:
            return None
        hashes = self._hashes[step]
        counts, first = Counter(hashes.values()), hashes[min(hashes)]
        usual = min(counts, key=lambda replica: (-counts[replica], replica != first))
        others = tuple(sorted(rank for rank, replica in hashes.items() if replica != usual))
        return DivergedReplicas(step, others) if others else None


STEP_CLOSED_AFTER_NS = 10 * NS_PER_S
JOB_ENDS_AFTER_NS = 60 * NS_PER_S

#: The largest memory of a job and of a rank at a hub, without the marks: what is joined, analyzed and published.
JOB_BYTES = 16_384
RANK_BYTES = 4_096

#: Limits of memory: any local user can name jobs. What exceeds them is refused and counted; nothing known is dropped
#: for it. There is room for 1,000 jobs of 64 ranks, and a user may have a quarter of it.
MAX_BYTES = 272 * 1_048_576
MAX_BYTES_OF_A_USER = MAX_BYTES // 4
MAX_OPEN_SYNCS = 1_000
MAX_OPEN_MESSAGES = 10_000

#: Marks of all jobs together. Users share it equally, and so do a user's jobs; a job with more has a shorter window.
#: A joined mark takes 220 to 540 bytes, one that waits for other ranks 430 to 900: the more marks a batch has, the less.
#: While all jobs hold MAX_HELD, a job takes in no more than its share.
MAX_MARKS = 300_000
MAX_HELD = 3 * MAX_MARKS // 2

#: Of these, so many may wait for other ranks' marks. New synchronizations may use half of it, so that late ranks still
#: find room.
MAX_OPEN_MARKS = 100_000

#: Marks of all jobs that one round joins, and that it drops: some microseconds each in the daemon's event loop. The
#: next round does the rest.
MAX_ROUND_MARKS = 15_000

JobKey = tuple[int, str, int]
SyncKey = tuple[int, int]

COLLECTIVES = kinds_with(Trait.COLLECTIVE)
REQUESTS = kinds_with(Trait.REQUEST)
MESSAGES = kinds_with(Trait.MESSAGE)
IN_STEP = kinds_with(Trait.IN_STEP)
VALUES = kinds_with(Trait.VALUE)
OF_STEP = kinds_with(Trait.OF_STEP)


@dataclass
class JobRun:
    """
    One run of one attempt of a job: its ranks, its open synchronizations, and the window of closed steps in order.
    `run` counts the restarts of the same (uid, job, attempt). `repeated` counts marks that a rank sent again with other
    times, `refused` marks without room, and `batches` the accepted batches. `closable` is how many marks it may join
    before the next round.
    """

    uid: int
    name: str
    attempt: int
    world_size: int
    received_boottime_ns: int
    window_steps: int
    run: int = 0
    ranks: dict[int, Rank] = field(default_factory=dict)
    presence: dict[int, Presence] = field(default_factory=dict)
    pending: dict[SyncKey, OpenSync] = field(default_factory=dict)
    messages: dict[SyncKey, OpenMessage] = field(default_factory=dict)
    steps: JobWindow = field(default_factory=JobWindow)
    newest_step: int = 0
    complete: int = 0
    incomplete: int = 0
    repeated: int = 0
    refused: int = 0
    open_marks: int = 0
    most_marks: int = MAX_MARKS
    most_open: int = 2 * MAX_OPEN_MARKS
    closable: int = MAX_ROUND_MARKS
    batches: int = 0
    flows: Flows = field(init=False)
    replicas: Replicas = field(default_factory=Replicas)
    losses: JobLosses = field(default_factory=JobLosses)

    def __post_init__(self) -> None:
        self.flows = Flows(self.window_steps)

    @cached_property
    def id(self) -> str:
        return job_id(self.uid, self.name, self.attempt)

    @property
    def window(self) -> list[Sync]:
        """The closed synchronizations, in the order of (step, sync)."""
        return self.steps.syncs

    @property
    def changes(self) -> tuple[int, ...]:
        """A different tuple whenever there is something new to analyse."""
        return self.batches, self.steps.changes, self.flows.changes, len(self.pending)

    @property
    def size(self) -> int:
        """How many marks and delays it holds."""
        return self.steps.size + self.open_marks + len(self.messages) + self.flows.size

    @property
    def bytes(self) -> int:
        """The largest memory that it takes without its marks."""
        return JOB_BYTES + RANK_BYTES * len(self.ranks)

    @property
    def nodes(self) -> dict[int, str]:
        return {number: rank.newest.node for number, rank in self.ranks.items()}

    @property
    def has_all_ranks(self) -> bool:
        return self._is_complete(self.ranks)

    def on_one_clock(self) -> bool:
        """Whether all ranks are known and read the same clock."""
        return self.has_all_ranks and len({rank.clock for rank in self.ranks.values()}) == 1

    def accept(self, batch: MarkBatch, now_boottime_ns: int, is_tight: bool = False) -> None:
        """`is_tight`: all jobs together hold as many marks as they may, so this one gets no more than its share."""
        self.received_boottime_ns = max(self.received_boottime_ns, now_boottime_ns)
        self.batches += 1
        newest_end_ns = max((mark.end_ns for mark in batch.marks), default=0)
        head = head_of(batch, self.name)
        rank = self.ranks.setdefault(batch.rank, Rank(head))
        is_newest = rank.accept(head, newest_end_ns)
        self._update_presence(batch)
        numbered, new = 0, 0
        is_beyond_share = self.size + len(batch.marks) > self.most_marks
        is_full = self.size >= 2 * self.most_marks or self.open_marks >= self.most_open
        if is_full or (is_tight and is_beyond_share):
            self.refused += len(batch.marks)
            return
        numbers = BatchNumbers.of(batch)
        for mark in batch.marks:
            is_new = self._accept_mark(ReceivedMark(mark, numbers, newest_end_ns), now_boottime_ns)
            numbered += is_new is not None
            new += bool(is_new)
        if is_newest and numbered:
            rank.behind = not new

    def _update_presence(self, batch: MarkBatch) -> None:
        """By the batch's signs, after the newest of its other marks."""
        signs = [mark for mark in batch.marks if mark.kind in SIGNS]
        others = [mark for mark in batch.marks if mark.kind not in SIGNS | VALUES | OF_STEP]
        presence = self.presence.get(batch.rank, Presence())
        if others:
            presence = presence.updated(max(others, key=lambda mark: mark.end_ns))
        for mark in signs:
            presence = presence.updated(mark)
        self.presence[batch.rank] = presence

    def set_share(self, part: float) -> None:
        """Set this job's part of the marks that all jobs may hold and that a round closes."""
        self.most_marks = int(MAX_MARKS * part)
        self.most_open = max(20 * self.world_size, int(MAX_OPEN_MARKS * part))
        self.closable = max(1, int(MAX_ROUND_MARKS * part))

    def is_superseded_by(self, batch: MarkBatch) -> bool:
        """
        Whether this batch begins another run: it is of another process, or of another world size and joined after all
        ranks.
        """
        rank = self.ranks.get(batch.rank)
        if rank is not None and rank.process != process_of(batch):
            return not rank.is_newer_than(batch)
        joined_ns = joined_realtime_ns(batch)
        return batch.world_size != self.world_size and all(
            joined_ns > joined_realtime_ns(each.newest) for each in self.ranks.values()
        )

    def is_of_this_run(self, batch: MarkBatch) -> bool:
        rank = self.ranks.get(batch.rank)
        return batch.world_size == self.world_size and (rank is None or rank.process == process_of(batch))

    def has_restarted(self) -> bool:
        """
        Whether the newest batch of every rank is of steps that are over: the same processes number their steps from the
        start again.
        """
        return self.has_all_ranks and all(rank.behind for rank in self.ranks.values())

    def _accept_mark(self, received: ReceivedMark, now_ns: int) -> bool | None:
        """Whether the mark is new, for kinds of which a rank has one mark by step and number; None for the others."""
        mark, rank = received.mark, received.head.rank
        if mark.kind in IN_STEP and self.steps.is_full(mark.step):
            self.refused += 1
            return None
        if mark.kind in COLLECTIVES:
            return self._add_collective(received, now_ns)
        if mark.kind == Kind.STEP:
            return self._add_step(mark, rank)
        if mark.kind in REQUESTS:
            self._add_request(mark, rank)
        elif mark.kind == Kind.OWN_TIME:
            self._add_own(mark, rank)
        elif mark.kind == Kind.OWN_PART:
            self._add_part(mark, rank)
        elif mark.kind in MESSAGES:
            self._add_message(received, now_ns)
        elif mark.kind == Kind.STALENESS:
            self.flows.put_staleness(rank, mark.bytes)
        elif mark.kind == Kind.REPLICA:
            self.replicas.put(rank, mark.step, mark.bytes)
        elif mark.kind in VALUES:
            self.losses.put(rank, mark)
        return None

    def _add_collective(self, received: ReceivedMark, now_ns: int) -> bool | None:
        mark = received.mark
        key = (mark.step, mark.sync)
        if mark.step <= self.steps.forgotten:
            return False
        closed = self.steps.sync(*key)
        if closed is not None:
            known = closed.arrivals.get(received.head.rank)
            if known is not None and (known.arrival_ns, known.end_ns) != (mark.arrival_ns, mark.end_ns):
                self.repeated += 1
            return known is None
        self.newest_step = max(self.newest_step, mark.step)
        sync = self.pending.get(key)
        if sync is None:
            if not self._has_room():
                self.refused += 1
                return None
            sync = self.pending[key] = OpenSync(now_ns)
        before = len(sync.marks)
        self.repeated += not sync.add(received)
        self.open_marks += len(sync.marks) - before
        return True

    def _has_room(self) -> bool:
        """Whether another synchronization may be opened; the oldest one is closed for it where that is little work."""
        if self.open_marks >= self.most_open // 2:
            return False
        if len(self.pending) < MAX_OPEN_SYNCS:
            return True
        oldest = next(iter(self.pending))
        count = len(self.pending[oldest].marks)
        if count > self.closable:
            return False
        self.closable -= count
        self._close(oldest)
        return True

    def _add_step(self, mark: Mark, rank: int) -> bool:
        if mark.step <= self.steps.forgotten:
            return False
        known = self.steps.step_mark(rank, mark.step)
        if known is not None and (known.arrival_ns, known.end_ns) != (mark.arrival_ns, mark.end_ns):
            self.repeated += 1
            return False
        self.newest_step = max(self.newest_step, mark.step)
        ready_ns = mark.begin_ns if mark.begin_ns != mark.arrival_ns else None
        self.steps.put_mark(rank, StepMark(mark.step, mark.arrival_ns, ready_ns, mark.end_ns))
        return True

    def _add_request(self, mark: Mark, rank: int) -> None:
        if mark.step > self.steps.forgotten and mark.end_ns >= mark.begin_ns:
            if self.steps.put_request(rank, mark.step, (mark.begin_ns, mark.end_ns)):
                self.flows.responses.append(mark.end_ns - mark.begin_ns)
            else:
                self.refused += 1

    def _add_own(self, mark: Mark, rank: int) -> None:
        if mark.step > self.steps.forgotten and (own := own_wait(mark)) is not None:
            self.steps.put_own(rank, mark.step, own)

    def _add_part(self, mark: Mark, rank: int) -> None:
        if mark.step > self.steps.forgotten and (part := own_part(mark)) is not None:
            self.steps.put_part(rank, mark.step, *part)

    def _add_message(self, received: ReceivedMark, now_ns: int) -> None:
        key = (received.mark.step, received.mark.sync)
        if key not in self.messages and len(self.messages) >= MAX_OPEN_MESSAGES:
            self.refused += 1
            return
        message = self.messages.setdefault(key, OpenMessage(now_ns))
        side = "send" if received.mark.kind == Kind.SEND else "receive"
        if getattr(message, side) is not None:
            self.repeated += getattr(message, side).mark != received.mark
            return
        setattr(message, side, received)
        send, receive = message.send, message.receive
        if send is not None and receive is not None:
            del self.messages[key]
            self._measure(send, receive)

    def _measure(self, send: ReceivedMark, receive: ReceivedMark) -> None:
        by_grandmaster = share_grandmaster([send, receive])
        ends = [self.ranks[each.head.rank].arrival(each, by_grandmaster) for each in (send, receive)]
        delay = one_way(*ends)
        if delay is not None and not self.flows.put_delay((send.head.rank, receive.head.rank), delay):
            self.refused += 1

    def advance(self, now_boottime_ns: int, most_closed: int) -> int:
        """
        Close the synchronizations that are complete or overdue, and drop the oldest steps of the window, up to so many
        marks each. Returns the larger of the two numbers; the next call does the rest.
        """
        closed = self._close_due(now_boottime_ns, most_closed)
        closed += self._drop_messages(now_boottime_ns, most_closed - closed)
        room = self.most_marks - self.open_marks - len(self.messages)
        self.flows.trim(room // 2)
        still_open = {step for step, _ in self.pending}
        return max(closed, self.steps.trim(self.window_steps, room - self.flows.size, still_open, most_closed))

    def _close_due(self, now_ns: int, most_closed: int) -> int:
        closed = 0
        for key, sync in list(self.pending.items()):
            overdue = now_ns - sync.since_boottime_ns >= STEP_CLOSED_AFTER_NS
            if closed < most_closed and (overdue or self._is_complete(sync.marks)):
                closed += len(sync.marks)
                self._close(key)
        while self.open_marks > self.most_marks and closed < most_closed:
            oldest = next(iter(self.pending))
            closed += len(self.pending[oldest].marks)
            self._close(oldest)
        return closed

    def _drop_messages(self, now_ns: int, most_dropped: int) -> int:
        """Drop the messages that are overdue or do not fit, the oldest first. Returns their number."""
        dropped: list[SyncKey] = []
        for key, message in islice(self.messages.items(), max(0, most_dropped)):
            overdue = now_ns - message.since_boottime_ns >= STEP_CLOSED_AFTER_NS
            if not overdue and self.open_marks + len(self.messages) - len(dropped) <= self.most_marks:
                break
            dropped.append(key)
        for key in dropped:
            del self.messages[key]
        return len(dropped)

    def _close(self, key: SyncKey) -> None:
        """
        Join the marks. A rank that marked it twice with different times is left out, and the synchronization is not
        compared.
        """
        sync = self.pending.pop(key)
        self.open_marks -= len(sync.marks)
        marks = {rank: mark for rank, mark in sorted(sync.marks.items()) if rank not in sync.repeated}
        complete = self._is_complete(marks)
        self.complete += complete
        self.incomplete += not complete
        if self.steps.is_full(key[0]):
            self.refused += len(marks)
        elif marks and key[0] > self.steps.forgotten:
            by_grandmaster = share_grandmaster(list(marks.values()))
            arrivals = {rank: self.ranks[rank].arrival(mark, by_grandmaster) for rank, mark in marks.items()}
            kind = marks[min(marks)].mark.kind
            self.steps.put_sync(Sync(*key, kind, arrivals, compare(arrivals) if complete else None))

    def _is_complete(self, by_rank: Sized) -> bool:
        return len(by_rank) >= self.world_size


class Jobs:
    """All jobs that send marks. `refused` counts the refused batches. `bytes` is their memory without the marks."""

    def __init__(self, window_steps: int) -> None:
        self.refused = 0
        self._bytes_by_user: Counter[int] = Counter()
        self._jobs_by_user: Counter[int] = Counter()
        self._held = 0
        self._next = 0
        self._window_steps = window_steps
        self._jobs: dict[JobKey, JobRun] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[JobRun]:
        return iter(self._jobs.values())

    @property
    def bytes(self) -> int:
        return self._bytes_by_user.total()

    def find(self, job_id: str) -> JobRun | None:
        """None: no such job runs."""
        return next((job for job in self if job.id == job_id), None)

    def accept(self, batch: MarkBatch, now_boottime_ns: int) -> None:
        """Accept a batch. Neither order nor repetition changes the result as long as its steps are open."""
        key = (batch.uid, batch.job, batch.attempt)
        job = self._jobs.get(key)
        if not is_plausible(batch) or self._is_full(batch, job):
            self.refused += 1
            return
        before, size = (0, 0) if job is None else (job.bytes, job.size)
        if job is not None and job.is_superseded_by(batch):
            job = self._new(key, batch, now_boottime_ns, job.run + 1)
        if job is not None and not job.is_of_this_run(batch):
            self.refused += 1
            return
        job = self._jobs[key] = job or self._new(key, batch, now_boottime_ns, 0)
        is_tight = self._held >= MAX_HELD
        job.accept(batch, now_boottime_ns, is_tight)
        if job.ranks[batch.rank].behind and job.has_restarted():
            job = self._jobs[key] = self._new(key, batch, now_boottime_ns, job.run + 1)
            job.accept(batch, now_boottime_ns, is_tight)
        self._bytes_by_user[batch.uid] += job.bytes - before
        self._held += job.size - size

    def advance(self, now_boottime_ns: int) -> list[JobRun]:
        """Close what is due, up to a round's limit. Returns the jobs that ended, which are removed."""
        by_user = self._jobs_by_user = Counter(job.uid for job in self)
        for job in self:
            job.set_share(1 / len(by_user) / by_user[job.uid])
        jobs = list(self)
        self._next %= max(1, len(jobs))
        left, behind = MAX_ROUND_MARKS, []
        for job in jobs[self._next :] + jobs[: self._next]:
            if left <= 0:
                break
            share = min(left, job.closable)
            closed = job.advance(now_boottime_ns, share)
            left -= closed
            self._next += 1
            if closed >= share:
                behind.append(job)
        for job in behind:
            if left > 0:
                left -= job.advance(now_boottime_ns, left)
        ended = [job for job in self if now_boottime_ns - job.received_boottime_ns >= JOB_ENDS_AFTER_NS]
        for job in ended:
            self._remove(job)
        self._held = sum(job.size for job in self)
        return ended

    def release(self, owns: Callable[[str], bool]) -> list[str]:
        """Remove the jobs that this hub no longer owns: they did not end. Returns their ids."""
        released = [job for job in self if not owns(job.id)]
        for job in released:
            self._remove(job)
        return [job.id for job in released]

    def _remove(self, job: JobRun) -> None:
        del self._jobs[job.uid, job.name, job.attempt]
        self._bytes_by_user[job.uid] -= job.bytes
        if not self._bytes_by_user[job.uid]:
            del self._bytes_by_user[job.uid]

    def _new(self, key: JobKey, batch: MarkBatch, now_ns: int, run: int) -> JobRun:
        """With the share that it gets in the next round, as far as the jobs are known until then."""
        job = JobRun(*key, batch.world_size, now_ns, self._window_steps, run=run)
        if key not in self._jobs:
            self._jobs_by_user[batch.uid] += 1
        job.set_share(1 / len(self._jobs_by_user) / self._jobs_by_user[batch.uid])
        return job

    def _is_full(self, batch: MarkBatch, job: JobRun | None) -> bool:
        """Whether the batch would add a job or a rank that exceeds a limit."""
        if job is not None and batch.rank in job.ranks:
            return False
        added = RANK_BYTES + (JOB_BYTES if job is None else 0)
        of_this_user = self._bytes_by_user[batch.uid] + added
        return of_this_user > MAX_BYTES_OF_A_USER or self.bytes + added > MAX_BYTES


def newest_of(syncs: list[Sync], world_size: int) -> Sync | None:
    """The synchronization with the widest skew of the newest step that has one with all ranks."""
    complete = [sync for sync in syncs if len(sync.arrivals) >= world_size]
    return widest_skew_sync(sync for sync in complete if sync.step == complete[-1].step) if complete else None
