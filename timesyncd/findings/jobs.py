"""
The findings that training jobs call for: a clock that broke causality, replicas that diverged, and a rank that others
wait for. Pure.
"""

from __future__ import annotations

from timesyncd.findings.catalogue import Judgement
from timesyncd.ipc.job_datagram import step_text
from timesyncd.jobs.arrivals import step_ns
from timesyncd.jobs.causality import Suspicion
from timesyncd.jobs.joining import DivergedReplicas, JobRun
from timesyncd.jobs.missing_ranks import USUAL_STEPS, find_hang, hang_text
from timesyncd.units import duration_text

CLOCK_CAUSALITY = "clock-causality"
REPLICAS_APART = "replicas-apart"
RANK_MISSING = "rank-missing"

#: An evidence lists so many ranks before "and others".
MAX_RANKS_LISTED = 8


def job_findings(job: JobRun, suspicion: Suspicion | None) -> dict[tuple[str, str], Judgement]:
    """By (id, subject). `suspicion`: the clocks that the order of the job's marks contradicts."""
    found: dict[tuple[str, str], Judgement] = {}
    if suspicion is not None:
        found[CLOCK_CAUSALITY, ", ".join(suspicion.nodes)] = Judgement(_suspicion_text(job, suspicion))
    diverged = job.replicas.diverged()
    if diverged is not None:
        found[REPLICAS_APART, job.name] = Judgement(_diverged_text(job, diverged))
    hang = find_hang(job.presence, job.world_size, None)
    if hang is not None and hang.waited_ns >= USUAL_STEPS * (step_ns(job.window) or 0):
        found[RANK_MISSING, job.name] = Judgement(
            f"job {job.name!r} of user {job.uid}: {hang_text(hang)}",
        )
    return found


def _diverged_text(job: JobRun, diverged: DivergedReplicas) -> str:
    ranks = "ranks " if len(diverged.ranks) > 1 else "rank "
    ranks += ", ".join(map(str, diverged.ranks[:MAX_RANKS_LISTED]))
    others = " and others" if len(diverged.ranks) > MAX_RANKS_LISTED else ""
    return (
        f"in step {step_text(diverged.step)} of job {job.name!r} of user {job.uid} the parameters of {ranks}{others} "
        "differed from those of the other ranks right after a synchronization"
    )


def _suspicion_text(job: JobRun, suspicion: Suspicion) -> str:
    wrong = "one of these clocks" if len(suspicion.nodes) > 1 else "this clock"
    return (
        f"in {suspicion.steps} steps of job {job.name!r} of user {job.uid} a rank left a collective before "
        f"another arrived, "
        f"by up to {duration_text(suspicion.excess_ns)} more than the bounds allow: {wrong} is wrong, or that "
        f"user's marks are"
    )
