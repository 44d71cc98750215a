"""
The findings that training jobs call for: a clock that broke causality, replicas that diverged, a loss that is not finite
or above its reference's, and a rank that others wait for. Pure.
"""

from __future__ import annotations

import math

from timesyncd.findings.catalogue import Judgement
from timesyncd.ipc.job_datagram import step_text
from timesyncd.jobs.arrivals import step_ns
from timesyncd.jobs.causality import Suspicion
from timesyncd.jobs.joining import DivergedReplicas, JobRun
from timesyncd.jobs.losses import WorseLoss
from timesyncd.jobs.missing_ranks import USUAL_STEPS, find_hang, hang_text
from timesyncd.units import duration_text

CLOCK_CAUSALITY = "clock-causality"
REPLICAS_APART = "replicas-apart"
RANK_MISSING = "rank-missing"
LOSS_NOT_FINITE = "loss-not-finite"
LEARNS_WORSE = "learns-worse"

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
    if job.losses.unfit:
        found[LOSS_NOT_FINITE, job.name] = Judgement(_unfit_text(job))
    if job.losses.worse is not None:
        found[LEARNS_WORSE, job.name] = Judgement(_worse_text(job, job.losses.worse))
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


def _unfit_text(job: JobRun) -> str:
    """The ranks of the first such step, which may have made all others' losses what they are, and how many followed."""
    first = min(job.losses.unfit.values())
    ranks = sorted(rank for rank, step in job.losses.unfit.items() if step == first)
    named = ("ranks " if len(ranks) > 1 else "rank ") + ", ".join(map(str, ranks[:MAX_RANKS_LISTED]))
    others = " and others" if len(ranks) > MAX_RANKS_LISTED else ""
    later = len(job.losses.unfit) - len(ranks)
    then = f"; later of {later} more" if later else ""
    return (
        f"in step {step_text(first)} of job {job.name!r} of user {job.uid} a loss or gradient of {named}{others} was not "
        f"finite, the first so far{then}"
    )


def _worse_text(job: JobRun, worse: WorseLoss) -> str:
    by = f"by {worse.least:.1%} or more" if math.isfinite(worse.least) else "since it is not finite"
    return (
        f"by step {step_text(worse.step)} of job {job.name!r} of user {job.uid} the loss under the policy in force is "
        f"higher than that of its reference at equal steps, {by}"
    )


def _suspicion_text(job: JobRun, suspicion: Suspicion) -> str:
    wrong = "one of these clocks" if len(suspicion.nodes) > 1 else "this clock"
    return (
        f"in {suspicion.steps} steps of job {job.name!r} of user {job.uid} a rank left a collective before "
        f"another arrived, "
        f"by up to {duration_text(suspicion.excess_ns)} more than the bounds allow: {wrong} is wrong, or that "
        f"user's marks are"
    )
