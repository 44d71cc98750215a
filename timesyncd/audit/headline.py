"""The report's words: the sentence that matters, and what a reader has to know of the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from timesyncd.audit.measured import MIN_STEPS_WITHOUT_FIRST
from timesyncd.audit.report import AuditReport, BucketReport, OverheadSourceReport, StragglerReport
from timesyncd.clocks import NS_PER_S
from timesyncd.ipc.job_segment import Method

#: A cost below this share of the time is none worth a number.
_NOTHING = 0.0005

#: A scheduler's whims last for seconds.
_LONG_ENOUGH_NS = 10 * NS_PER_S


def headline(report: AuditReport) -> str:
    """Who costs the job how much, in one sentence."""
    if report.sync_overhead is None:
        return f"No step of {report.job} is recorded from begin to end, so nothing can be said of its synchronization."
    if report.world_size == 1:
        return f"{report.job} has one rank: there is nothing to compare, and nobody to wait for."
    worst = next((straggler for straggler in report.stragglers if straggler.verdict == "straggler"), None)
    if worst is not None:
        return f"{_late(worst)} {_its_cost(worst, report)} Synchronization in all: {percent(report.sync_overhead)} of the time."
    named = f"Synchronization costs {percent(report.sync_overhead)} of this job's time"
    most = f", most of it {_cause(report.sources[0])}" if report.sources else ""
    return f"{named}{most}; {_nobody(report)}."


def _late(worst: StragglerReport) -> str:
    return f"Rank {worst.rank} on {worst.node} is persistently late: {short_duration(worst.lateness_p50_ns)} at {worst.where}."


def _its_cost(worst: StragglerReport, report: AuditReport) -> str:
    """Of the others' time, each rank's alike."""
    elapsed_ns = report.steps * report.step_ns.value if report.step_ns else 0
    share = worst.exposed_ns / elapsed_ns if elapsed_ns else 0
    if share < _NOTHING:
        return "The others had something else to do meanwhile, so it costs next to nothing."
    return f"Waiting for it costs the others {percent(share)} of their time."


def _nobody(report: AuditReport) -> str:
    if _heard(report) < report.world_size:
        return f"of {report.world_size} ranks {_heard(report)} are recorded here, so nobody can be named"
    if report.method is None:
        return "the ranks do not compare, so nobody can be named"
    if report.stragglers:
        return f"rank {report.stragglers[0].rank} seems late, by less than the clocks can tell"
    return "no rank is persistently late"


def _heard(report: AuditReport) -> int:
    return sum(bool(wait.node) for wait in report.wait_ns)


def _cause(source: OverheadSourceReport) -> str:
    match source.cause:
        case "wait" if source.rank is not None:
            return f"({percent(source.share, 0)}) waiting for rank {source.rank} at {source.where}"
        case "wait":
            return f"({percent(source.share, 0)}) waiting for one another at {source.where}"
        case "transfer":
            return f"({percent(source.share, 0)}) the transfer of {source.where}"
        case "request":
            return f"({percent(source.share, 0)}) rank {source.rank}'s requests to a parameter server"
        case _:
            return f"({percent(source.share, 0)}) at {source.where}"


def cause_text(source: OverheadSourceReport) -> str:
    """For a table's row."""
    match source.cause:
        case "wait":
            who = "one another" if source.rank is None else f"rank {source.rank}"
            return f"waiting for {who}"
        case "transfer":
            return "transfer, all ranks there"
        case "request":
            return f"requests of rank {source.rank} to a parameter server"
        case _:
            return "waiting and transfer, which the clocks do not tell apart"


def notes(report: AuditReport, whole_steps: int, unwaited: int = 0) -> list[str]:
    """What limits the figures."""
    return list(_notes(report, whole_steps, unwaited))


def _notes(report: AuditReport, whole_steps: int, unwaited: int) -> Iterator[str]:
    if report.world_size == 1:
        yield "One rank: there is nothing to compare."
    if report.step_ns and report.step_ns.low is None:
        yield (
            f"{whole_steps} steps are too few for confidence intervals: they need about 100, and more where slow steps follow "
            "one another."
        )
    if whole_steps < report.steps - 2:
        yield f"{report.steps - whole_steps} of {report.steps} steps are not whole (a mark is missing), and are left out."
    if report.steps >= MIN_STEPS_WITHOUT_FIRST:
        yield "The first step is left out: it holds what is done once."
    if report.stragglers and report.step_ns and whole_steps * report.step_ns.value < _LONG_ENOUGH_NS:
        yield (
            f"All of it is {short_duration(whole_steps * report.step_ns.value)}: who is late throughout so short a time may only have had "
            "the machine's other load beside it. Record longer."
        )
    if unwaited:
        yield (
            f"{unwaited} synchronizations were no wait for all ranks, since some left before others came (local SGD, a group of some "
            "ranks, marks that are a step apart, or a clock that is wrong): nobody is late there."
        )
    if report.marks_lost:
        yield f"{report.marks_lost} marks were lost on their way."
    if report.method is Method.COLLECTIVE_ENDS:
        yield (
            "The clocks of the nodes are not known to agree: ranks were aligned on the ends of their collectives, which is a "
            "statistical estimate over all steps and no bound."
        )
    if _heard(report) < report.world_size:
        yield f"Of {report.world_size} ranks {_heard(report)} are recorded here: put the *.marks of all nodes into one folder."
    elif report.method is None and report.world_size > 1 and not unwaited:
        yield "The ranks' clocks do not compare: durations on each rank are right, lateness between ranks is not known."
    if any(straggler.verdict == "inconclusive" for straggler in report.stragglers):
        yield "Inconclusive: the lateness is within what the clocks may differ by."


def bucket_lines(found: BucketReport) -> list[str]:
    """The buckets, what a reduction of one costs, and what is suggested."""
    sizes = f", of {_megabytes(min(found.bytes))} to {_megabytes(max(found.bytes))} MB" if len(found.bytes) > 1 else ""
    count = f"{len(found.bytes)} bucket{'s' if sizes else ''}"
    lines = [f"A step has {_megabytes(sum(found.bytes))} MB of gradients in {count}{sizes}."]
    if found.exposed_ns is not None:
        lines[0] += f" Behind the last gradient it waits {short_duration(found.exposed_ns)} for their reduction."
    if found.latency_ns is not None and found.bytes_per_s is not None:
        lines.append(
            f"A reduction takes about {short_duration(found.latency_ns)} and the time of its gradients at {_megabytes(found.bytes_per_s)} MB/s."
        )
    lines.append(_suggested(found))
    return lines if found.order is None else [*lines, f"{found.order[0].upper()}{found.order[1:]}."]


def _suggested(found: BucketReport) -> str:
    if found.caps_mib is None or found.saved_ns is None or found.error_ns is None:
        return f"No other sizes are suggested: {found.reason}."
    return f"Suggested: {sizes_text(found.caps_mib)}, which would save {short_duration(found.saved_ns)} of a step, within {short_duration(found.error_ns)}."


def sizes_text(caps_mib: Sequence[float]) -> str:
    """`1, then 25 MiB`; equal sizes in a row as one."""
    return ", then ".join(f"{cap:g}" for cap, _ in groupby(caps_mib)) + " MiB"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.3g}" if size < 999.5e6 else f"{size / 1e6:,.0f}"


def percent(ratio: float, digits: int = 1) -> str:
    """What is not quite nothing is never shown as 0."""
    shown = f"{100 * ratio:.{digits}f}"
    return f"{shown if float(shown) or not ratio else f'{100 * ratio:.1g}'} %"


def short_duration(ns: float) -> str:
    """A duration with three digits: `4.83 ms`."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("\N{MICRO SIGN}s", 1e3)):
        if abs(ns) >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.0f} ns"
