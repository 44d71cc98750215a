"""The sentences of a report: its headline, its notes, and the texts of its tables. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from timesyncd.audit.measured import MIN_STEPS_WITHOUT_FIRST
from timesyncd.audit.report import (
    AdviceKind,
    AuditReport,
    BucketReport,
    DurationReport,
    LateSpanReport,
    OverheadSourceReport,
    RareReport,
    StragglerReport,
    TransferCostReport,
    WithheldReport,
)
from timesyncd.clocks import NS_PER_S
from timesyncd.ipc.job_datagram import split_step
from timesyncd.ipc.job_segment import Method
from timesyncd.jobs.causality import StepsApart
from timesyncd.jobs.issued_calls import CallKind, IssuedCallCounts, unmetered_text

#: A cost below this share of the time is reported without a number.
_NOTHING = 0.0005

#: A sentence lists so many ranks.
_MAX_RANKS = 8

#: Load of another process lasts for seconds; a shorter recording may contain nothing else.
_LONG_ENOUGH_NS = 10 * NS_PER_S


#: What ends a step, for a reader whose job has fewer steps than expected.
_STEP_END = "a step ends when an optimizer of torch.optim updates parameters"


#: Where more of the waiting does not compare, it is unknown which rank is late.
_MAX_UNCOMPARED = 0.5


def apart_text(apart: StepsApart) -> str:
    """For people: whose steps are not those of the other ranks."""
    if not apart.ranks:
        return f"since step {step_label(apart.since)} the ranks' steps are one or more apart"
    return f"since step {step_label(apart.since)} {ranks_text(apart.ranks)} {'is' if len(apart.ranks) == 1 else 'are'} one or more steps apart from the others"


def doubt_text(report: AuditReport, apart: StepsApart | None, uncompared_share: float) -> str:
    """Why it is unknown which rank is late; empty: it is not. `uncompared_share`: the part of the waiting in groups that does not compare."""
    if apart is not None and report.method is None:
        return apart_text(apart)
    if uncompared_share > _MAX_UNCOMPARED:
        return "ranks with the same work call different synchronizations in the steps that hold most of the waiting"
    undivided = sum(source.share for source in report.sources if source.cause == "undivided")
    if report.method is not None and undivided > _MAX_UNCOMPARED:
        return "most of the waiting is in synchronizations that do not compare"
    return ""


def headline(report: AuditReport, without_steps: Sequence[int] = (), doubt: str = "") -> str:
    """
    A hang, or the straggler and its cost, or the overhead and its largest cause. `without_steps`: the ranks whose steps
    are not those of the other ranks. `doubt`: why it is unknown which rank is late.
    """
    if report.hang is not None:
        return f"The recording ends in a hang. {report.hang.sentence}"
    if not _calls(report).is_account:
        return (
            f"What synchronization costs {report.job}, and which rank is late, is unknown: "
            f"{_calls(report).unmetered_calls:,} of its calls are not metered ({unmetered_text(_calls(report))})."
        )
    if report.own_waits is not None and report.own_waits.unknown:
        return (
            f"What synchronization costs {report.job}, and which rank is late, is unknown: {ranks_text(report.own_waits.unknown)} "
            "waited in calls that are not metered."
        )
    if without_steps:
        return (
            f"What synchronization costs {report.job}, and which rank is late, is unknown: {ranks_text(without_steps)} ended fewer steps "
            f"than the others ({_STEP_END})."
        )
    if not report.steps:
        return f"No step of {report.job} has ended, so its synchronization cannot be assessed: {_STEP_END}."
    if report.sync_overhead is None:
        return f"No step of {report.job} is recorded completely, so its synchronization cannot be assessed."
    if report.world_size == 1:
        return f"{report.job} has one rank, so there is nothing to compare."
    if _trains_apart(report):
        return (
            f"{report.unreduced_steps:,} of {report.steps:,} steps reduce nothing: the ranks train apart in them, "
            "or reduce by calls that are not metered."
        )
    worst = next((straggler for straggler in report.stragglers if straggler.verdict == "straggler"), None)
    spans = [span_text(span) for span in report.late_spans if worst is None or span.rank == worst.rank]
    total = f"Synchronization takes {percent(report.sync_overhead)} of the job's time in total."
    if worst is not None:
        return " ".join([_late(worst), *spans, _straggler_cost(worst, report), total])
    if spans:
        return " ".join([*spans, total])
    overhead = f"Synchronization costs {percent(report.sync_overhead)} of this job's time"
    if report.rare is not None:
        return f"{overhead}: {rare_text(report.rare)}."
    most = f", most of it {_cause(report)}" if report.sources else ""
    return f"{overhead}{most}; {_straggler_clause(report, doubt)}."


def _trains_apart(report: AuditReport) -> bool:
    return 2 * report.unreduced_steps > report.steps and _calls(report).is_account


def _calls(report: AuditReport) -> IssuedCallCounts:
    unmetered = {CallKind(each.name, each.group_size, each.dimension): each.calls for each in report.unmetered}
    return IssuedCallCounts(report.metered_calls or 0, unmetered)


def rare_text(rare: RareReport) -> str:
    """The steps that hold most of the waiting, and what synchronization costs without them."""
    if rare.overhead_elsewhere is None:
        return rare.sentence
    return f"{rare.sentence}; the other steps have an overhead of {percent(rare.overhead_elsewhere)}"


def span_text(span: LateSpanReport) -> str:
    """In which steps a rank is late, by how much, and how that changes."""
    by = short_duration(span.lateness_p50_ns)
    if span.first_ns is not None and span.last_ns is not None:
        by = f"{short_duration(span.first_ns)} at first, {short_duration(span.last_ns)} at last"
    name = f"Rank {span.rank} on {span.node}"
    match span.from_step, span.to_step:
        case None, None:
            return f"The lateness of rank {span.rank} changes steadily: {by}."
        case first, None if first is not None:
            return f"{name} is late since step {step_label(first)}: {by} {span.place}."
        case None, last if last is not None:
            return f"{name} was late up to step {step_label(last)}: {by} {span.place}."
        case _:
            return f"{name} was late from step {step_label(span.from_step or 0)} to step {step_label(span.to_step or 0)}: {by} {span.place}."


def step_label(key: int) -> str:
    """For people: the step, preceded by its epoch unless that is 0: `4,210`, `2:1,203`."""
    epoch, step = split_step(key)
    return f"{epoch}:{step:,}" if epoch else f"{step:,}"


def _late(worst: StragglerReport) -> str:
    late = f"Rank {worst.rank} on {worst.node} is persistently late: {short_duration(worst.lateness_p50_ns)}{late_share_text(worst)} {worst.place}."
    return late if worst.group is None else f"{late} {_waited_in(worst.group, worst.dimension, worst.rank)}"


def late_share_text(late: StragglerReport) -> str:
    """In which share of the steps it is late, where that is not in all."""
    return f" in {percent(late.late_share, 0)} of the steps," if late.late_share < 1 else ""


def _waited_in(group: Sequence[int], dimension: str | None, rank: int) -> str:
    """Which ranks of its group waited for it most."""
    others = [each for each in group if each != rank]
    return f"In its {_group_name(dimension)} it is waited for by {ranks_text(others)}."


def _group_name(dimension: str | None) -> str:
    return "group" if dimension is None else f"{dimension} group"


def ranks_text(ranks: Sequence[int]) -> str:
    """For people: `rank 3`, `the ranks 1, 3 and 12 more`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:_MAX_RANKS]))
    return f"the ranks {shown}" + (f" and {len(ranks) - _MAX_RANKS} more" if len(ranks) > _MAX_RANKS else "")


def _straggler_cost(worst: StragglerReport, report: AuditReport) -> str:
    """The cost as a share of the other ranks' time."""
    elapsed_ns = report.steps * report.step_ns.value if report.step_ns else 0
    share = worst.exposed_ns / elapsed_ns if elapsed_ns else 0
    if share < _NOTHING:
        return "The other ranks' compute hides the delay, so it costs almost nothing."
    return f"Waiting for it costs the other ranks {percent(share)} of their time."


def _straggler_clause(report: AuditReport, doubt: str) -> str:
    if _recorded_ranks(report) < report.world_size:
        return f"the recording has {_recorded_ranks(report)} of {report.world_size} ranks, so no straggler can be named"
    if report.withheld:
        return withheld_text(report.withheld[0])
    if report.own_waits is not None and report.own_waits.together:
        return f"{ranks_text(report.own_waits.together)} are slow together, as with more data, so none is named"
    if doubt:
        return f"which rank is late is unknown: {doubt}"
    if report.method is None and not report.groups and not report.messages and report.own_waits is None:
        return "the ranks' times are not comparable, so no straggler can be named"
    if report.stragglers:
        return f"rank {report.stragglers[0].rank} seems late, but by less than the error of the clocks"
    if report.lateness_may_be_chance:
        return "a rank is late in most steps, but in so few steps that may be chance, so none is named"
    if report.alone:
        return f"{ranks_text(report.alone)} {'has' if len(report.alone) == 1 else 'have'} no other rank with the same work, so no straggler is named there"
    return "no rank is persistently late"


def withheld_text(found: WithheldReport) -> str:
    """Why none of these late ranks is named."""
    return (
        f"{ranks_text(found.ranks)} of one {_group_name(found.dimension)} are all late, by {short_duration(found.lateness_ns)} or more: "
        "more work for them and slow ranks look the same, so none is named"
    )


def _recorded_ranks(report: AuditReport) -> int:
    return sum(bool(wait.node) for wait in report.wait_ns)


def _cause(report: AuditReport) -> str:
    """
    The largest cause. Waits for ranks of which none is persistently late are one cause: each rank comes last sometimes,
    so naming the one that did so most would accuse it, unless the wait was for hardly any other one.
    """
    most = report.sources[0]
    waits: dict[str, float] = {}
    for source in report.sources:
        if source.cause == "wait":
            waits[source.where] = waits.get(source.where, 0.0) + source.share
    where = max(waits, key=lambda each: waits[each], default="")
    if waits and waits[where] >= most.share:
        return f"({percent(waits[where], 0)}) waiting for {_waited_for(report, where)} at {where}"
    match most.cause:
        case "transfer":
            return f"({percent(most.share, 0)}) the transfer of {most.where}"
        case "request":
            return f"({percent(most.share, 0)}) rank {most.rank}'s requests to a parameter server"
        case _:
            return f"({percent(most.share, 0)}) at {most.where}"


#: Waits are for one rank if so much of them is. Of two healthy ranks each comes last about as often.
_ONE_RANK = 0.8


def _waited_for(report: AuditReport, where: str) -> str:
    waits = [source for source in report.sources if source.cause == "wait" and source.where == where]
    if waits[0].rank is None or waits[0].share < _ONE_RANK * sum(source.share for source in waits):
        return "one another"
    return f"rank {waits[0].rank}"


def cause_text(source: OverheadSourceReport) -> str:
    """The cause as a table's cell."""
    match source.cause:
        case "wait":
            rank = "one another" if source.rank is None else f"rank {source.rank}"
            return f"waiting for {rank}"
        case "transfer":
            return "transfer after the last arrival"
        case "request":
            return f"requests of rank {source.rank} to a parameter server"
        case _:
            return "waiting and transfer, which the clocks cannot separate"


def notes(
    report: AuditReport,
    whole_steps: int,
    unwaited: int = 0,
    modules: Sequence[int] = (),
    without_steps: Sequence[int] = (),
    apart: StepsApart | None = None,
) -> list[str]:
    """
    The limits of the figures, one sentence or two each. `modules`: the bytes of modules whose steps alternate.
    `without_steps`: as in `headline`. `apart`: of an Attribution.
    """
    of_steps = []
    if apart is not None and report.method is not None:
        text = apart_text(apart)
        of_steps.append(f"{_capital(text)}, so only the steps before that one are assessed.")
    if without_steps:
        of_steps.append(
            f"{_capital(ranks_text(without_steps))} ended less than half as many steps as another rank, so their synchronizations belong to "
            "no common step: no overhead is stated and no rank is named."
        )
    has_to_compare = not without_steps and _has_to_compare(report, unwaited)
    return [*_notes(report, whole_steps, unwaited, has_to_compare), *of_steps, *_module_notes(modules)]


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _module_notes(modules: Sequence[int]) -> Iterator[str]:
    if modules:
        yield (
            f"{len(modules)} modules are updated in turn ({' and '.join(map(_megabytes, modules))} MB of gradients): each update counts as a step, "
            "so an iteration of the training loop is several steps."
        )


def _notes(report: AuditReport, whole_steps: int, unwaited: int, has_to_compare: bool) -> Iterator[str]:
    if report.world_size == 1:
        yield "One rank: there is nothing to compare."
    if report.step_ns and report.step_ns.low is None:
        yield (
            f"{whole_steps} steps are too few for confidence intervals: about 100 are needed, and several times as many "
            "where slow steps follow one another."
        )
    if whole_steps < report.steps - 2:
        yield f"{report.steps - whole_steps} of {report.steps} steps are incomplete (a mark is missing) and are omitted."
    if report.steps >= MIN_STEPS_WITHOUT_FIRST:
        yield "The first step is omitted: it contains one-time work."
    if report.stragglers and report.step_ns and whole_steps * report.step_ns.value < _LONG_ENOUGH_NS:
        yield (
            f"The recording covers only {short_duration(whole_steps * report.step_ns.value)}: over so short a time, another process "
            "on a rank's core also makes that rank late. Record longer."
        )
    if _trains_apart(report):
        yield "No remedy is offered: in most steps there is no synchronization to replay."
    elif report.unreduced_steps and _calls(report).is_account:
        yield f"{report.unreduced_steps:,} of {report.steps:,} steps reduce nothing, so they are not replayed."
    if unwaited:
        yield (
            f"{unwaited} synchronizations did not make all ranks wait: some ranks left before others arrived (local SGD, a group of "
            "some ranks, marks that are a step apart, or a wrong clock). No rank counts as late there."
        )
    places = [each.place for each in report.stragglers] + [each.place for each in report.late_spans]
    if any(place.startswith("before ") for place in places):
        yield (
            "Before the first synchronization of a step: loading data, forward, backward, a checkpoint and garbage collection are one "
            "place, since no mark separates them."
        )
    if report.unmetered and _calls(report).is_account:
        yield f"Not metered: {unmetered_text(_calls(report))}; {report.metered_calls:,} calls are."
    if not _calls(report).is_account:
        yield "No overhead is stated, no remedy is offered and no rank is named: the waits in those calls leave no mark."
    yield from _group_notes(report)
    if report.marks_lost:
        yield f"{report.marks_lost} marks were lost."
    if report.method is Method.COLLECTIVE_ENDS:
        yield (
            "The clocks of the nodes are not known to agree. The ranks were aligned on the ends of their collectives, which is a "
            "statistical estimate over all steps, not a bound."
        )
    if _recorded_ranks(report) < report.world_size:
        yield f"The recording has {_recorded_ranks(report)} of {report.world_size} ranks: put the *.marks files of all nodes into one folder."
    elif report.method is None and has_to_compare:
        yield "The ranks' clocks are not comparable: durations on each rank are correct, lateness between ranks is unknown."
    if any(straggler.verdict == "inconclusive" for straggler in report.stragglers):
        yield "Inconclusive: the lateness is within the possible difference of the clocks."
    if report.lateness_may_be_chance:
        yield (
            "A rank is late in most steps, but lateness that changes slowly by itself looks the same in so few: no rank is "
            "named for it. Record several times as many steps."
        )


def _has_to_compare(report: AuditReport, unwaited: int) -> bool:
    """Whether ranks would be compared by their clocks, if these allowed it."""
    in_groups = report.groups or report.messages or report.own_waits is not None
    synchronizes = not unwaited and 2 * report.unreduced_steps <= report.steps
    is_job = report.world_size > 1 and report.steps > 0
    return not in_groups and is_job and synchronizes and _calls(report).is_account


def _group_notes(report: AuditReport) -> Iterator[str]:
    if report.own_waits is not None:
        yield (
            "The ranks synchronize in groups, and a hub has one mark a step of each: its own time, and for how long it only waited. "
            "Ranks with the same work are compared by their own times. A rank is named only if no other one is slow with it. Groups and "
            "the gains of remedies are in the report of run-audit."
        )
        if report.own_waits.place_unknown is not None:
            yield f"In which part of a step the rank is slow is unknown: {report.own_waits.place_unknown}."
    if not report.groups and not report.messages:
        return
    yield (
        "The ranks synchronize in groups, so each rank's own time, without its waits, is compared with that of the ranks that do "
        "the same work. Each is measured on its own clock."
    )
    if len({remedy.reason for remedy in report.remedies}) == 1:
        yield f"No remedy is replayed: {report.remedies[0].reason}."
    elif report.remedies:
        yield "A remedy's gain is that of a replay of all groups and messages: a rank that is no longer slow lets others wait less."
    if report.stragglers:
        yield "What the others waited for a rank is at most what it takes longer than its like, and at most what they waited in all."
    for each in report.withheld:
        text = withheld_text(each)
        yield f"{_capital(text)}."
    if report.alone:
        has = "has" if len(report.alone) == 1 else "have"
        yield f"{_capital(ranks_text(report.alone))} {has} no other rank with the same work: lateness and more work look the same there, so it is unknown."


def bucket_lines(found: BucketReport) -> list[str]:
    """Sentences on the buckets, the cost of a reduction, and the suggestion."""
    sizes = f", of {_megabytes(min(found.bytes))} to {_megabytes(max(found.bytes))} MB" if len(found.bytes) > 1 else ""
    count = f"{len(found.bytes)} bucket{'s' if sizes else ''}"
    lines = [f"A step has {_megabytes(sum(found.bytes))} MB of gradients in {count}{sizes}."]
    if found.exposed_ns is not None:
        lines[0] += f" After its last gradient it waits {short_duration(found.exposed_ns)} for their reduction."
    if found.latency_ns is not None and found.bytes_per_s is not None:
        lines.append(
            f"A reduction takes about {short_duration(found.latency_ns)} plus the transfer of its gradients at {_megabytes(found.bytes_per_s)} MB/s."
        )
    lines.append(_suggestion(found))
    return lines if found.order is None else [*lines, f"{found.order[0].upper()}{found.order[1:]}."]


def exposed_part_lines(found: AuditReport) -> list[str]:
    """Sentences on what limits the synchronizations, and on what another link would save."""
    parts = found.exposed_parts
    if parts is None:
        return [f"Latency and bandwidth are not separated: {found.no_exposed_parts}.", *network_sentences(found)]
    shown = [
        ("waiting for ranks", parts.waiting),
        ("latency", parts.latency),
        ("packing", parts.serialization),
        ("bandwidth", parts.bandwidth),
        ("not explained by these", parts.rest),
    ]
    listed = ", ".join(f"{_with_error(part)} {name}" for name, part in shown if part is not None)
    lines = [f"Of {short_duration(parts.exposed.ns)} that a step waits: {listed}."]
    lines += [
        f"{cost.kind}: {_with_error(cost.latency)} plus the transfer at {_megabytes(cost.bytes_per_s)} MB/s (95 %: {_rates(cost)})."
        for cost in parts.costs
    ]
    lines.append(
        f"A link twice as fast would save {_with_error(parts.saved_by_bandwidth)} per step, half the latency {_with_error(parts.saved_by_latency)}."
    )
    unknown = f"What limits the job is unknown: {parts.reason}."
    return [*lines, limit_text(found) or " ".join([unknown, *network_sentences(found)])]


_LIMITS = {
    "waiting": "Most of the exposed time is waiting for ranks: a faster network saves little.",
    "latency": "Most of the exposed time is latency: fewer and larger transfers save most.",
    "serialization": "Most of the exposed time is packing and compressing: a cheaper compression, or none, saves most.",
    "bandwidth": "Most of the exposed time is bandwidth: fewer bytes or a faster link save most.",
    "loss": "Most of the exposed time depends on no size, and lost segments can explain it: repair the network first.",
}

#: The advice that shortens a part of the exposed time.
_AGAINST: Mapping[str, tuple[AdviceKind, ...]] = {
    "waiting": (AdviceKind.BATCH_SHARES, AdviceKind.MOVE_RANK, AdviceKind.SWAP_NODE),
    "latency": (AdviceKind.BUCKETS, AdviceKind.LOCAL_STEPS),
    "bandwidth": (AdviceKind.HALF_PRECISION, AdviceKind.LOCAL_STEPS),
}


def limit_text(found: AuditReport) -> str | None:
    """
    In one line what limits the synchronizations, what the best change against it saves, and what the connections show;
    None: it is not known.
    """
    limit = "unknown" if found.exposed_parts is None else found.exposed_parts.limit
    if limit == "unknown":
        return None
    parts = [_LIMITS[limit]]
    priced = [one for one in found.advice if one.kind in _AGAINST.get(limit, ()) and one.gain is not None]
    best = max(priced, key=lambda one: 0.0 if one.gain is None else one.gain.value, default=None)
    if best is not None and best.gain is not None:
        parts.append(f"Best change against it: {best.title}, which saves {percent(best.gain.value)} of the time.")
    return " ".join([*parts, *network_sentences(found)])


def network_sentences(found: AuditReport) -> list[str]:
    """What the ranks' connections show; empty: nothing is known of them."""
    lines = [] if found.network is None else found.network.evidence
    return [f"{line[0].upper()}{line[1:]}." for line in lines]


def _with_error(part: DurationReport) -> str:
    return f"{short_duration(part.ns)} ± {short_duration(part.error_ns)}"


def _rates(cost: TransferCostReport) -> str:
    low = f"{_megabytes(cost.bytes_per_s_low)} MB/s"
    return f"from {low}" if cost.bytes_per_s_high is None else f"{low} to {_megabytes(cost.bytes_per_s_high)} MB/s"


def _suggestion(found: BucketReport) -> str:
    if found.caps_mib is None or found.saved_ns is None or found.error_ns is None:
        return f"No other sizes are suggested: {found.reason}."
    return f"Suggested: {sizes_text(found.caps_mib)}, which would save {short_duration(found.saved_ns)} per step, with an error of at most {short_duration(found.error_ns)}."


def sizes_text(caps_mib: Sequence[float]) -> str:
    """The sizes as text, such as `1, then 25 MiB`; equal consecutive sizes are one."""
    return ", then ".join(f"{cap:g}" for cap, _ in groupby(caps_mib)) + " MiB"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.3g}" if size < 999.5e6 else f"{size / 1e6:,.0f}"


def percent(ratio: float, digits: int = 1) -> str:
    """The ratio in percent; a value above 0 is never printed as 0."""
    shown = f"{100 * ratio:.{digits}f}"
    return f"{shown if float(shown) or not ratio else f'{100 * ratio:.1g}'} %"


def short_duration(ns: float) -> str:
    """A duration with three digits, such as `4.83 ms`."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("\N{MICRO SIGN}s", 1e3)):
        if abs(ns) >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.0f} ns"
