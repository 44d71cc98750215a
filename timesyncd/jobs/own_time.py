"""
Who is slow in a job whose ranks synchronize in groups, as those of a mesh do: each rank's own time, without all that it
waited, against the ranks that do the same work. Pure.

A rank that is late in one group may only have waited in another one. Its own time holds no wait, and each rank's is
measured on its own clock, so neither dependencies between groups nor clock errors enter.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from timesyncd.ipc.group_marks import Communicator
from timesyncd.ipc.job_datagram import Kind, kind_text
from timesyncd.jobs.arrivals import Arrival, StepMark, Sync, compare, stepped
from timesyncd.jobs.exposed import Interval, RankCost, StepCost
from timesyncd.jobs.group_recording import MESSAGES
from timesyncd.jobs.recording import Recording
from timesyncd.jobs.stragglers import Straggler, position_text, stragglers_and_doubt
from timesyncd.traces.operations import merged

#: A step is compared at so many of its synchronizations at most, evenly chosen.
MAX_POSITIONS = 48

_UPDATE = "the update"


@dataclass(frozen=True, slots=True)
class Call:
    """One synchronization as a rank's program has it. `communicator` None: all ranks of the job."""

    kind: int
    group: str
    communicator: Communicator | None


@dataclass(frozen=True, slots=True)
class OwnStep:
    """
    One rank's step. `own_ns`: its own time from the step's begin to its arrival at each of its `calls`, and to the
    step's end. `waited_ns`: for so long it only waited.
    """

    begin_ns: int
    end_ns: int
    calls: tuple[Call, ...]
    own_ns: tuple[int, ...]
    waited_ns: int


@dataclass(frozen=True, slots=True)
class SlowRank:
    """
    A straggler by its own time. `where` of the straggler is the synchronization before which it loses its time, in
    `communicator` (None: in its update, or before one of all ranks).
    """

    straggler: Straggler
    communicator: Communicator | None
    place: str


@dataclass(frozen=True, slots=True)
class Withheld:
    """All ranks of this communicator are late: what they work on may be more. None is named."""

    communicator: Communicator
    lateness_ns: int


@dataclass(frozen=True)
class WorkClass:
    """
    Ranks that do the same work. By key, the steps of all of them, by rank. `same`: all have the same synchronizations.
    `alike`: these are the usual ones, so that a rank compares with itself in another step too.
    """

    ranks: tuple[int, ...]
    alike: Sequence[tuple[int, Mapping[int, OwnStep]]]
    same: Sequence[tuple[int, Mapping[int, OwnStep]]]

    def between(self, first: int, last: int) -> WorkClass:
        """With the steps from one key to another one alone."""
        alike, same = ([each for each in steps if first <= each[0] <= last] for steps in (self.alike, self.same))
        return WorkClass(self.ranks, alike, same)


@dataclass(frozen=True)
class OwnTimes:
    """
    `slow`: the worst first. `alone`: the ranks that have no other rank with the same work. `may_be_chance`: as of an
    Attribution. `costs`: by step. `steps`: by rank and key. `sharing`: the ranks that may work on the same data.
    """

    slow: tuple[SlowRank, ...]
    withheld: tuple[Withheld, ...]
    alone: tuple[int, ...]
    may_be_chance: bool
    compared_steps: int
    costs: Sequence[StepCost]
    classes: tuple[WorkClass, ...]
    steps: Mapping[int, Mapping[int, OwnStep]]
    sharing: tuple[Communicator, ...]

    @property
    def comparable(self) -> list[WorkClass]:
        """The classes of two ranks or more."""
        return [each for each in self.classes if len(each.ranks) > 1]


def own_times(recording: Recording) -> OwnTimes:
    """Of all steps of which a rank has a mark."""
    steps = {rank: dict(_rank_steps(recording, rank)) for rank in range(recording.world_size)}
    costs = [_cost(key, {rank: own[key] for rank, own in steps.items() if key in own}) for key in recording.step_keys]
    classes = [_work_class({rank: steps[rank] for rank in ranks}) for ranks in _classes(steps, _stages(recording))]
    slow: list[SlowRank] = []
    may_be_chance, compared = False, 0
    for each in classes:
        if len(each.ranks) > 1:
            compared = max(compared, len(each.alike))
            found, doubt = _slow(each, steps)
            slow += found
            may_be_chance = may_be_chance or doubt
    slow.sort(key=lambda each: (-each.straggler.exposed_ns, -each.straggler.lateness_p50_ns, each.straggler.rank))
    sharing = _sharing(recording)
    named, withheld = _without_shared(slow, sharing)
    return OwnTimes(
        slow=tuple(named),
        withheld=tuple(withheld),
        alone=tuple(sorted(rank for each in classes if len(each.ranks) < 2 for rank in each.ranks)),
        may_be_chance=may_be_chance,
        compared_steps=compared,
        costs=costs,
        classes=tuple(classes),
        steps=steps,
        sharing=tuple(sharing),
    )


# ---- steps


def group_text(communicator: Communicator | None) -> str:
    """For people: `shard groups of 2 ranks`, `pp messages to a higher rank`, `all ranks`."""
    return "all ranks" if communicator is None else communicator.text


def _rank_steps(recording: Recording, rank: int) -> Iterator[tuple[int, OwnStep]]:
    """By the step's key. A step in which the rank's clock was stepped is left out."""
    calls: dict[int, list[tuple[Call, Arrival]]] = defaultdict(list)
    for sync in recording.syncs:
        if rank in sync.arrivals:
            calls[sync.step].append((Call(sync.kind, group_text(None), None), sync.arrivals[rank]))
    texts: dict[Communicator, str] = {}
    for mark in () if recording.groups is None else recording.groups.marks.get(rank, ()):
        text = texts.setdefault(mark.communicator, group_text(mark.communicator))
        calls[mark.step].append((Call(mark.kind, text, mark.communicator), mark.arrival))
    arrivals = [arrival for each in calls.values() for _, arrival in each]
    waits = merged([(arrival.begin_ns, arrival.end_ns) for arrival in arrivals])
    at = 0
    for step in recording.steps.get(rank, ()):
        own = sorted(calls.get(step.step, ()), key=lambda each: (each[1].arrival_ns, each[1].end_ns))
        while at < len(waits) and waits[at][1] <= step.arrival_ns:
            at += 1
        if step.end_ns > step.arrival_ns and _is_on_one_clock([arrival for _, arrival in own]):
            yield step.step, _rank_step(step, own, waits, at)


def _is_on_one_clock(arrivals: Sequence[Arrival]) -> bool:
    return all(each.clock is not None for each in arrivals) and (not arrivals or not stepped(arrivals))


def _rank_step(step: StepMark, calls: Sequence[tuple[Call, Arrival]], waits: Sequence[Interval], first: int) -> OwnStep:
    """`waits` are disjoint and in order; those before the first end before the step begins."""
    own_ns: list[int] = []
    at, over_ns = first, 0
    for moment_ns in [*(arrival.arrival_ns for _, arrival in calls), step.end_ns]:
        moment_ns = min(max(moment_ns, step.arrival_ns), step.end_ns)
        while at < len(waits) and waits[at][1] <= moment_ns:
            over_ns += waits[at][1] - max(waits[at][0], step.arrival_ns)
            at += 1
        inside_ns = max(0, moment_ns - max(waits[at][0], step.arrival_ns)) if at < len(waits) else 0
        own_ns.append(moment_ns - step.arrival_ns - over_ns - inside_ns)
    waited_ns = step.end_ns - step.arrival_ns - own_ns[-1]
    return OwnStep(step.arrival_ns, step.end_ns, tuple(call for call, _ in calls), tuple(own_ns), waited_ns)


def _cost(key: int, ranks: Mapping[int, OwnStep]) -> StepCost:
    found = {rank: RankCost(step.waited_ns, step.end_ns - step.begin_ns) for rank, step in ranks.items()}
    return StepCost(
        key, found, sum(cost.exposed_ns for cost in found.values()), sum(cost.elapsed_ns for cost in found.values())
    )


# ---- ranks that do the same work

_Program = tuple[tuple[int, str], ...]

_Stage = tuple[tuple[str, int], ...]
"""By dimension, a rank's place in its pipeline."""


def _program(step: OwnStep) -> _Program:
    return tuple((call.kind, call.group) for call in step.calls)


def _classes(steps: Mapping[int, Mapping[int, OwnStep]], stages: Mapping[int, _Stage]) -> list[list[int]]:
    """
    The ranks whose usual steps have the same synchronizations in the same order, and which are the same stage: two
    stages in the middle of a pipeline have the same messages and other work.
    """
    found: dict[tuple[_Program, _Stage], list[int]] = defaultdict(list)
    for rank, own in sorted(steps.items()):
        if own:
            found[_usual(own.values()), stages.get(rank, ())].append(rank)
    return list(found.values())


def _stages(recording: Recording) -> dict[int, _Stage]:
    """By rank, its place among the ranks that exchange messages with one another, in each dimension."""
    found: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for (dimension, _), of_group in sorted(
        _channels(recording).items(), key=lambda each: (str(each[0][0]), each[0][1])
    ):
        for ranks in _connected(of_group):
            for place, rank in enumerate(ranks):
                found[rank].append((str(dimension), place))
    return {rank: tuple(places) for rank, places in found.items()}


def _channels(recording: Recording) -> Mapping[tuple[str | None, str], Sequence[Communicator]]:
    """By dimension and name of their group, the pairs of ranks that exchange messages."""
    marks = {} if recording.groups is None else recording.groups.marks
    found: dict[tuple[str | None, str], list[Communicator]] = defaultdict(list)
    for channel in {mark.communicator for own in marks.values() for mark in own if mark.kind in MESSAGES}:
        found[channel.dimension, channel.name].append(channel)
    return found


def _connected(channels: Sequence[Communicator]) -> list[list[int]]:
    """The ranks of these channels, those that are connected together, in order."""
    root: dict[int, int] = {}

    def find(rank: int) -> int:
        root.setdefault(rank, rank)
        while root[rank] != rank:
            rank = root[rank]
        return rank

    for channel in channels:
        low, high = sorted(map(find, channel.ranks))
        root[high] = low
    found: dict[int, list[int]] = defaultdict(list)
    for rank in sorted(root):
        found[find(rank)].append(rank)
    return list(found.values())


def _usual(steps: Iterable[OwnStep]) -> _Program:
    return Counter(map(_program, steps)).most_common(1)[0][0]


def _work_class(steps: Mapping[int, Mapping[int, OwnStep]]) -> WorkClass:
    program = _usual(next(iter(steps.values())).values())
    common = set.intersection(*(set(own) for own in steps.values()))
    found = [(key, {rank: own[key] for rank, own in steps.items()}) for key in sorted(common)]
    same = [(key, ranks) for key, ranks in found if len(set(map(_program, ranks.values()))) == 1]
    alike = [(key, ranks) for key, ranks in same if _program(next(iter(ranks.values()))) == program]
    return WorkClass(tuple(steps), alike, same)


# ---- lateness


def _slow(of: WorkClass, steps: Mapping[int, Mapping[int, OwnStep]]) -> tuple[list[SlowRank], bool]:
    """Of one class of ranks, and whether chance may have made another one late."""
    if not of.alike:
        return [], False
    stragglers, doubt = stragglers_and_doubt(compared_syncs(of))
    return [slow_rank(straggler, of, steps) for straggler in stragglers], doubt


def slow_rank(straggler: Straggler, of: WorkClass, steps: Mapping[int, Mapping[int, OwnStep]]) -> SlowRank:
    """A straggler among `compared_syncs` of these ranks, with its place and what the others waited for it."""
    first = of.alike[0][1]
    at, text = dict(_places(first[min(first)].calls))[straggler.where]
    own = first[straggler.rank].calls
    exposed_ns = sum(_exposed_ns(key, ranks, straggler.rank, steps) for key, ranks in of.alike)
    return SlowRank(
        replace(straggler, where=text, exposed_ns=exposed_ns),
        own[at].communicator if at < len(own) else None,
        f"in {text}" if text == _UPDATE else f"before {text}",
    )


def compared_syncs(of: WorkClass) -> list[Sync]:
    """
    As if the ranks began each step together and never waited: they then arrive at each synchronization, and at the
    step's end, after their own time.
    """
    found = []
    for key, ranks in of.alike:
        first = ranks[min(ranks)]
        kinds = [*(call.kind for call in first.calls), int(Kind.STEP)]
        for at in _positions(len(kinds)):
            arrivals = {rank: _arrival(first.begin_ns + step.own_ns[at]) for rank, step in ranks.items()}
            found.append(Sync(key, at, kinds[at], arrivals, compare(arrivals)))
    return found


def _arrival(at_ns: int) -> Arrival:
    return Arrival("own time", 0, at_ns, at_ns, at_ns, 0)


def _positions(count: int) -> list[int]:
    """Of a step with so many positions: the first, the last, and others between."""
    if count <= MAX_POSITIONS:
        return list(range(count))
    return sorted({round(number * (count - 1) / (MAX_POSITIONS - 1)) for number in range(MAX_POSITIONS)})


def _places(calls: Sequence[Call]) -> Iterator[tuple[str, tuple[int, str]]]:
    """By the text of each position that is compared: which one it is, and the text, with its group where the step has any."""
    kinds = [*(call.kind for call in calls), int(Kind.STEP)]
    of_group: Counter[tuple[int, str]] = Counter()
    has_groups = any(call.communicator is not None for call in calls)
    texts = []
    for call in calls:
        which = f"{kind_text(call.kind)} {of_group[call.kind, call.group]}"
        texts.append(f"{which} of {_the(call)}" if has_groups else which)
        of_group[call.kind, call.group] += 1
    texts.append(_UPDATE)
    before: Counter[int] = Counter()
    for at in _positions(len(kinds)):
        yield position_text((kinds[at], before[kinds[at]])), (at, texts[at])
        before[kinds[at]] += 1


def _the(call: Call) -> str:
    return call.group if call.communicator is None else f"the {call.group}"


def _exposed_ns(key: int, ranks: Mapping[int, OwnStep], late: int, steps: Mapping[int, Mapping[int, OwnStep]]) -> int:
    """
    For how long half of the other ranks of the job waited in the step for what this one takes longer than the (lower)
    median of its like: at most for all that they waited.
    """
    usual_ns = lower_median([step.own_ns[-1] for step in ranks.values()])
    return min(max(0, ranks[late].own_ns[-1] - usual_ns), others_waited_ns(key, late, steps))


def others_waited_ns(key: int, rank: int, steps: Mapping[int, Mapping[int, OwnStep]]) -> int:
    """For so long half of the other ranks of the job waited in the step with this key."""
    waited = [own[key].waited_ns for other, own in steps.items() if other != rank and key in own]
    return lower_median(waited) if waited else 0


def lower_median(values: Sequence[int]) -> int:
    """Of one value or more."""
    return sorted(values)[(len(values) - 1) // 2]


def _without_shared(slow: Sequence[SlowRank], sharing: Sequence[Communicator]) -> tuple[list[SlowRank], list[Withheld]]:
    """
    Where all ranks of a group are slow, they may have more to do: those that work on the same data have the same data.
    Then no rank of it is named, unless the group is the whole job.
    """
    by_rank = {each.straggler.rank: each for each in slow if each.straggler.verdict == "straggler"}
    withheld: list[Withheld] = []
    taken: set[int] = set()
    for communicator in sharing:
        if by_rank.keys() >= set(communicator.ranks):
            least_ns = min(by_rank[rank].straggler.lateness_p50_ns for rank in communicator.ranks)
            withheld.append(Withheld(communicator, least_ns))
            taken |= set(communicator.ranks)
    return [each for each in slow if each.straggler.rank not in taken], withheld


def _sharing(recording: Recording) -> list[Communicator]:
    """
    The groups, and the ranks that are connected by messages, as the stages of one pipeline: by their ranks, the
    smallest first. All ranks of the job are none.
    """
    marks = {} if recording.groups is None else recording.groups.marks
    found = {mark.communicator for own in marks.values() for mark in own}
    groups = [each for each in found if each.tag is None]
    groups += [
        Communicator(name, tuple(ranks), dimension)
        for (dimension, name), channels in _channels(recording).items()
        for ranks in _connected(channels)
    ]
    groups.sort(key=lambda each: (len(each.ranks), each.ranks, each.name))
    by_ranks: dict[tuple[int, ...], Communicator] = {}
    for each in groups:
        by_ranks.setdefault(tuple(sorted(each.ranks)), each)
    return [each for ranks, each in by_ranks.items() if 1 < len(ranks) < recording.world_size]
