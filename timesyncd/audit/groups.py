"""What a report states of a job that synchronizes in groups: its communicators, its messages, its slow ranks. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from timesyncd.audit.measured import Measured
from timesyncd.audit.report import GroupReport, MessageReport, WithheldReport
from timesyncd.ipc.group_marks import Communicator
from timesyncd.jobs.arrivals import Arrival, compare
from timesyncd.jobs.group_recording import MESSAGES, GroupRecording, GroupSync
from timesyncd.jobs.ranks import Delay, one_way
from timesyncd.units import median

#: A report has so many communicators and pairs of ranks, the costliest and the most frequent.
_MAX_GROUPS, _MAX_PAIRS = 200, 200

#: So many of a communicator's synchronizations are compared, the newest.
_MAX_COMPARED = 2_000

_BY_ONE_END = "messages to or from a rank that receives from any rank are not paired"


def group_reports(groups: GroupRecording) -> list[GroupReport]:
    """The process groups, the costliest first."""
    waited_ns: dict[Communicator, int] = defaultdict(int)
    for marks in groups.marks.values():
        for mark in marks:
            if mark.kind not in MESSAGES:
                waited_ns[mark.communicator] += max(0, mark.arrival.end_ns - mark.arrival.begin_ns)
    joined = _joined(groups)
    costliest = sorted(waited_ns, key=lambda each: (-waited_ns[each], each.ranks, each.name))[:_MAX_GROUPS]
    return [_group_report(each, joined.get(each, []), waited_ns[each]) for each in costliest]


def _joined(groups: GroupRecording) -> dict[Communicator, list[GroupSync]]:
    found: dict[Communicator, list[GroupSync]] = defaultdict(list)
    for sync in groups.syncs:
        found[sync.communicator].append(sync)
    return found


def _group_report(communicator: Communicator, syncs: Sequence[GroupSync], waited_ns: int) -> GroupReport:
    compared = [compare(sync.arrivals) for sync in syncs[-_MAX_COMPARED:]]
    return GroupReport(
        name=communicator.name,
        dimension=communicator.dimension,
        ranks=list(communicator.ranks),
        syncs=len(syncs),
        skew_p50_ns=median([each.skew_ns for each in compared if each is not None]),
        waited_ns=waited_ns,
    )


def message_reports(groups: GroupRecording) -> list[MessageReport]:
    """The pairs of ranks that exchange messages; those with the most messages where there are many."""
    pairs: dict[tuple[int, int, str | None], list[GroupSync]] = defaultdict(list)
    for marks in groups.marks.values():
        for mark in marks:
            if mark.kind in MESSAGES:
                pairs.setdefault((*mark.communicator.ranks, mark.communicator.dimension), [])  # type: ignore[arg-type]
    for sync in groups.syncs:
        if sync.kind in MESSAGES:
            sender, receiver = sync.communicator.ranks
            pairs[sender, receiver, sync.communicator.dimension].append(sync)
    most = sorted(pairs, key=lambda pair: (-len(pairs[pair]), pair[:2], str(pair[2])))[:_MAX_PAIRS]
    return [_message_report(*pair, pairs[pair]) for pair in sorted(most, key=lambda pair: (pair[:2], str(pair[2])))]


def _message_report(sender: int, receiver: int, dimension: str | None, messages: Sequence[GroupSync]) -> MessageReport:
    ends = [(each.arrivals[sender], each.arrivals[receiver]) for each in messages]
    delays = [(delay, sent, received) for sent, received in ends if (delay := one_way(sent, received)) is not None]
    awaited = [delay for delay, sent, received in delays if _was_awaited(delay, sent, received)]
    reason = ""
    if not messages:
        reason = _BY_ONE_END
    elif not delays:
        reason = "the clocks of the two nodes do not compare"
    elif any(delay.delay_ns + delay.error_ns < 0 for delay, _, _ in delays):
        reason = "messages arrive before they are sent, by more than the error of the clocks: a clock is wrong"
    elif not awaited:
        reason = "the receiver never surely waited when the message was sent, so when it arrived is not known"
    known = awaited if not reason else []
    return MessageReport(
        sender=sender,
        receiver=receiver,
        dimension=dimension,
        count=len(messages),
        waited=len(awaited),
        delay_p50_ns=median([delay.delay_ns for delay in known]),
        delay_min_ns=min((delay.delay_ns for delay in known), default=None),
        error_ns=median([delay.error_ns for delay in known]),
        reason=reason,
    )


def _was_awaited(delay: Delay, sent: Arrival, received: Arrival) -> bool:
    """Whether the receiver did nothing but wait when the message was sent: it went on as soon as that had arrived."""
    return received.begin_ns + delay.error_ns <= sent.arrival_ns


def waited_most_in(groups: GroupRecording, late: int) -> Communicator | None:
    """The group, or the pair of ranks, in which the others waited for this rank most; None: not known."""
    waited_ns: dict[Communicator, int] = defaultdict(int)
    for communicator, syncs in _joined(groups).items():
        if late not in communicator.ranks or len(communicator.ranks) < 2:
            continue
        for sync in syncs[-_MAX_COMPARED:]:
            comparison = compare(sync.arrivals)
            if comparison is not None and comparison.last_rank == late:
                waited_ns[communicator] += sum(comparison.waits_ns.values()) - comparison.waits_ns[late]
    return max(waited_ns, key=lambda each: waited_ns[each], default=None)


def groups_of_slow(now: Measured) -> Mapping[int, Communicator]:
    """By slow rank the communicator in which the others waited for it most, else the one before which it is late."""
    if now.own_times is None or now.recording.groups is None:
        return {}
    found = {}
    for slow in now.own_times.slow:
        rank = slow.straggler.rank
        communicator = waited_most_in(now.recording.groups, rank) or slow.communicator
        if communicator is not None:
            found[rank] = communicator
    return found


def withheld_reports(now: Measured) -> Iterator[WithheldReport]:
    for each in () if now.own_times is None else now.own_times.withheld:
        communicator = each.communicator
        yield WithheldReport(
            ranks=list(communicator.ranks), dimension=communicator.dimension, lateness_ns=each.lateness_ns
        )
