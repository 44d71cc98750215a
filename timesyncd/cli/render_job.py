"""What a job's state says, in words for a terminal. Pure."""

from __future__ import annotations

from timesyncd.ipc.job_datagram import step_text
from timesyncd.messages.jobs import JobState, RankState, Straggler
from timesyncd.units import duration_text

_METHODS = {
    "ONE_CLOCK": "one clock, which all ranks read",
    "CLOCKS": "the nodes' clocks",
    "ENDS": "when collectives end, as no clock is trusted",
}


def percent(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{ratio:.1%}"


def job_line(job: JobState) -> str:
    """Both signals and who is slow."""
    where = next((f" at {each.where}" for each in job.stragglers if each.rank == job.straggler_rank), "")
    slow = "no slow rank" if job.straggler_rank is None else f"rank {job.straggler_rank} is slow{where}"
    why = f": {job.alignment_reason}" if job.alignment_ns is None else ""
    return f"sync overhead {percent(job.sync_overhead)}, {slow}, clocks {agreement(job)}{why}"


def agreement(job: JobState) -> str:
    return "not comparable" if job.alignment_ns is None else f"agree within {duration_text(job.alignment_ns)}"


def job_facts(job: JobState) -> list[tuple[str, str | None]]:
    """All that concerns the whole job; None: nothing is known of it."""
    lost = sum(rank.marks_lost for rank in job.ranks)
    return [
        ("verdict", job.verdict),
        ("sync overhead", _overhead(job)),
        ("comm : compute", None if job.comm_compute is None else f"{job.comm_compute:.2f}"),
        ("arrival skew", _with_error(_pair(job.arrival_skew_p50_ns, job.arrival_skew_p99_ns), job.clock_bound_ns)),
        ("compared by", _method(job)),
        ("clocks", agreement(job) + (f": {job.alignment_reason}" if job.alignment_reason else "")),
        ("transfer", _pair(job.transfer_p50_ns, job.transfer_p99_ns)),
        ("wait in barriers", _pair(job.barrier_wait_p50_ns, job.barrier_wait_p99_ns)),
        ("update latency", None if job.update_latency_p50_ns is None else duration_text(job.update_latency_p50_ns)),
        ("server answers", _pair(job.response_p50_ns, job.response_p99_ns)),
        ("staleness", _staleness(job)),
        ("barrier", _plan(job)),
        ("phase", _phase(job)),
        ("policy", job.plan.policy or None),
        ("near ranks", _groups(job)),
        ("steps", f"{_step(job.step)} newest, {job.steps_complete} complete, {job.steps_incomplete} incomplete"),
        ("marks lost", str(lost) if lost else None),
        ("meter's own cost", None if job.own_overhead is None else f"{job.own_overhead:.3%} of a rank's time"),
    ]


def straggler_cells(each: Straggler) -> list[str]:
    exposed = duration_text(each.exposed_ns)
    late = duration_text(each.lateness_p50_ns)
    return [str(each.rank), each.node, each.where, late, exposed, percent(each.last_share), each.verdict]


STRAGGLER_HEADINGS = ("rank", "node", "where", "late by", "cost the others", "last in", "verdict")


def rank_cells(rank: RankState) -> list[str]:
    return [
        str(rank.rank),
        rank.node,
        rank.clock_status,
        _pair(rank.wait_p50_ns, rank.wait_p99_ns) or "-",
        "-" if rank.lateness_p50_ns is None else duration_text(rank.lateness_p50_ns),
        "-" if rank.last_share is None else percent(rank.last_share),
        "-" if rank.exposed_p50_ns is None else duration_text(rank.exposed_p50_ns),
        "-" if rank.idle_share is None else percent(rank.idle_share),
    ]


RANK_HEADINGS = ("rank", "node", "clock", "waits", "late by", "last in", "exposed a step", "idle")


def _overhead(job: JobState) -> str:
    more = [("newest step", job.sync_overhead_step), ("epoch", job.sync_overhead_epoch)]
    told = ", ".join(f"{what} {percent(part)}" for what, part in more if part is not None)
    return f"{percent(job.sync_overhead)} exposed, over the window" + (f" ({told})" if told else "")


def _pair(p50_ns: int | None, p99_ns: int | None) -> str | None:
    if p50_ns is None:
        return None
    return f"{duration_text(p50_ns)} median" + ("" if p99_ns is None else f", {duration_text(p99_ns)} p99")


def _with_error(text: str | None, error_ns: int | None) -> str | None:
    if text is None:
        return None
    return f"{text}, " + ("error not known" if error_ns is None else f"each +-{duration_text(error_ns)}")


def _method(job: JobState) -> str | None:
    if job.method is None:
        return None
    within = "" if job.clock_bound_ns is None else f", right within +-{duration_text(job.clock_bound_ns)}"
    if job.arrival_skew_p50_ns is None:
        return _METHODS[job.method] + within
    suffices = "suffices" if job.trusted else "does not suffice: most differences are smaller than that"
    return f"{_METHODS[job.method]}{within}; {suffices}"


def _staleness(job: JobState) -> str | None:
    if job.staleness_max is None:
        return None
    return (
        f"{'-' if job.staleness_p50 is None else job.staleness_p50} updates behind, median; {job.staleness_max} at most"
    )


def _plan(job: JobState) -> str:
    plan = job.plan
    slack = f", slack {duration_text(plan.slack_ns)}, guard {duration_text(plan.guard_ns)}"
    how = f"timed from step {step_text(plan.from_step)}{slack}" if plan.mode == "timed" else "plain"
    return f"{how} ({plan.reason})" if plan.reason else how


def _phase(job: JobState) -> str | None:
    phase = job.plan.phase
    if phase is None:
        return None
    held = percent(phase.hold_share_ppm / 1_000_000)
    return f"steps begin {duration_text(phase.shift_ns)} into each {duration_text(phase.period_ns)}, held by at most {held}"


def _groups(job: JobState) -> str | None:
    """How many there are, by level."""
    inner, *outer = [str(len(set(level))) for level in job.plan.groups] or [""]
    how = ", in ".join([f"{inner} groups", *(f"{count} wider ones" for count in outer)]) if inner else ""
    return f"{how} ({job.groups_reason})" if how and job.groups_reason else how or job.groups_reason or None


def _step(key: int | None) -> str:
    return "-" if key is None else step_text(key)
