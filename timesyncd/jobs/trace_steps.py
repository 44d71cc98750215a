"""
What the ranks' communications show of a job's form: where its steps begin, its pipeline stages, which ranks work on the
same data, and on which micro-batch a rank computes. Pure.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from timesyncd.jobs.step_graph import PlaceLabel
from timesyncd.traces.operations import RECV, SEND, Communication, RankTrace

#: What the names and descriptions of a group contain that divides the work on one batch, as torch's device meshes and
#: Megatron name them.
_MODEL_GROUPS = ("tp", "tensor", "cp", "context", "sp", "sequence", "mp", "model")
_DATA_GROUPS = ("dp", "data", "fsdp", "replicate", "shard")

#: Backward takes about twice as long as forward.
_FORWARD, _BACKWARD = 1.0, 2.0


@dataclass(frozen=True, slots=True)
class _Message:
    """A send or a receive: its micro-batch, and the weight of what is computed for it."""

    kind: str
    number: int
    weight: float


@dataclass(frozen=True, slots=True)
class Roles:
    """
    `steps` recorded; `periods`: by rank its communications in a step; `heads`: before the first whole step. `stages`, `replicas`: by rank its pipeline stage,
    and the lowest of the ranks that work on the same data. `labels`: by (rank, step, place).
    """

    steps: int
    periods: dict[int, int]
    heads: dict[int, int]
    stages: dict[int, int]
    replicas: dict[int, int]
    labels: dict[tuple[int, int, int], PlaceLabel]
    notes: tuple[str, ...] = ()

    def at(self, rank: int, issued: int) -> tuple[int, int]:
        """The step and the place after so many communications of the rank; before the first whole step it is -1."""
        return divmod(issued - self.heads[rank], self.periods[rank])


def roles_of(by_rank: Mapping[int, RankTrace]) -> Roles:
    """The form of the job of these traces."""
    steps, periods, notes = _steps(by_rank)
    heads = {rank: len(trace.communications) - steps * periods[rank] for rank, trace in by_rank.items()}
    whole = {
        rank: replace(trace, communications=trace.communications[heads[rank] :]) for rank, trace in by_rank.items()
    }
    stages = _stages(whole)
    return Roles(
        steps=steps,
        periods=periods,
        heads=heads,
        stages=stages,
        replicas=_replicas(whole, stages, periods),
        labels=dict(_labels(whole, stages, periods)),
        notes=notes,
    )


_UNNAMED = "The steps are not annotated in all traces: a step is what repeats in the communications."


def _steps(by_rank: Mapping[int, RankTrace]) -> tuple[int, dict[int, int], tuple[str, ...]]:
    """
    Into how many steps every rank's communications can be divided, from the last one back, and how many a rank has in a
    step. Traces may begin at different moments in a step, which is then no whole one.
    """
    calls = {rank: trace.communications for rank, trace in by_rank.items()}
    annotated = Counter(trace.steps for trace in by_rank.values() if trace.steps)
    for steps, _ in annotated.most_common():
        if steps is not None and all(len(each) % steps == 0 for each in calls.values()):
            periods = {rank: len(each) // steps for rank, each in calls.items()}
            if all(_repeats(each, periods[rank], steps, False) for rank, each in calls.items()):
                return steps, {rank: max(1, period) for rank, period in periods.items()}, ()
    for with_bytes in (True, False):
        if (found := _divided(calls, with_bytes)) is not None:
            return *found, (_UNNAMED,)
    ones = {rank: max(1, len(each)) for rank, each in calls.items()}
    return 1, ones, ("The communications do not repeat, so all that is recorded counts as one step.",)


def with_equal_steps(by_rank: Mapping[int, RankTrace]) -> dict[int, RankTrace]:
    """
    The traces without the annotated steps that some of them lack at the begin or at the end. Which ones these are, the
    clocks show, if they are right within half a step.
    """
    periods = _own_periods(by_rank)
    if periods is None or len({trace.steps for trace in by_rank.values()}) < 2:
        return dict(by_rank)
    ends = {
        rank: [call.end_ns for call in trace.communications[periods[rank] - 1 :: periods[rank]]]
        for rank, trace in by_rank.items()
    }
    shortest = min(ends, key=lambda rank: len(ends[rank]))
    found = {}
    for rank, trace in by_rank.items():
        shifts = range(len(ends[rank]) - len(ends[shortest]) + 1)
        first = min(shifts, key=lambda shift: abs(ends[rank][shift] - ends[shortest][0]))
        found[rank] = _steps_of(trace, periods[rank], first, len(ends[shortest]))
    return found


def _steps_of(trace: RankTrace, period: int, first: int, steps: int) -> RankTrace:
    calls = trace.communications[first * period : (first + steps) * period]
    before = trace.communications[: first * period]
    begin_ns = max((call.end_ns for call in before), default=None)
    end_ns = max(call.end_ns for call in calls)
    busy = trace.busy
    if busy is not None:
        busy = tuple(
            (begin if begin_ns is None else max(begin, begin_ns), min(end, end_ns))
            for begin, end in busy
            if (begin_ns is None or end > begin_ns) and begin < end_ns
        )
    return replace(trace, communications=calls, busy=busy, steps=steps)


def _own_periods(by_rank: Mapping[int, RankTrace]) -> dict[int, int] | None:
    """By rank its communications in a step. None: not all traces are divided by their own annotations."""
    periods = {}
    for rank, trace in by_rank.items():
        if not trace.steps or not trace.communications or len(trace.communications) % trace.steps:
            return None
        periods[rank] = len(trace.communications) // trace.steps
        if not _repeats(trace.communications, periods[rank], trace.steps, False):
            return None
    calls = {rank: trace.communications for rank, trace in by_rank.items()}
    return periods if _agree(calls, periods) else None


def _divided(calls: Mapping[int, Sequence[Communication]], with_bytes: bool) -> tuple[int, dict[int, int]] | None:
    """The largest number of steps, at least two, and each rank's communications in one."""
    shortest = min(map(len, calls.values()))
    for steps in range(shortest, 1, -1):
        periods = {}
        for rank, own in calls.items():
            # Of a trace that begins earlier than others one step more may fit.
            sizes = range(len(own) // steps, len(own) // (steps + 2), -1)
            period = next((size for size in sizes if _repeats(own, size, steps, with_bytes)), None)
            if period is None:
                break
            periods[rank] = period
        else:
            if _agree(calls, periods):
                return steps, periods
    return None


def _agree(calls: Mapping[int, Sequence[Communication]], periods: Mapping[int, int]) -> bool:
    """Whether all ranks of a group, or both ends of a message, call it equally often in a step."""
    found: dict[tuple[str, tuple[int, ...]], set[int]] = defaultdict(set)
    for rank, own in calls.items():
        last = Counter((call.group, call.ranks) for call in own[len(own) - periods[rank] :])
        for key, count in last.items():
            found[key].add(count)
    return all(len(counts) == 1 for counts in found.values())


def _repeats(calls: Sequence[Communication], size: int, parts: int, with_bytes: bool) -> bool:
    """
    Whether the last `parts` times `size` communications are the same ones in each part, and what is before them is a
    piece of one, or one more and a piece. The order may differ: what is issued at one moment on two streams changes
    places.
    """
    if size == 0:
        return not calls

    def part(begin: int, end: int) -> Counter[tuple[object, ...]]:
        return Counter(
            (call.kind, call.group, call.ranks, call.bytes if with_bytes else None) for call in calls[begin:end]
        )

    last = part(len(calls) - size, len(calls))
    starts = range(len(calls) - 2 * size, -1, -size)
    return all(part(start, start + size) == last for start in starts) and part(0, len(calls) % size) <= last


def _messages(trace: RankTrace) -> list[Communication]:
    return [call for call in trace.communications if call.kind in (SEND, RECV)]


def _stages(by_rank: Mapping[int, RankTrace]) -> dict[int, int]:
    """
    By rank the number of ranks before it in its pipeline: the first message between two ranks goes forward, and the
    first stage sends before it receives. All are stage 0 where no messages are recorded.
    """
    downstream: dict[int, set[int]] = defaultdict(set)
    upstream: dict[int, set[int]] = defaultdict(set)
    for rank, trace in by_rank.items():
        met: set[int] = set()
        for call in _messages(trace):
            peer = call.ranks[1] if call.kind == SEND else call.ranks[0]
            if peer not in met:
                met.add(peer)
                (downstream if call.kind == SEND else upstream)[rank].add(peer)
    first = [rank for rank, trace in by_rank.items() if (calls := _messages(trace)) and calls[0].kind == SEND]
    if not first:
        return dict.fromkeys(by_rank, 0)
    found = dict.fromkeys(first, 0)
    waiting = list(first)
    while waiting:
        rank = waiting.pop(0)
        for peer in sorted(downstream[rank]):
            if peer not in found:
                found[peer] = found[rank] + 1
                waiting.append(peer)
    return {rank: found.get(rank, 0) for rank in by_rank}


def _replicas(
    by_rank: Mapping[int, RankTrace], stages: Mapping[int, int], periods: Mapping[int, int]
) -> dict[int, int]:
    """By rank the lowest rank that works on the same data: they are joined by messages and by groups of the model."""
    root = {rank: rank for rank in by_rank}

    def find(rank: int) -> int:
        while root[rank] != rank:
            rank = root[rank]
        return rank

    for rank, trace in by_rank.items():
        micro_batches = _micro_batches(trace, periods[rank])
        often = Counter(call.group for call in trace.communications[: periods[rank]])
        for call in trace.communications[: periods[rank]]:
            if call.kind in (SEND, RECV) or _is_of_the_model(call, often[call.group], micro_batches, stages):
                for peer in call.ranks:
                    low, high = sorted((find(rank), find(peer)))
                    root[high] = low
    return {rank: find(rank) for rank in by_rank}


def _micro_batches(trace: RankTrace, period: int) -> int:
    """How many there are in a step; 0: not known."""
    forward = Counter(call.ranks for call in trace.communications[:period] if call.kind in (SEND, RECV))
    return max(forward.values(), default=0)


def _is_of_the_model(call: Communication, times: int, micro_batches: int, stages: Mapping[int, int]) -> bool:
    """
    Whether the group divides the work on one batch: by its name, else because it meets for each micro-batch forward
    and backward, or joins stages.
    """
    words = set(re.findall(r"[a-z]+", call.group.lower()))
    if any(word in _DATA_GROUPS for word in words):
        return False
    if any(word in _MODEL_GROUPS for word in words):
        return True
    if len({stages[rank] for rank in call.ranks}) > 1:
        return False
    return micro_batches > 1 and times >= 2 * micro_batches


def _labels(
    by_rank: Mapping[int, RankTrace], stages: Mapping[int, int], periods: Mapping[int, int]
) -> Iterator[tuple[tuple[int, int, int], PlaceLabel]]:
    for rank, trace in by_rank.items():
        period = periods[rank]
        for step in range(-(-len(trace.communications) // period)):
            calls = trace.communications[step * period : (step + 1) * period]
            met = dict(_numbered_messages(calls, stages))
            for place, label in enumerate(_place_labels(len(calls), met)):
                if label is not None:
                    # A group of the data that meets only in the first micro-batch divides what is computed there.
                    around = (calls[place - 1].kind if place else None, calls[place].kind)
                    yield (rank, step, place), replace(label, work=(*label.work, *around))


def _place_labels(places: int, met: Mapping[int, _Message]) -> Iterator[PlaceLabel | None]:
    """
    The micro-batch before a send is that of the send, and after a receive that of the receive. Between a receive and a
    send of another micro-batch, as on the first stage of 1F1B, both are computed.
    """
    following: list[_Message | None] = [None] * places
    for place in reversed(range(places)):
        following[place] = met.get(place) or (following[place + 1] if place + 1 < places else None)
    before: _Message | None = None
    since = 0
    for place, after in enumerate(following):
        if place and place - 1 in met:
            before, since = met[place - 1], place
        received = before if before is not None and before.kind == RECV else None
        sent = after if after is not None and after.kind == SEND else None
        weights: dict[int, float] = {}
        for message in (received, sent):
            if message is not None:
                weights[message.number] = max(weights.get(message.number, 0.0), message.weight)
        whole = sum(weights.values())
        if weights:
            yield PlaceLabel(
                tuple(sorted((number, weight / whole) for number, weight in weights.items())),
                (place == 0, received and received.weight, sent and sent.weight, place - since),
            )
        else:
            yield None


def _numbered_messages(calls: Sequence[Communication], stages: Mapping[int, int]) -> Iterator[tuple[int, _Message]]:
    """Each message by its place."""
    counts: Counter[tuple[str, bool]] = Counter()
    for place, call in enumerate(calls):
        if call.kind in (SEND, RECV):
            sender, receiver = call.ranks
            is_forward = stages[sender] < stages[receiver]
            yield place, _Message(call.kind, counts[call.kind, is_forward], _FORWARD if is_forward else _BACKWARD)
            counts[call.kind, is_forward] += 1
