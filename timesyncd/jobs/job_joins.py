"""What waits to be joined: a collective until every rank's mark is there, a message until both ends have told of it. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from timesyncd.jobs.arrivals import READING_GRANULARITY_NS, Arrival, half_widths
from timesyncd.jobs.ranks import Marked

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
