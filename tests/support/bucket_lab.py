"""Recordings of DDP jobs whose gradient buckets are filled and reduced as arithmetic defines."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import chain, repeat

from audit_lab import MS, START_NS

from timesyncd.audit.buckets import MIB
from timesyncd.ipc.job_datagram import Kind
from timesyncd.jobs.arrivals import Arrival, StepMark, Sync, compare
from timesyncd.jobs.recording import RankRecord, Recording

#: (MiB, ms): a parameter, and how long its gradient is computed, in the order of the backward pass.
Parameters = Sequence[tuple[float, float]]

#: torch's own sizes, in MiB.
DEFAULT = (1.0, 25.0)

#: 40 parameters of 1 MiB, 1 ms each. A reduction takes 2 ms and half a millisecond a MiB: buckets of 4 MiB just do not queue.
EVEN: Parameters = [(1, 1)] * 40
LATENCY_MS, MS_PER_MIB = 2.0, 0.5


def bucketed(parameters: Parameters, caps: Sequence[float]) -> list[tuple[float, float]]:
    """(MiB, ms since the pass began) of each bucket, as DDP fills them."""
    limits = chain(caps, repeat(caps[-1]))
    limit, size, at, found = next(limits), 0.0, 0.0, []
    for mib, ms in parameters:
        size, at = size + mib, at + ms
        if size >= limit:
            found.append((size, at))
            limit, size = next(limits), 0.0
    return [*found, (size, at)] if size else found


def one_by_one(buckets: Sequence[tuple[float, float]], latency_ms: float, ms_per_mib: float) -> list[float]:
    """When each is reduced, one after the other."""
    ends: list[float] = []
    for mib, at in buckets:
        ends.append(max(at, ends[-1] if ends else 0) + latency_ms + ms_per_mib * mib)
    return ends


def truly_exposed(parameters: Parameters, caps: Sequence[float], latency_ms: float, ms_per_mib: float) -> float:
    buckets = bucketed(parameters, caps)
    return one_by_one(buckets, latency_ms, ms_per_mib)[-1] - buckets[-1][1]


def trained(
    parameters: Parameters = EVEN,
    caps: Sequence[float] = DEFAULT,
    latency_ms: float = LATENCY_MS,
    ms_per_mib: float = MS_PER_MIB,
    forward_ms: float = 60,
    steps: int = 60,
    noise_ms: float = 0,
    kind: Kind = Kind.BUCKET,
) -> Recording:
    """Two ranks that are alike, on one clock. `noise_ms`: how much longer the second reduction may take, by chance."""
    buckets, chance = bucketed(parameters, caps), random.Random(5)
    begin_ns, syncs, marks = START_NS, [], []
    for step in range(steps):
        ready = [begin_ns + round((forward_ms + at) * MS) for _, at in buckets]
        ends = [begin_ns + round((forward_ms + end) * MS) for end in one_by_one(buckets, latency_ms, ms_per_mib)]
        ends[1 % len(ends)] += round(chance.uniform(0, noise_ms) * MS)
        for number, (mib, _) in enumerate(buckets):
            begun_ns = min(ready[-1], ends[number])
            arrival = Arrival("clock", 0, ready[number], begun_ns, ends[number], None, round(mib * MIB))
            arrivals = {0: arrival, 1: arrival}
            syncs.append(Sync(step, number, kind, arrivals, compare(arrivals)))
        marks.append(StepMark(step, begin_ns, ready[-1], max(ends) + MS))
        begin_ns = max(ends) + MS
    records = {rank: RankRecord("node-0") for rank in (0, 1)}
    return Recording("train", 0, 2, records, syncs, {0: marks, 1: marks})
