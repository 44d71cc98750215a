"""A training job with known truth: ranks on nodes whose clocks are off by known amounts, gradient buckets that overlap backward, and a rank that is made late."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from timesyncd.ipc.job_datagram import Kind, Mark
from timesyncd.jobs.arrivals import Arrival, Sync, compare
from timesyncd.messages.jobs import MarkBatch

US = 1_000
MS = 1_000_000
BEGAN_NS = 1_800_000_000_000_000_000
BOOTED_NS = BEGAN_NS - 10**15


@dataclass(frozen=True)
class SimulatedClock:
    """Its error against the true time, now and per second; `bound_ns` is its published bound (None: none), which holds where it is not smaller."""

    offset_ns: int = 0
    drift_ppb: int = 0
    bound_ns: int | None = 0

    def read(self, true_ns: float) -> int:
        return round(true_ns) + self.offset_ns + round((true_ns - BEGAN_NS) * self.drift_ppb / 1e9)


@dataclass(frozen=True)
class Late:
    """This rank computes so much longer before this bucket, in every step, or in this share of the steps."""

    rank: int
    bucket: int
    by_ns: int
    share: float = 1.0


@dataclass
class SimulatedJob:
    """
    `clocks` by node, `ranks_of_a_node` on each. A bucket's gradients take `compute_ns` after those of the one before, its transfer `transfer_ns` after the last
    rank's arrival and the transfer before; ranks leave it within `exit_part` of that after each other, and those of `leaves_late` by so large a part of it later
    still, always.
    """

    clocks: Sequence[SimulatedClock]
    ranks_of_a_node: int = 1
    buckets: int = 4
    forward_ns: int = 10 * MS
    compute_ns: int = 5 * MS
    transfer_ns: int = 8 * MS
    jitter_ns: int = 300 * US
    exit_part: float = 0.05
    late: Sequence[Late] = ()
    order_ns: Mapping[int, int] = field(default_factory=dict)
    leaves_late: Mapping[int, float] = field(default_factory=dict)

    @property
    def ranks(self) -> range:
        return range(len(self.clocks) * self.ranks_of_a_node)

    def node(self, rank: int) -> int:
        return rank // self.ranks_of_a_node

    def run(self, steps: int, chance: random.Random) -> Iterator[list[dict[int, tuple[int, int, int]]]]:
        """Each step: by bucket, by rank, when it arrived, began to wait, and left; true time."""
        start = dict.fromkeys(self.ranks, BEGAN_NS)
        for _ in range(steps):
            arrivals = {rank: self._arrivals(rank, start[rank], chance) for rank in self.ranks}
            through = 0
            step: list[dict[int, tuple[int, int, int]]] = []
            for bucket in range(self.buckets):
                begins = max(through, *(arrivals[rank][bucket] for rank in self.ranks))
                through = begins + round(self.transfer_ns * chance.uniform(0.95, 1.05))
                step.append({rank: self._part(rank, arrivals[rank], bucket, through, chance) for rank in self.ranks})
            yield step
            start = {rank: max(part[rank][2] for part in step) + MS for rank in self.ranks}

    def _arrivals(self, rank: int, start_ns: int, chance: random.Random) -> list[int]:
        at_ns = start_ns + self.forward_ns + self.order_ns.get(rank, 0)
        arrivals = []
        for bucket in range(self.buckets):
            at_ns += self.compute_ns + round(abs(chance.gauss(0, self.jitter_ns)))
            for late in self.late:
                if (late.rank, late.bucket) == (rank, bucket) and chance.random() < late.share:
                    at_ns += late.by_ns
            arrivals.append(at_ns)
        return arrivals

    def _part(
        self, rank: int, arrivals: Sequence[int], bucket: int, through: int, chance: random.Random
    ) -> tuple[int, int, int]:
        part = chance.uniform(0, self.exit_part) + self.leaves_late.get(rank, 0.0)
        leaves = through + round(self.transfer_ns * part)
        return arrivals[bucket], min(arrivals[-1], leaves), leaves

    def read(self, rank: int, part: tuple[int, int, int], chance: random.Random) -> tuple[int, ...]:
        clock = self.clocks[self.node(rank)]
        return tuple(clock.read(at_ns + chance.uniform(-400, 400)) for at_ns in part)

    def syncs(self, steps: int, chance: random.Random, last: dict[tuple[int, int], int] | None = None) -> list[Sync]:
        """As a hub joins them; `last` receives the last rank by (step, bucket)."""
        found = []
        for number, step in enumerate(self.run(steps, chance)):
            for bucket, parts in enumerate(step):
                if last is not None:
                    last[number, bucket] = max(parts, key=lambda rank: parts[rank][0])
                arrivals = {rank: self._arrival(rank, part, chance) for rank, part in parts.items()}
                found.append(Sync(number, bucket, Kind.BUCKET, arrivals, compare(arrivals)))
        return found

    def _arrival(self, rank: int, part: tuple[int, int, int], chance: random.Random) -> Arrival:
        node = self.node(rank)
        arrival_ns, begin_ns, end_ns = self.read(rank, part, chance)
        clock = self.clocks[node]
        return Arrival(f"n{node}", BOOTED_NS, arrival_ns, begin_ns, end_ns, clock.bound_ns)

    def batches(self, steps: int, chance: random.Random) -> Iterator[MarkBatch]:
        """One a rank and step, as the nodes' daemons hand them on."""
        for number, step in enumerate(self.run(steps, chance)):
            for rank in self.ranks:
                marks = []
                for bucket, parts in enumerate(step):
                    times = zip(("arrival_ns", "begin_ns", "end_ns"), self.read(rank, parts[rank], chance), strict=True)
                    marks.append(Mark(step=number, sync=bucket, kind=Kind.BUCKET, bytes=1, **dict(times)))
                yield self._batch(rank, number, marks)

    def _batch(self, rank: int, sequence: int, marks: list[Mark]) -> MarkBatch:
        node = f"n{self.node(rank)}"
        bound_ns = self.clocks[self.node(rank)].bound_ns
        return MarkBatch(
            node=node,
            incarnation=1,
            sequence=sequence * 1_000 + rank,
            uid=1000,
            pid=100 + rank,
            job="train",
            attempt=0,
            rank=rank,
            world_size=len(self.ranks),
            boot_id=f"boot of {node}",
            time_namespace=1,
            real_minus_boot_ns=BOOTED_NS,
            gm_bound_ns=bound_ns,
            utc_bound_ns=None,
            status="UNKNOWN" if bound_ns is None else "SYNCHRONIZED",
            grandmaster_identity=None if bound_ns is None else "gm-1",
            utc_seconds_removed=0,
            lost=0,
            marks=marks,
        )


def clocks(count: int, bound_ns: int, chance: random.Random) -> list[SimulatedClock]:
    """Each off by anything within its bound."""
    return [SimulatedClock(chance.randint(-bound_ns, bound_ns), 0, bound_ns) for _ in range(count)]


def untrusted(count: int, chance: random.Random) -> list[SimulatedClock]:
    """Nothing is known of them: up to a second off, and 20 ppm."""
    return [
        SimulatedClock(chance.randint(-(10**9), 10**9), chance.randint(-20_000, 20_000), None) for _ in range(count)
    ]
