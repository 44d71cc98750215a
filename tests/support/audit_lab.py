"""Recordings of jobs built by hand: ranks that compute, gradient buckets that overlap with it, and one clock unless stated."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

from timesyncd.ipc.job_datagram import Kind
from timesyncd.jobs.arrivals import Arrival, StepMark, Sync, compare
from timesyncd.jobs.recording import RankRecord, Recording, RecordingMessage

MS = 1_000_000
START_NS = 1_700_000_000 * 10**9

#: (rank, step) -> nanoseconds.
Computing = Callable[[int, int], int]


def ten_ms(_rank: int, _step: int) -> int:
    return 10 * MS


def noisy(seed: int = 1, spread_ns: int = 200_000) -> Computing:
    chance = random.Random(seed)
    drawn: dict[tuple[int, int], int] = {}

    def computing(rank: int, step: int) -> int:
        return drawn.setdefault((rank, step), max(MS, 10 * MS + round(chance.gauss(0, spread_ns))))

    return computing


def job(
    steps: int = 50,
    ranks: int = 2,
    computing: Computing = ten_ms,
    transfers_ns: tuple[int, ...] = (2 * MS, 1 * MS),
    update_ns: int = 300_000,
    marked: bool = True,
    clocks_ahead_ns: Mapping[int, int] | None = None,
    errors_ns: Mapping[int, int] | None = None,
    missing: frozenset[tuple[int, int]] = frozenset(),
    barriers_ns: Mapping[int, int] | None = None,
) -> Recording:
    """
    A data-parallel job: a bucket is ready at each equal part of a rank's computing, buckets are reduced one after the other,
    and a rank waits for all of them after its last gradient. `clocks_ahead_ns` by rank puts every rank on a clock of its own.
    `barriers_ns`: the steps that begin with a barrier, and how much later than the others rank 0 comes to it.
    """
    times = dict.fromkeys(range(ranks), START_NS)
    syncs: list[Sync] = []
    marks: dict[int, list[StepMark]] = {rank: [] for rank in range(ranks)}
    for step in range(steps):
        marked_ns = dict(times)
        if step in (barriers_ns or {}):
            times[0] += (barriers_ns or {})[step]
            done_ns = max(times.values()) + MS
            none_ready = dict.fromkeys(times, 0)
            syncs.append(_sync(step, 0, times, none_ready, done_ns, ranks, clocks_ahead_ns, errors_ns, Kind.BARRIER))
            times = dict.fromkeys(times, done_ns)
        begins = dict(times)
        ready = {rank: begins[rank] + computing(rank, step) for rank in times}
        through_ns = 0
        for bucket, transfer_ns in enumerate(transfers_ns):
            part = (bucket + 1) / len(transfers_ns)
            arrivals = {rank: begins[rank] + round(part * computing(rank, step)) for rank in times}
            through_ns = max(through_ns, *arrivals.values()) + transfer_ns
            recorded = {rank: at for rank, at in arrivals.items() if (rank, step) not in missing}
            syncs.append(_sync(step, bucket, recorded, ready, through_ns, ranks, clocks_ahead_ns, errors_ns))
        for rank in times:
            times[rank] = max(ready[rank], through_ns) + update_ns
            ahead_ns = (clocks_ahead_ns or {}).get(rank, 0)
            marks[rank].append(
                StepMark(step, marked_ns[rank] + ahead_ns, ready[rank] + ahead_ns, times[rank] + ahead_ns)
            )
    records = {rank: RankRecord(f"node-{rank if clocks_ahead_ns else 0}", 0, steps * 2_000) for rank in range(ranks)}
    return Recording("train", 0, ranks, records, syncs, marks if marked else {})


def _sync(
    step: int,
    bucket: int,
    arrivals: Mapping[int, int],
    ready: Mapping[int, int],
    through_ns: int,
    ranks: int,
    clocks_ahead_ns: Mapping[int, int] | None,
    errors_ns: Mapping[int, int] | None,
    kind: Kind = Kind.BUCKET,
) -> Sync:
    def arrival(rank: int, at_ns: int) -> Arrival:
        ahead_ns = (clocks_ahead_ns or {}).get(rank, 0)
        begin_ns = min(max(at_ns, ready[rank]), through_ns)
        return Arrival(
            clock=f"clock-{rank}" if clocks_ahead_ns is not None else "clock",
            real_minus_boot_ns=START_NS - 10**12,
            arrival_ns=at_ns + ahead_ns,
            begin_ns=begin_ns + ahead_ns,
            end_ns=through_ns + ahead_ns,
            error_ns=(errors_ns or {}).get(rank),
            bytes=1_000_000,
        )

    found = {rank: arrival(rank, at_ns) for rank, at_ns in arrivals.items()}
    return Sync(step, bucket, kind, found, compare(found) if len(found) == ranks else None)


def late(rank: int, by_ns: int = 5 * MS, computing: Computing = ten_ms) -> Computing:
    """One rank computes that much longer in every step."""
    return lambda which, step: computing(which, step) + (by_ns if which == rank else 0)


def saved(path: Path, recording: Recording) -> Path:
    path.write_text(RecordingMessage.of(recording).model_dump_json())
    return path
