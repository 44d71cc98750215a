"""The text of a job's state for a terminal. Pure."""

from __future__ import annotations

from timesyncd.ipc.job_datagram import step_text
from timesyncd.ipc.job_segment import Method
from timesyncd.messages.jobs import JobState, RankState, StragglerMessage
from timesyncd.units import duration_text

_METHODS = {
    Method.ONE_CLOCK: "one clock that all ranks read",
    Method.CLOCK_BOUNDS: "the nodes' clocks",
    Method.COLLECTIVE_ENDS: "the ends of collectives, because the clocks are not comparable",
}


def percent(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{ratio:.1%}"


def job_line(job: JobState) -> str:
    """Agreement of the clocks, synchronization overhead and straggler; the terminal cuts the line, so what is long is last."""
    where = next((f" at {each.where}" for each in job.stragglers if each.rank == job.straggler_rank), "")
    straggler = "no straggler" if job.straggler_rank is None else f"straggler: rank {job.straggler_rank}{where}"
    costs, clocks = f"sync overhead {percent(job.sync_overhead)}, {straggler}", f"clocks {agreement(job)}"
    return f"{costs}, {clocks}: {job.alignment_reason}" if job.alignment_ns is None else f"{clocks}, {costs}"


def agreement(job: JobState) -> str:
    return "not comparable" if job.alignment_ns is None else f"agree within {duration_text(job.alignment_ns)}"


def job_facts(job: JobState) -> list[tuple[str, str | None]]:
    """The facts of the whole job by name; None: unknown."""
    lost = sum(rank.marks_lost for rank in job.ranks)
    return [
        ("verdict", job.verdict),
        ("sync overhead", _overhead(job)),
        ("communication/compute", None if job.comm_compute is None else f"{job.comm_compute:.2f}"),
        ("arrival skew", _with_error(_pair(job.arrival_skew_p50_ns, job.arrival_skew_p99_ns), job.clock_bound_ns)),
        ("compared by", _method(job)),
        ("clocks", agreement(job) + (f": {job.alignment_reason}" if job.alignment_reason else "")),
        ("transfer", _pair(job.transfer_p50_ns, job.transfer_p99_ns)),
        ("barrier wait", _pair(job.barrier_wait_p50_ns, job.barrier_wait_p99_ns)),
        ("update latency", None if job.update_latency_p50_ns is None else duration_text(job.update_latency_p50_ns)),
        ("server response", _pair(job.response_p50_ns, job.response_p99_ns)),
        ("staleness", _staleness(job)),
        ("barrier", _plan(job)),
        ("phase", _phase(job)),
        ("policy", job.plan.policy or None),
        ("groups of ranks", _groups(job)),
        (
            "steps",
            f"{_step(job.step)} newest; {job.steps_complete} synchronizations complete, {job.steps_incomplete} incomplete",
        ),
        ("marks lost", str(lost) if lost else None),
        ("metering overhead", None if job.own_overhead is None else f"{job.own_overhead:.3%} of the ranks' time"),
    ]


def straggler_cells(each: StragglerMessage) -> list[str]:
    exposed = duration_text(each.exposed_ns)
    late = duration_text(each.lateness_p50_ns)
    return [str(each.rank), each.node, each.where, late, exposed, percent(each.last_share), each.verdict]


STRAGGLER_HEADINGS = ("rank", "node", "where", "late by", "others waited", "last in", "verdict")


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


RANK_HEADINGS = ("rank", "node", "clock", "wait", "late by", "last in", "exposed per step", "idle")


def _overhead(job: JobState) -> str:
    more = [("newest step", job.sync_overhead_step), ("epoch", job.sync_overhead_epoch)]
    parts = ", ".join(f"{what} {percent(part)}" for what, part in more if part is not None)
    return f"{percent(job.sync_overhead)} exposed, over the window" + (f" ({parts})" if parts else "")


def _pair(p50_ns: int | None, p99_ns: int | None) -> str | None:
    if p50_ns is None:
        return None
    return f"{duration_text(p50_ns)} median" + ("" if p99_ns is None else f", {duration_text(p99_ns)} p99")


def _with_error(text: str | None, error_ns: int | None) -> str | None:
    if text is None:
        return None
    return f"{text}, " + ("error unknown" if error_ns is None else f"each +-{duration_text(error_ns)}")


def _method(job: JobState) -> str | None:
    if job.method is None:
        return None
    within = "" if job.clock_bound_ns is None else f", error within +-{duration_text(job.clock_bound_ns)}"
    if job.arrival_skew_p50_ns is None:
        return _METHODS[job.method] + within
    suffices = "sufficient" if job.trusted else "not sufficient: most differences are smaller"
    return f"{_METHODS[job.method]}{within}; {suffices}"


def _staleness(job: JobState) -> str | None:
    if job.staleness_max is None:
        return None
    return f"{'-' if job.staleness_p50 is None else job.staleness_p50} updates behind (median), {job.staleness_max} at most"


def _plan(job: JobState) -> str:
    plan = job.plan
    slack = f", slack {duration_text(plan.slack_ns)}, guard {duration_text(plan.guard_ns)}"
    mode = f"timed from step {step_text(plan.from_step)}{slack}" if plan.mode == "timed" else "plain"
    return f"{mode} ({plan.reason})" if plan.reason else mode


def _phase(job: JobState) -> str | None:
    phase = job.plan.phase
    if phase is None:
        return None
    held = percent(phase.hold_share_ppm / 1_000_000)
    return f"steps begin {duration_text(phase.shift_ns)} into each {duration_text(phase.period_ns)}, delayed by at most {held}"


def _groups(job: JobState) -> str | None:
    """The number of groups on each level."""
    inner, *outer = [str(len(set(level))) for level in job.plan.groups] or [""]
    how = ", in ".join([f"{inner} groups", *(f"{count} larger ones" for count in outer)]) if inner else ""
    return f"{how} ({job.groups_reason})" if how and job.groups_reason else how or job.groups_reason or None


def _step(key: int | None) -> str:
    return "-" if key is None else step_text(key)
