"""The newest steps of a job: what was joined of each, what each cost, and the sums of the epoch. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace

from timesyncd.ipc.job_datagram import OwnPart, split_step
from timesyncd.jobs.arrivals import StepMark, Sync
from timesyncd.jobs.exposed import Interval, OwnWait, StepCost, ratio, step_cost

NOTHING_FORGOTTEN = -1

#: A step with so many marks is full: it accepts no more and has no cost. The largest job has room for ten
#: synchronizations and a step of each rank.
MAX_STEP_MARKS = 30_000

#: The most pushes and pulls of one rank in one step; more are refused.
MAX_REQUESTS = 256


@dataclass
class StepRecord:
    """
    One step. `marks`, `requests` (pushes and pulls), `own` and `parts` (of which no own time is there yet) are by rank.
    `size` counts all its marks; `cost` None: not computed since a change.
    """

    syncs: dict[int, Sync] = field(default_factory=dict)
    marks: dict[int, StepMark] = field(default_factory=dict)
    requests: dict[int, list[Interval]] = field(default_factory=dict)
    own: dict[int, OwnWait] = field(default_factory=dict)
    parts: dict[int, dict[OwnPart, int]] = field(default_factory=dict)
    size: int = 1
    cost: StepCost | None = None

    @property
    def is_full(self) -> bool:
        return self.size >= MAX_STEP_MARKS

    def in_order(self) -> list[Sync]:
        return [self.syncs[number] for number in sorted(self.syncs)]


class JobWindow:
    """
    The window of the newest steps. `forgotten` is the newest step that was dropped: it and older steps are over. `size`
    counts the marks in the window, `changes` all that were ever added.
    """

    def __init__(self) -> None:
        self.forgotten = NOTHING_FORGOTTEN
        self.size = 0
        self.changes = 0
        self._records: dict[int, StepRecord] = {}
        self._order: list[int] = []
        self._epoch = 0
        self._epoch_exposed_ns = self._epoch_elapsed_ns = 0

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[StepRecord]:
        return (self._records[step] for step in self._order)

    def records_from(self, first: int) -> Iterator[tuple[int, StepRecord]]:
        """The steps from this key on, in order."""
        return ((step, self._records[step]) for step in self._order[bisect_left(self._order, first) :])

    def newest(self, most_marks: int, weigh: Callable[[StepRecord], int]) -> list[StepRecord]:
        """The newest steps, in order, whose weights add up to at most so many marks; the newest step in any case."""
        found: list[StepRecord] = []
        weight = 0
        for step in reversed(self._order):
            weight += max(1, weigh(self._records[step]))
            if found and weight > most_marks:
                break
            found.append(self._records[step])
        return found[::-1]

    def is_full(self, step: int) -> bool:
        record = self._records.get(step)
        return record is not None and record.is_full

    @property
    def syncs(self) -> list[Sync]:
        """In the order of (step, sync)."""
        return [sync for record in self for sync in record.in_order()]

    def sync(self, step: int, number: int) -> Sync | None:
        record = self._records.get(step)
        return None if record is None else record.syncs.get(number)

    def put_sync(self, sync: Sync) -> None:
        self._changed_record(sync.step, 1 + len(sync.arrivals)).syncs[sync.sync] = sync

    def put_mark(self, rank: int, mark: StepMark) -> bool:
        """False: the rank has another mark of this step."""
        known = self.step_mark(rank, mark.step)
        if known is None:
            self._changed_record(mark.step, 1).marks[rank] = mark
        return known is None or known == mark

    def step_mark(self, rank: int, step: int) -> StepMark | None:
        record = self._records.get(step)
        return None if record is None else record.marks.get(rank)

    def put_own(self, rank: int, step: int, own: OwnWait) -> None:
        """The first one of a rank and a step counts."""
        record = self._records.get(step)
        if record is None or rank not in record.own:
            changed = self._changed_record(step, 1)
            changed.own[rank] = replace(own, parts_ns=changed.parts.pop(rank, None))

    def put_part(self, rank: int, step: int, part: OwnPart, own_ns: int) -> None:
        """How long the rank's own time in a part of the step is. The first one of a rank, a step and a part counts."""
        record = self._records.get(step)
        own = None if record is None else record.own.get(rank)
        known = (record.parts.get(rank) if record is not None else None) if own is None else own.parts_ns
        if known is not None and part in known:
            return
        changed = self._changed_record(step, 1)
        parts = {**(known or {}), part: own_ns}
        if own is None:
            changed.parts[rank] = parts
        else:
            changed.own[rank] = replace(own, parts_ns=parts)

    def put_request(self, rank: int, step: int, request: Interval) -> bool:
        """False: the request is refused, there are too many."""
        record = self._records.get(step)
        known = record.requests.get(rank, []) if record is not None else []
        if request in known:
            return True
        if len(known) >= MAX_REQUESTS:
            return False
        self._changed_record(step, 1).requests.setdefault(rank, []).append(request)
        return True

    def trim(self, most_steps: int, most_marks: int, still_open: Collection[int], most_dropped: int) -> int:
        """
        Drop the oldest steps until so many steps and marks are left, or until more than `most_dropped` marks are
        dropped; the newest step stays. Steps `still_open` do not count: a slow node's marks may be seconds behind the
        step marks of the others. Returns the number of dropped marks.
        """
        count, size, before = 0, self.size, self.size
        steps = len(self._order) - sum(step in self._records for step in still_open)
        while count + 1 < len(self._order) and (steps > most_steps or size > most_marks):
            if before - size >= most_dropped:
                break
            step = self._order[count]
            size -= self._records[step].size
            steps -= step not in still_open
            count += 1
        if count:
            self._forget(count)
        return before - size

    def costs(self, still_open: Container[int], most_marks: int) -> list[StepCost]:
        """
        The costs of the newest steps without those `still_open`, also of steps without a measured rank. It reads at
        most so many marks; a step whose cost is known counts one for each rank.
        """
        last = self._records[self._order[-1]] if self._order else None
        if last is not None and not last.marks:
            # Its duration is still unknown: the step marks or the next step give it.
            last.cost = StepCost(self._order[-1], {}, 0, 0)
        newest = self.newest(most_marks, lambda record: record.size if record.cost is None else len(record.cost.ranks))
        first = len(self._order) - len(newest)
        return [self._cost(at) for at in range(first, len(self._order)) if self._order[at] not in still_open]

    def epoch_overhead(self, costs: Sequence[StepCost]) -> float | None:
        """The overhead of the newest epoch among these, including its steps that were dropped."""
        if not costs:
            return None
        epoch = split_step(costs[-1].step)[0]
        of_epoch = [cost for cost in costs if split_step(cost.step)[0] == epoch]
        exposed_ns = sum(cost.exposed_ns for cost in of_epoch)
        elapsed_ns = sum(cost.elapsed_ns for cost in of_epoch)
        if epoch == self._epoch:
            exposed_ns, elapsed_ns = exposed_ns + self._epoch_exposed_ns, elapsed_ns + self._epoch_elapsed_ns
        return ratio(exposed_ns, elapsed_ns)

    def _forget(self, count: int) -> None:
        for at in range(count):
            self._add_to_epoch(self._cost(at))
        for step in self._order[:count]:
            self.size -= self._records.pop(step).size
        self.forgotten = max(self.forgotten, self._order[count - 1])
        del self._order[:count]

    def _add_to_epoch(self, cost: StepCost) -> None:
        epoch = split_step(cost.step)[0]
        if epoch != self._epoch:
            self._epoch, self._epoch_exposed_ns, self._epoch_elapsed_ns = epoch, 0, 0
        self._epoch_exposed_ns += cost.exposed_ns
        self._epoch_elapsed_ns += cost.elapsed_ns

    def _changed_record(self, step: int, by: int) -> StepRecord:
        """The record of a step that changes; its cost and that of the step before are to be computed again."""
        record = self._records.get(step)
        if record is None:
            record = self._records[step] = StepRecord()
            insort(self._order, step)
            self.size += record.size
        before = bisect_left(self._order, step) - 1
        if before >= 0:
            self._records[self._order[before]].cost = None
        record.cost = None
        record.size += by
        self.size += by
        self.changes += 1
        return record

    def _cost(self, at: int) -> StepCost:
        step = self._order[at]
        record = self._records[step]
        if record.is_full:
            return StepCost(step, {}, 0, 0)
        if record.cost is None:
            following: Sequence[Sync] = (
                self._records[self._order[at + 1]].in_order() if at + 1 < len(self._order) else ()
            )
            record.cost = step_cost(step, record.in_order(), following, record.marks, record.requests, record.own)
        return record.cost
