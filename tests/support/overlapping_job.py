"""
A simulated data-parallel job on GPUs with a known truth: gradients are reduced bucket by bucket while the backward pass
goes on. It shares no code with the replay that it tests.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

#: In ms.
FORWARD, BACKWARD, UPDATE, GAP = 10.0, 6.0, 1.0, 0.005
BUCKETS = 4


@dataclass(frozen=True)
class OverlappingJob:
    """`slow`: by rank how many times longer it computes. `transfer_ms`: of one bucket."""

    ranks: int = 4
    steps: int = 8
    transfer_ms: float = 2.0
    noise: float = 0.02
    slow: Mapping[int, float] = field(default_factory=dict)

    def healthy(self) -> OverlappingJob:
        return replace(self, slow={})


@dataclass
class RankKernels:
    """What one rank's two streams ran, and its steps: (begin, end) in ms."""

    computing: list[tuple[float, float]] = field(default_factory=list)
    reductions: list[tuple[float, float]] = field(default_factory=list)
    steps: list[tuple[float, float]] = field(default_factory=list)


def run(job: OverlappingJob) -> tuple[list[RankKernels], float]:
    """The kernels of all ranks, and the mean step in ms."""
    found = [RankKernels() for _ in range(job.ranks)]
    now, free = [0.0] * job.ranks, [0.0] * job.ranks
    for step in range(job.steps):
        begins = list(now)
        ready = [_passes(job, step, rank, now, found[rank]) for rank in range(job.ranks)]
        for bucket in range(BUCKETS):
            begin = [max(ready[rank][bucket], free[rank]) for rank in range(job.ranks)]
            end = max(begin) + job.transfer_ms * _noise(job, step, "transfer", bucket)
            free = [end] * job.ranks
            for rank in range(job.ranks):
                found[rank].reductions.append((begin[rank], end))
        for rank in range(job.ranks):
            now[rank] = _computed(found[rank], max(now[rank], free[rank]), UPDATE * _noise(job, step, rank, "update"))
            found[rank].steps.append((begins[rank], now[rank] - GAP))
    return found, max(now) / job.steps


def _passes(job: OverlappingJob, step: int, rank: int, now: list[float], kernels: RankKernels) -> list[float]:
    """Computes both passes; when each bucket was ready."""
    factor = job.slow.get(rank, 1.0)
    now[rank] = _computed(kernels, now[rank], FORWARD * factor * _noise(job, step, rank, "forward"))
    ready = []
    for bucket in range(BUCKETS):
        now[rank] = _computed(kernels, now[rank], BACKWARD * factor * _noise(job, step, rank, bucket))
        ready.append(now[rank])
    return ready


def _computed(kernels: RankKernels, begin: float, length: float) -> float:
    kernels.computing.append((begin, begin + length))
    return begin + length + GAP


def _noise(job: OverlappingJob, *what: object) -> float:
    return max(0.2, random.Random(str(what)).gauss(1.0, job.noise))


def kineto(job: OverlappingJob, kernels: RankKernels, rank: int) -> dict[str, Any]:
    """One rank's trace as Kineto writes it; each rank has a clock of its own."""
    reduction = {
        "Collective name": "allreduce",
        "Process Group Name": "0",
        "Process Group Ranks": str(list(range(job.ranks))),
        "Group size": job.ranks,
        "In msg nelems": 1000,
        "dtype": "Float",
    }
    events = [_event("kernel", "ampere_sgemm_128x64_tn", 7, span, {"stream": 7}) for span in kernels.computing]
    events += [
        _event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", 20, s, reduction) for s in kernels.reductions
    ]
    events += [_event("user_annotation", f"ProfilerStep#{n}", 9, span, {}) for n, span in enumerate(kernels.steps)]
    return {
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": job.ranks},
        "host_name": f"node-{rank}",
        "baseTimeNanoseconds": 1_789_000_000_000_000_000 + 7_000_000 * rank,
        "traceEvents": events,
    }


def _event(category: str, name: str, thread: int, span: tuple[float, float], args: dict[str, Any]) -> dict[str, Any]:
    begin, end = span
    where = {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": thread, "args": args}
    return where | {"ts": round(begin * 1e3, 3), "dur": round((end - begin) * 1e3, 3)}
