"""
What the hub keeps of each rank of a job, and what waits to be joined: collectives for all ranks, messages for both
ends. Pure.

It also decides which batches of marks are plausible: any local user can send any numbers.
"""

from __future__ import annotations

import re
import zlib
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from sys import intern
from typing import NamedTuple

from timesyncd.bound import Bound
from timesyncd.clocks import STEP_TOLERANCE_NS
from timesyncd.config import NAME_PATTERN
from timesyncd.ipc.job_datagram import Mark
from timesyncd.jobs.arrivals import READING_GRANULARITY_NS, Arrival, half_widths
from timesyncd.messages.jobs import MarkBatch
from timesyncd.messages.node import Status

#: Steps of a rank's clock that are kept: more than occur while a step of the job is open.
MAX_SETTINGS = 32

#: The most ranks that the message of a job's state can carry.
MAX_RANKS = 2_500

#: The largest plausible time and size, so that no difference of two exceeds 64 bits: the year 2116, and as many bytes.
LARGEST = 2**62

#: The largest plausible bound: eleven days.
LARGEST_BOUND_NS = 10**15

Order = tuple[int, int]


class BatchNumbers(NamedTuple):
    """What a mark that waits needs of its batch: a quarter of a head's memory. Fields as in MarkBatch."""

    rank: int
    incarnation: int
    sequence: int
    real_minus_boot_ns: int
    status: Status
    gm_bound_ns: int | None
    utc_bound_ns: int | None
    past_growth_ppb: int
    grandmaster_identity: str | None
    utc_seconds_removed: int | None

    @classmethod
    def of(cls, batch: MarkBatch) -> BatchNumbers:
        return cls._make(intern(value) if type(value) is str else value for value in _BATCH_NUMBERS(batch))


_BATCH_NUMBERS = attrgetter(*BatchNumbers._fields)


class ClockSettings:
    """
    By the order of its batches, the value of real_minus_boot at which a rank's clock was set: the newest MAX_SETTINGS,
    in arrays, since tuples take five times as much memory.
    """

    __slots__ = ("_incarnations", "_sequences", "_values")

    def __init__(self) -> None:
        self._incarnations, self._sequences, self._values = array("q"), array("q"), array("q")

    def __len__(self) -> int:
        return len(self._values)

    def value_before(self, order: Order) -> int | None:
        """The newest value from before this order; None: none is known."""
        index = self._index(order)
        return self._values[index - 1] if index else None

    def is_before_all(self, order: Order) -> bool:
        return self._index(order) == 0

    def add(self, order: Order, value: int) -> None:
        """Of one order the first value counts."""
        index = self._index(order)
        if index < len(self) and order == (self._incarnations[index], self._sequences[index]):
            return
        for column, number in zip(self._columns, (*order, value), strict=True):
            column.insert(index, number)
            del column[:-MAX_SETTINGS]

    @property
    def _columns(self) -> tuple[array[int], array[int], array[int]]:
        return self._incarnations, self._sequences, self._values

    def _index(self, order: Order) -> int:
        return bisect_left(range(len(self)), order, key=lambda at: (self._incarnations[at], self._sequences[at]))


@dataclass
class Rank:
    """
    One rank. `newest` is its newest batch without the marks, and `newest_end_ns` the newest end of all its marks.
    `behind`: that batch held only steps that were over.

    `settings` holds real_minus_boot_ns of each batch at which its clock had been stepped. So a step of the clock is found
    in any order of arrival; where its batch arrives after later ones, one batch too many may count as stepped.
    """

    newest: MarkBatch
    lost: int = 0
    own_overhead_ns: int = 0
    newest_end_ns: int = 0
    behind: bool = False
    settings: ClockSettings = field(default_factory=ClockSettings)

    def __post_init__(self) -> None:
        self.clock = _clock(self.newest)

    @property
    def process(self) -> tuple[str, int]:
        return process_of(self.newest)

    @property
    def metered_ns(self) -> int | None:
        """For how long it has metered; None: unknown."""
        joined_ns = joined_realtime_ns(self.newest)
        return self.newest_end_ns - joined_ns if self.newest.joined_ns and self.newest_end_ns > joined_ns else None

    def accept(self, head: MarkBatch, newest_end_ns: int) -> bool:
        """Accept a batch without its marks, `head`. Whether it is the newest."""
        self.lost = max(self.lost, head.lost)
        self.own_overhead_ns = max(self.own_overhead_ns, head.own_overhead_ns)
        self.newest_end_ns = max(self.newest_end_ns, newest_end_ns)
        is_newest = order_of(head) >= order_of(self.newest)
        if is_newest:
            self.newest, self.clock = head, _clock(head)
        if self.stepped_before(head) or self.settings.is_before_all(order_of(head)):
            self.settings.add(order_of(head), head.real_minus_boot_ns)
        return is_newest

    def is_newer_than(self, batch: MarkBatch) -> bool:
        return self.newest.node == batch.node and order_of(self.newest) > order_of(batch)

    def stepped_before(self, batch: MarkBatch | BatchNumbers) -> bool:
        """
        Whether the clock was stepped between the batch before this one and this one: its marks may lie on either side.
        """
        before = self.settings.value_before(order_of(batch))
        return before is not None and abs(batch.real_minus_boot_ns - before) > STEP_TOLERANCE_NS

    def arrival(self, received: ReceivedMark, by_grandmaster: bool) -> Arrival:
        mark, head = received.mark, received.head
        return Arrival(
            clock=None if self.stepped_before(head) else self.clock,
            real_minus_boot_ns=head.real_minus_boot_ns,
            arrival_ns=mark.arrival_ns,
            begin_ns=max(mark.arrival_ns, min(mark.begin_ns, mark.end_ns)),
            end_ns=mark.end_ns,
            error_ns=received.error_ns(by_grandmaster),
            bytes=mark.bytes,
        )


@dataclass(frozen=True, slots=True)
class ReceivedMark:
    """
    A mark, the numbers of its batch, and the newest end in that batch: the batch's bound was read then or later.
    """

    mark: Mark
    head: BatchNumbers
    newest_end_ns: int

    def error_ns(self, by_grandmaster: bool) -> int | None:
        """
        The clock's error at the mark: the batch's bound, plus what a slew may have removed between the mark and the end
        of the batch, at the largest rate that the clock had lately; None: unknown.
        """
        if self.head.status not in ("SYNCHRONIZED", "HOLDOVER"):
            return None
        bound_ns = self.head.gm_bound_ns if by_grandmaster else self.head.utc_bound_ns
        return Bound(bound_ns, self.head.past_growth_ppb).at(max(0, self.newest_end_ns - self.mark.arrival_ns))


def share_grandmaster(marks: Sequence[ReceivedMark]) -> bool:
    """Whether the gm bounds are against one grandmaster and one timescale; otherwise only the utc bounds compare."""
    references = {(mark.head.grandmaster_identity, mark.head.utc_seconds_removed) for mark in marks}
    return len(references) == 1 and None not in references.pop()


#: One set for all heads: a set of its own would take as much memory as the rest of a head.
_HEAD_FIELDS = set(MarkBatch.model_fields)


def head_of(batch: MarkBatch, job: str) -> MarkBatch:
    """The batch without its marks, some 1.3 kB. `job`: the name that all heads of the job share."""
    head = batch.model_copy(update={"marks": [], "job": job})
    object.__setattr__(head, "__pydantic_fields_set__", _HEAD_FIELDS)
    return head


def _clock(batch: MarkBatch) -> str:
    """Ranks of one node, boot and time namespace read one clock."""
    return intern(f"{batch.node}/{batch.boot_id}/{batch.time_namespace}")


def node_name(label: str) -> str:
    """
    A rank may call its node anything; a name that messages do not allow keeps what they do, and a part that keeps two
    such labels apart.
    """
    if re.fullmatch(NAME_PATTERN, label):
        return label
    kept = re.sub("[^A-Za-z0-9._-]+", "-", label).lstrip("._-")[:48]
    return f"{kept or 'node'}-{zlib.crc32(label.encode(errors='replace')):08x}"


def order_of(batch: MarkBatch | BatchNumbers) -> Order:
    return batch.incarnation, batch.sequence


def process_of(batch: MarkBatch) -> tuple[str, int]:
    """
    Its node and pid. A process that the daemon cannot see has pid 0; then the time at which it joined identifies it.
    """
    return batch.node, batch.pid or -batch.joined_ns


def joined_realtime_ns(batch: MarkBatch) -> int:
    """When its rank joined, by its node's clock; where that is unknown, when the node booted."""
    return batch.joined_ns + batch.real_minus_boot_ns


def is_plausible(batch: MarkBatch) -> bool:
    """Whether its numbers are possible: any local user may send any datagram."""
    bounds = (batch.gm_bound_ns or 0, batch.utc_bound_ns or 0, batch.past_growth_ppb)
    numbers = (batch.real_minus_boot_ns, batch.lost, batch.own_overhead_ns, batch.joined_ns)
    return (
        0 <= batch.rank < batch.world_size <= MAX_RANKS
        and all(0 <= number < LARGEST for number in numbers)
        and all(0 <= bound_ns <= LARGEST_BOUND_NS for bound_ns in bounds)
        and all(map(_is_plausible_mark, batch.marks))
    )


def _is_plausible_mark(mark: Mark) -> bool:
    """Whether its numbers are possible. An end before the arrival is: the clock was stepped in between."""
    numbers = (mark.step, mark.sync, mark.kind, mark.arrival_ns, mark.begin_ns, mark.end_ns, mark.bytes)
    return min(numbers) >= 0 and max(numbers) < LARGEST


#: Pairs of ranks whose delays are kept; the messages of more pairs are refused and counted.
MAX_PAIRS = 1_000

#: The newest values that are kept: delays of one pair, response times of the servers.
MAX_DELAYS = 100
MAX_RESPONSES = 1_000

Pair = tuple[int, int]


@dataclass(slots=True)
class OpenSync:
    """A synchronization that waits for marks. `repeated` are the ranks that marked it again with other times."""

    since_boottime_ns: int
    marks: dict[int, ReceivedMark] = field(default_factory=dict)
    repeated: frozenset[int] = frozenset()

    def add(self, received: ReceivedMark) -> bool:
        """False: the rank has marked it already, with other times."""
        known = self.marks.setdefault(received.head.rank, received)
        if known is received or known.mark == received.mark:
            return True
        self.repeated |= {received.head.rank}
        return False


@dataclass(slots=True)
class OpenMessage:
    """A message that waits for the mark of one end."""

    since_boottime_ns: int
    send: ReceivedMark | None = None
    receive: ReceivedMark | None = None


@dataclass(frozen=True, slots=True)
class Delay:
    """The one-way delay of a message from one rank to another, right within +-`error_ns`."""

    delay_ns: int
    error_ns: int


class Flows:
    """
    What concerns two ranks or one: delays by (from, to), the most recent pair last; response times of the servers;
    staleness by rank. All are limited. `size` counts the delays, `changes` every value that was added or dropped.
    """

    def __init__(self, window_steps: int) -> None:
        self.delays: dict[Pair, deque[Delay]] = {}
        self.responses: deque[int] = deque(maxlen=MAX_RESPONSES)
        self.staleness: dict[int, deque[int]] = {}
        self.size = 0
        self.changes = 0
        self._window_steps = min(window_steps, MAX_DELAYS)

    def put_delay(self, pair: Pair, delay: Delay) -> bool:
        """False: the delay is refused, there are too many pairs."""
        if pair not in self.delays and len(self.delays) >= MAX_PAIRS:
            return False
        of_pair = self.delays.pop(pair, None) or deque(maxlen=MAX_DELAYS)
        self.size += len(of_pair) < MAX_DELAYS
        self.changes += 1
        of_pair.append(delay)
        self.delays[pair] = of_pair
        return True

    def trim(self, most_delays: int) -> None:
        """Drop the least recent pairs until at most so many delays are left; below 0 counts as 0."""
        while self.delays and self.size > most_delays:
            self.size -= len(self.delays.pop(next(iter(self.delays))))
            self.changes += 1

    def put_staleness(self, rank: int, updates: int) -> None:
        self.changes += 1
        self.staleness.setdefault(rank, deque(maxlen=self._window_steps)).append(updates)


def one_way(send: Arrival, receive: Arrival) -> Delay | None:
    """
    From the moment the sender gave it to the transport until the receiver had all of it; None: the clocks do not
    compare.
    """
    half_widths_ns = half_widths({0: send, 1: receive})
    if half_widths_ns is None:
        return None
    error_ns = READING_GRANULARITY_NS + sum(half_widths_ns.values())
    return Delay(receive.end_ns - send.arrival_ns, error_ns)
