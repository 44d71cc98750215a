"""Marks of a job as a node's daemon hands them to the hub."""

from __future__ import annotations

from timesyncd.clocks import NS_PER_S
from timesyncd.ipc.job_datagram import Kind, Mark
from timesyncd.messages.jobs import MarkBatch
from timesyncd.messages.node import Status

MS = 1_000_000
NOW = 1_000 * NS_PER_S
REAL_MINUS_BOOT = 1_700_000_000 * NS_PER_S
STEP_NS = 100 * MS


def mark(step: int, offset_ns: int = 0, duration_ns: int = 10 * MS, sync: int = 0) -> Mark:
    arrival_ns = REAL_MINUS_BOOT + step * STEP_NS + offset_ns
    end_ns = REAL_MINUS_BOOT + step * STEP_NS + duration_ns
    return Mark(
        step=step, sync=sync, kind=Kind.BARRIER, arrival_ns=arrival_ns, begin_ns=arrival_ns, end_ns=end_ns, bytes=0
    )


def batch(
    rank: int,
    *marks: Mark,
    sequence: int = 1,
    node: str | None = None,
    job: str = "train",
    attempt: int = 0,
    uid: int = 1000,
    pid: int = 10,
    world_size: int = 2,
    real_minus_boot_ns: int = REAL_MINUS_BOOT,
    gm_bound_ns: int | None = 100_000,
    utc_bound_ns: int | None = None,
    status: Status = "SYNCHRONIZED",
    grandmaster: str | None = "gm-1",
    lost: int = 0,
) -> MarkBatch:
    """Of rank k on a node of its own, called node-k."""
    node = node or f"node-{rank}"
    return MarkBatch(
        node=node,
        incarnation=1,
        sequence=sequence,
        uid=uid,
        pid=pid + rank,
        job=job,
        attempt=attempt,
        rank=rank,
        world_size=world_size,
        boot_id=f"boot of {node}",
        time_namespace=1,
        real_minus_boot_ns=real_minus_boot_ns,
        gm_bound_ns=gm_bound_ns,
        utc_bound_ns=utc_bound_ns,
        status=status,
        grandmaster_identity=grandmaster,
        utc_seconds_removed=0,
        lost=lost,
        past_growth_ppb=500_000,
        marks=list(marks),
    )
