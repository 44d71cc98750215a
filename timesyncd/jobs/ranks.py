"""
What a hub keeps of each rank of a job, and which batches of marks it believes at all. Pure.

What waits to be joined: a collective until every rank's mark is there, a message until both ends have told of it. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from sys import intern

from timesyncd.bound import Bound
from timesyncd.clocks import STEP_TOLERANCE_NS
from timesyncd.jobs.arrivals import READING_GRANULARITY_NS, Arrival, half_widths
from timesyncd.messages.jobs import Mark, MarkBatch

#: Settings of a rank's clock that are remembered: more than there are in the time for which a step is kept open.
MAX_SETTINGS = 32

#: How fast a clock's bound may have grown since a mark, while only the batch's bound is told: the kernel's limit of a slew.
SLEW_LIMIT_PPB = 500_000

#: What one state of a job can carry; more ranks than that nobody could be told of.
MAX_RANKS = 2_500

#: Of times and sizes, so that no difference of two leaves the 64 bits of a message: the year 2116, and as many bytes.
LARGEST = 2**62

#: Of bounds: eleven days.
LARGEST_BOUND_NS = 10**15

Order = tuple[int, int]


@dataclass
class Rank:
    """
    What is known of one rank. `newest` is its newest batch without the marks, and `newest_end_ns` the newest of all its marks' ends. `behind`: that batch brought only steps that were over already. `settings`
    holds (incarnation, sequence) and real_minus_boot_ns of the batches from which on its clock was set otherwise, in order, so that a step is found whatever the order in which
    batches came. Where one with a step came after later ones, a batch too many may count as stepped.
    """

    newest: MarkBatch
    lost: int = 0
    own_overhead_ns: int = 0
    newest_end_ns: int = 0
    behind: bool = False
    settings: list[tuple[Order, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = _clock(self.newest)

    @property
    def process(self) -> tuple[str, int]:
        return process_of(self.newest)

    @property
    def metered_ns(self) -> int | None:
        """For how long it has metered; None: not told."""
        joined_ns = joined_realtime_ns(self.newest)
        return self.newest_end_ns - joined_ns if self.newest.joined_ns and self.newest_end_ns > joined_ns else None

    def accept(self, head: MarkBatch, newest_end_ns: int) -> bool:
        """`head` is a batch without its marks. Whether none newer is known."""
        self.lost = max(self.lost, head.lost)
        self.own_overhead_ns = max(self.own_overhead_ns, head.own_overhead_ns)
        self.newest_end_ns = max(self.newest_end_ns, newest_end_ns)
        is_newest = order_of(head) >= order_of(self.newest)
        if is_newest:
            self.newest, self.clock = head, _clock(head)
        if not self.settings or self.stepped_before(head) or order_of(head) < self.settings[0][0]:
            entry = (order_of(head), head.real_minus_boot_ns)
            if entry not in self.settings:
                insort(self.settings, entry)
                del self.settings[:-MAX_SETTINGS]
        return is_newest

    def is_newer_than(self, batch: MarkBatch) -> bool:
        return self.newest.node == batch.node and order_of(self.newest) > order_of(batch)

    def stepped_before(self, batch: MarkBatch) -> bool:
        """Whether the clock was set between the batch before this one and this one: its marks may be of either side."""
        index = bisect_left(self.settings, order_of(batch), key=lambda setting: setting[0])
        return index > 0 and abs(batch.real_minus_boot_ns - self.settings[index - 1][1]) > STEP_TOLERANCE_NS

    def arrival(self, marked: Marked, by_grandmaster: bool) -> Arrival:
        mark, head = marked.mark, marked.head
        return Arrival(
            clock=None if self.stepped_before(head) else self.clock,
            real_minus_boot_ns=head.real_minus_boot_ns,
            arrival_ns=mark.arrival_ns,
            begin_ns=max(mark.arrival_ns, min(mark.begin_ns, mark.end_ns)),
            end_ns=mark.end_ns,
            error_ns=marked.error_ns(by_grandmaster),
            bytes=mark.bytes,
        )


@dataclass(frozen=True, slots=True)
class Marked:
    """A mark, the batch that brought it (without its marks), and that batch's newest end: its bound was read then or later."""

    mark: Mark
    head: MarkBatch
    newest_end_ns: int

    def error_ns(self, by_grandmaster: bool) -> int | None:
        """The clock's error at the mark: the batch's bound, and what a slew may have taken off it since the mark."""
        if self.head.status not in ("SYNCHRONIZED", "HOLDOVER"):
            return None
        bound_ns = self.head.gm_bound_ns if by_grandmaster else self.head.utc_bound_ns
        return Bound(bound_ns, SLEW_LIMIT_PPB).at(max(0, self.newest_end_ns - self.mark.arrival_ns))


def share_grandmaster(marks: Sequence[Marked]) -> bool:
    """Whether their gm bounds are against one clock on one scale; if not, only their utc bounds compare."""
    references = {(marked.head.grandmaster_identity, marked.head.utc_seconds_removed) for marked in marks}
    return len(references) == 1 and None not in references.pop()


def _clock(batch: MarkBatch) -> str:
    """Ranks of one node, boot and time namespace read one clock."""
    return intern(f"{batch.node}/{batch.boot_id}/{batch.time_namespace}")


def order_of(batch: MarkBatch) -> Order:
    return batch.incarnation, batch.sequence


def process_of(batch: MarkBatch) -> tuple[str, int]:
    """A process that the daemon cannot see has pid 0; then the time at which it joined tells it from the next one."""
    return batch.node, batch.pid or -batch.joined_ns


def joined_realtime_ns(batch: MarkBatch) -> int:
    """When its rank joined, by its node's clock; where that is not told, when the node booted."""
    return batch.joined_ns + batch.real_minus_boot_ns


def is_plausible(batch: MarkBatch) -> bool:
    """Any local user may send a datagram, and any number in it."""
    bounds = (batch.gm_bound_ns or 0, batch.utc_bound_ns or 0)
    numbers = (batch.real_minus_boot_ns, batch.lost, batch.own_overhead_ns, batch.joined_ns)
    return (
        0 <= batch.rank < batch.world_size <= MAX_RANKS
        and all(0 <= number < LARGEST for number in numbers)
        and all(0 <= bound_ns <= LARGEST_BOUND_NS for bound_ns in bounds)
        and all(map(_is_plausible_mark, batch.marks))
    )


def _is_plausible_mark(mark: Mark) -> bool:
    """A clock that was set in between may have ended it before it began: that is told as a step."""
    numbers = (mark.step, mark.sync, mark.kind, mark.arrival_ns, mark.begin_ns, mark.end_ns, mark.bytes)
    return min(numbers) >= 0 and max(numbers) < LARGEST


#: Pairs of ranks whose messages are looked at; the rest is counted as refused.
MAX_PAIRS = 1_000

#: So many newest values are looked back on: delays of one pair, answers of the servers.
MAX_DELAYS = 100
MAX_RESPONSES = 1_000

Pair = tuple[int, int]


@dataclass
class OpenSync:
    """A synchronization of which marks are still awaited, by rank. `repeated` are the ranks that marked it twice, and differently."""

    since_boottime_ns: int
    marks: dict[int, Marked] = field(default_factory=dict)
    repeated: set[int] = field(default_factory=set)

    def add(self, marked: Marked) -> bool:
        """False: the rank told of it already, and something else."""
        known = self.marks.setdefault(marked.head.rank, marked)
        if known is marked or known.mark == marked.mark:
            return True
        self.repeated.add(marked.head.rank)
        return False


@dataclass
class OpenMessage:
    """A message of which one end is still awaited."""

    since_boottime_ns: int
    send: Marked | None = None
    receive: Marked | None = None


@dataclass(frozen=True, slots=True)
class Delay:
    """One message's way from one rank to another, right within +-`error_ns`."""

    delay_ns: int
    error_ns: int


class Flows:
    """
    What is of two ranks, or of one alone: delays by (from, to), the pair heard of last at the end; the servers' response times; staleness by rank. All
    bounded. `size` counts the delays, `changes` what was ever put.
    """

    def __init__(self, window_steps: int) -> None:
        self.delays: dict[Pair, deque[Delay]] = {}
        self.responses: deque[int] = deque(maxlen=MAX_RESPONSES)
        self.staleness: dict[int, deque[int]] = {}
        self.size = 0
        self.changes = 0
        self._window_steps = min(window_steps, MAX_DELAYS)

    def put_delay(self, pair: Pair, delay: Delay) -> bool:
        """False: there are too many pairs."""
        if pair not in self.delays and len(self.delays) >= MAX_PAIRS:
            return False
        of_pair = self.delays.pop(pair, None) or deque(maxlen=MAX_DELAYS)
        self.size += len(of_pair) < MAX_DELAYS
        self.changes += 1
        of_pair.append(delay)
        self.delays[pair] = of_pair
        return True

    def trim(self, most_delays: int) -> None:
        """Drop the pairs that have not been heard of for the longest time until so many delays are left."""
        while self.size > most_delays:
            self.size -= len(self.delays.pop(next(iter(self.delays))))
            self.changes += 1

    def put_staleness(self, rank: int, updates: int) -> None:
        self.changes += 1
        self.staleness.setdefault(rank, deque(maxlen=self._window_steps)).append(updates)


def one_way(send: Arrival, receive: Arrival) -> Delay | None:
    """From the moment it was given to the transport until all of it was there; None: the two clocks do not compare."""
    half_widths_ns = half_widths({0: send, 1: receive})
    if half_widths_ns is None:
        return None
    error_ns = READING_GRANULARITY_NS + sum(half_widths_ns.values())
    return Delay(receive.end_ns - send.arrival_ns, error_ns)
