"""
The report of `timesyncd audit --from`: which rank, stage or sequences make a step longer, and by how much. Pure.

`schemas/blame_report.json` is the schema of its report.json.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median_low
from typing import Literal

from pydantic import Field

from timesyncd.audit.group_transfers import GroupTransfers, group_transfers, transfer_lines
from timesyncd.audit.headline import percent, short_duration
from timesyncd.ipc.wire_types import Int64
from timesyncd.jobs.group_placing import placed
from timesyncd.jobs.step_causes import Cause, CauseKind, UnknownReason
from timesyncd.jobs.step_graph import CircularError
from timesyncd.jobs.trace_clocks import TraceClockOffset
from timesyncd.jobs.trace_joining import Joined, JoinError, absent_ranks, join, rank_list
from timesyncd.jobs.trace_steps import with_equal_steps
from timesyncd.jobs.what_if import MAX_MISFIT, WhatIf, analyse
from timesyncd.messages.node import Message
from timesyncd.traces.operations import RankTrace, UnusableTrace

#: The longest waits that the report lists.
_MOST_WAITS = 20

#: Clocks that are further apart than this are rarer than traces of two runs.
_OTHER_RUN_NS = 60_000_000_000

#: A longer time is damage, and would not fit the report.
_MAX_NS = float(1 << 60)


class BlameCause(Message):
    """
    A cause and its cost. `excess`: how much longer it takes than its like, as a share; of sequences the relative
    standard deviation of the micro-batches' work. `step_ns_without`: the mean step without this cause alone.
    `slowdown`: the step over that. `explains`: its share of the slowdown against the ideal; null: there is none.

    `verdict` "unknown": several causes would look the same, for `reason_code`; then `rank` is null.
    """

    kind: CauseKind
    rank: Int64 | None
    host: str | None
    stage: Int64 | None
    ranks: list[Int64]
    excess: float
    step_ns_without: Int64
    slowdown: float
    explains: float | None
    verdict: Literal["named", "unknown"]
    reason_code: UnknownReason | None
    sentence: str


class BlameWait(Message):
    """How long a step `rank` waited for `awaited`, which arrived last at an operation of both."""

    rank: Int64
    awaited: Int64
    kind: str
    wait_ns: Int64


class BlameStage(Message):
    """A pipeline stage: its ranks, and the slowdown that its operations alone cause (equation 2)."""

    stage: Int64
    ranks: list[Int64]
    slowdown: float | None


class BlameClock(Message):
    """A trace's clock minus that of the lowest rank, by the ends of what they did together; null: not aligned."""

    rank: Int64
    host: str
    offset_ns: Int64 | None
    error_ns: Int64 | None


class BlameReport(Message):
    """
    What each step would take without a cause. Times are in ns; null: unknown.

    `slowdown`: S of Lin et al. (OSDI 2025), `step_ns` over `ideal_ns`. `without_causes_ns`: the step without all causes
    of the list, the costliest first. `by_kind`: the slowdown that operations of a kind alone cause. `replay_misfit`: by
    how much the replay of the recorded durations misses the recorded time, at worst. `transfers`: the costliest collectives first; empty
    where no operations could be joined. `unknown_code`, `unknown`: why no
    cause is named.
    """

    version: Int64 = 1
    files: list[str]
    world_size: Int64 | None
    ranks: list[Int64]
    absent_ranks: list[Int64]
    headline: str
    steps: Int64 | None = None
    step_ns: Int64 | None = None
    ideal_ns: Int64 | None = None
    without_causes_ns: Int64 | None = None
    slowdown: float | None = None
    causes: list[BlameCause] = Field(default_factory=list)
    stages: list[BlameStage] = Field(default_factory=list)
    by_kind: dict[str, float] = Field(default_factory=dict)
    waits: list[BlameWait] = Field(default_factory=list)
    clocks: list[BlameClock] = Field(default_factory=list)
    replay_misfit: float | None = None
    transfers: list[GroupTransfers] = Field(default_factory=list)
    unknown_code: str | None = None
    unknown: str | None = None
    notes: list[str] = Field(default_factory=list)


def blame_report(files: Sequence[str], traces: Sequence[RankTrace | UnusableTrace]) -> BlameReport:
    """The report of all traces of a job."""
    traces = _placed(traces)
    usable = [trace for trace in traces if isinstance(trace, RankTrace)]
    unusable = [trace for trace in traces if isinstance(trace, UnusableTrace)]
    found = BlameReport(
        files=list(files),
        world_size=max((trace.world_size or 0 for trace in traces), default=0) or None,
        ranks=sorted({trace.rank for trace in traces if trace.rank is not None}),
        absent_ranks=_absent(usable, unusable),
        headline="",
        notes=list(_progress(traces)),
    )
    if unusable:
        first = unusable[0]
        others = f" ({len(unusable)} traces lack this)" if len(unusable) > 1 else ""
        return _unknown(found, "not_timed", f"{first.name}: {first.reason}{others}")
    if (reason := _other_run(usable)) is not None:
        return _unknown(found, "other_run", reason)
    try:
        joined = join(usable)
        result = analyse(joined.graph)
    except JoinError as error:
        return _unknown(found, error.code, str(error))
    except CircularError as error:
        return _unknown(found, UnknownReason.CIRCULAR, str(error))
    if isinstance(result, WhatIf) and not result.step_ns < _MAX_NS:
        return _unknown(found, "not_timed", "the recorded times are centuries apart")
    if isinstance(result, UnknownReason):
        return _unknown(
            found,
            result,
            "the operations wait for one another in a circle, so the traces are not of one run",
        )
    return _filled(found, joined, result, usable)


def _other_run(traces: Sequence[RankTrace]) -> str | None:
    """The ranks whose traces were recorded at another time than most. None: all at one time."""
    spans = {
        trace.rank: (trace.communications[0].begin_ns, trace.communications[-1].end_ns)
        for trace in traces
        if trace.communications
    }
    if len(spans) < 2:
        return None
    middle = median_low(begin for begin, _ in spans.values())
    slack_ns = _OTHER_RUN_NS + max(end - begin for begin, end in spans.values())
    far = {rank: begin - middle for rank, (begin, _) in spans.items() if abs(begin - middle) > slack_ns}
    if not far:
        return None
    which = f"ranks {rank_list(sorted(far))}" if len(far) > 1 else f"rank {min(far)}"
    apart_s = max(map(abs, far.values())) / 1e9
    return f"the traces of {which} are {apart_s:,.0f} s away from the others, so they are of another run, or a clock is wrong"


def _placed(traces: Sequence[RankTrace | UnusableTrace]) -> list[RankTrace | UnusableTrace]:
    usable = [trace for trace in traces if isinstance(trace, RankTrace)]
    return [*placed(usable), *(trace for trace in traces if isinstance(trace, UnusableTrace))]


def _absent(usable: Sequence[RankTrace], unusable: Sequence[UnusableTrace]) -> list[int]:
    size = max((trace.world_size or 0 for trace in unusable), default=0)
    have = {trace.rank for trace in unusable}
    return sorted(({*absent_ranks(usable)} | ({*range(size)} - {trace.rank for trace in usable})) - have)


def _unknown(found: BlameReport, code: str, reason: str) -> BlameReport:
    headline = f"Which rank to blame is unknown: {reason}."
    return found.model_copy(update={"unknown_code": str(code), "unknown": reason, "headline": headline})


def _filled(found: BlameReport, joined: Joined, result: WhatIf, traces: Sequence[RankTrace]) -> BlameReport:
    hosts = {trace.rank: trace.host for trace in traces}
    stages: dict[int, list[int]] = defaultdict(list)
    for rank, stage in joined.graph.stages.items():
        stages[stage].append(rank)
    filled = found.model_copy(
        update={
            "steps": result.steps,
            "step_ns": round(result.step_ns),
            "ideal_ns": round(result.ideal_ns),
            "without_causes_ns": round(result.without_causes_ns),
            "slowdown": result.slowdown,
            "transfers": group_transfers(list(with_equal_steps({trace.rank: trace for trace in traces}).values())),
            "causes": [_cause(cause, joined, hosts) for cause in result.causes],
            "stages": [
                BlameStage(stage=stage, ranks=ranks, slowdown=result.by_stage.get(stage))
                for stage, ranks in sorted(stages.items())
            ],
            "by_kind": result.by_kind,
            "waits": [
                BlameWait(
                    rank=wait.rank, awaited=wait.awaited, kind=wait.kind, wait_ns=round(wait.waited_ns / result.steps)
                )
                for wait in result.waits[:_MOST_WAITS]
            ],
            "clocks": [_clock(trace, joined.offsets) for trace in traces],
            "replay_misfit": result.misfit,
            "notes": [*found.notes, *joined.notes, *_notes(joined, traces)],
        }
    )
    if result.unknown is UnknownReason.UNDECIDED:
        return _unknown(
            filled,
            result.unknown,
            f"a rank computes {percent(result.undecided, 0)} longer than its like, but {result.steps} steps that vary so much do "
            "not show whether it is slow: record more steps",
        )
    if result.unknown is UnknownReason.REPLAY_MISFIT:
        return _unknown(
            filled,
            result.unknown,
            f"the replay misses the recorded time by {percent(result.misfit)}, more than {percent(MAX_MISFIT, 0)}, so the "
            "traces do not show all that the ranks waited for",
        )
    return filled.model_copy(update={"headline": _headline(filled, joined)})


def _clock(trace: RankTrace, offsets: Mapping[int, TraceClockOffset]) -> BlameClock:
    offset = offsets.get(trace.rank)
    if offset is not None and not abs(offset.offset_ns) + offset.error_ns < _MAX_NS:
        offset = None
    return BlameClock(
        rank=trace.rank,
        host=trace.host,
        offset_ns=None if offset is None else round(offset.offset_ns),
        error_ns=None if offset is None else round(offset.error_ns),
    )


def _cause(cause: Cause, joined: Joined, hosts: Mapping[int, str]) -> BlameCause:
    return BlameCause(
        kind=cause.kind,
        rank=cause.rank,
        host=None if cause.rank is None else hosts.get(cause.rank),
        stage=cause.stage,
        ranks=list(cause.ranks),
        excess=cause.excess,
        step_ns_without=round(cause.without_ns),
        slowdown=cause.slowdown,
        explains=cause.explains,
        verdict="named" if cause.unknown is None else "unknown",
        reason_code=cause.unknown,
        sentence=_sentence(cause, joined, hosts),
    )


def _sentence(cause: Cause, joined: Joined, hosts: Mapping[int, str]) -> str:
    what = _what(cause, joined, hosts)
    if cause.without_ns >= cause.step_ns:
        return f"{what} Alone it costs nothing: another cause hides it."
    without, step = short_duration(cause.without_ns), short_duration(cause.step_ns)
    return f"{what} Without it a step takes {without} instead of {step} (slowdown {cause.slowdown:.2f})."


def _what(cause: Cause, joined: Joined, hosts: Mapping[int, str]) -> str:
    more = percent(cause.excess, 0)
    match cause.kind, cause.unknown:
        case CauseKind.RANK, _:
            where = f" on {host}" if (host := hosts.get(cause.rank or 0)) else ""
            return f"Rank {cause.rank}{where} computes {more} longer than the ranks that do the same work."
        case CauseKind.STAGE, None:
            last = " (the last)" if cause.stage == max(joined.graph.stages.values()) else ""
            return f"Stage {cause.stage}{last} computes {more} longer than the other stages."
        case CauseKind.STAGE, _:
            return (
                f"Stage {cause.stage} computes {more} longer than the other stages, and rank {rank_list(cause.ranks)} is its "
                "only rank: a slow rank and an unbalanced stage look the same, so neither is named."
            )
        case CauseKind.TRANSFER, _:
            return (
                f"Transfers between the ranks {rank_list(cause.ranks)} take {more} longer than in groups of the same "
                "kind; which of them is the cause is unknown."
            )
        case _, UnknownReason.DATA_OR_NODE:
            return (
                f"The ranks {rank_list(cause.ranks)}, which work on the same data, all compute {more} longer: more data and "
                "a slow node look the same, so no rank is named."
            )
        case _, UnknownReason.SEQUENCES_OR_PAUSES:
            return (
                f"The work of all ranks in turn varies by {more} (standard deviation): unequal sequences and pauses look "
                "the same, so which it is stays unknown."
            )
        case _:
            return (
                f"The micro-batches take unequally long (standard deviation {more}) on all ranks in turn, as unequal "
                "sequences do."
            )


def _headline(report: BlameReport, joined: Joined) -> str:
    if not report.causes:
        step = short_duration(report.step_ns or 0)
        return (
            f"No rank, no stage and no sequence is to blame for at least 1 % of a step of {step}"
            f"{'' if _has_peers(joined) else ', as far as ranks that do the same work show'}."
        )
    named = [cause for cause in report.causes if cause.verdict == "named"]
    return (named or report.causes)[0].sentence


def _has_peers(joined: Joined) -> bool:
    return min(Counter(joined.graph.stages.values()).values()) > 1


def _notes(joined: Joined, traces: Sequence[RankTrace]) -> Iterator[str]:
    unaligned = [trace.rank for trace in traces if trace.rank not in joined.offsets]
    if unaligned:
        yield (
            f"The clocks of the ranks {rank_list(unaligned)} are not aligned: they share no collective with the others, or "
            "messages go one way only. Durations do not depend on it."
        )
    if aligned := [offset.error_ns for offset in joined.offsets.values() if offset.error_ns]:
        yield (
            f"The traces' clocks are aligned on the ends of what the ranks did together, within {short_duration(max(aligned))}: an "
            "estimate, not a bound. The causes rest on durations, each by one clock."
        )
    if any(trace.busy is None for trace in traces):
        yield (
            "The traces do not show computing: every communication counts as waited for, so what overlapped with computing "
            "is blamed too much."
        )
    if not _has_peers(joined):
        yield "Some ranks have no other rank that does the same work, so their lateness cannot be distinguished from their work."


def _progress(traces: Sequence[RankTrace | UnusableTrace]) -> Iterator[str]:
    """Ranks whose flight recorder ends earlier than that of the others in a group: they did not call what others did."""
    groups: dict[str, dict[int, tuple[int, str]]] = defaultdict(dict)
    for trace in traces:
        for group, number, title in trace.progress:
            if trace.rank is not None:
                groups[group][trace.rank] = number, title
    for group, last in sorted(groups.items()):
        most, title = max(last.values())
        behind = sorted(rank for rank, (number, _) in last.items() if number < most)
        if behind:
            yield (
                f"In process group {group} the recorders of the ranks {rank_list(behind)} end before {title} {most}, which the "
                f"other {len(last) - len(behind)} called."
            )


def blame_lines(found: BlameReport) -> list[str]:
    """Lines for a terminal: the headline, the other causes, who waited for which rank, and the notes."""
    lines = [found.headline]
    lines += [f"  {cause.sentence}" for cause in found.causes if cause.sentence != found.headline]
    if found.slowdown is not None and found.step_ns is not None and found.ideal_ns is not None:
        lines.append(
            f"  {found.steps} step{'' if found.steps == 1 else 's'} of {short_duration(found.step_ns)}; with the mean of equal work {short_duration(found.ideal_ns)} "
            f"(slowdown {found.slowdown:.2f})"
        )
    lines += [
        f"  rank {wait.rank} waited {short_duration(wait.wait_ns)} a step for rank {wait.awaited} ({wait.kind})"
        for wait in found.waits[:3]
    ]
    lines += [f"  {line}" for line in transfer_lines(found.transfers)]
    return [*lines, *(f"  note: {note}" for note in found.notes)]
