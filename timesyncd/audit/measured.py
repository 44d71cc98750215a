"""
A recording with the costs of its steps, the comparison of its ranks, the stages of a step, and the causes of exposed
synchronization time (waiting for a rank, transfer, requests). Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush
from typing import Literal, NamedTuple

from timesyncd.audit.bootstrap import StepSample
from timesyncd.ipc.group_marks import MAX_UNMETERED_PART
from timesyncd.ipc.job_datagram import Kind, OwnPart, kind_text
from timesyncd.jobs.arrivals import (
    READING_GRANULARITY_NS,
    Arrival,
    Comparison,
    StepMark,
    Sync,
    compare,
    widest_skew_sync,
)
from timesyncd.jobs.exposed import Interval, OwnWait, StageCost, StepCost, frontier, ratio, step_cost
from timesyncd.jobs.late_place import late_place
from timesyncd.jobs.lateness import independent_part, independent_steps, is_persistent
from timesyncd.jobs.missing_ranks import Hang, find_hang
from timesyncd.jobs.onset import LateSpan, late_spans
from timesyncd.jobs.own_changes import SlowSpan, rare_own_waits, slow_spans
from timesyncd.jobs.own_place import step_parts
from timesyncd.jobs.own_time import OwnTimes, group_text, own_times
from timesyncd.jobs.own_waits import OwnComparison, compare_own
from timesyncd.jobs.rare_waits import RareWaits, rare_waits
from timesyncd.jobs.recording import Recording, positions, same_step
from timesyncd.jobs.stragglers import Attribution, Straggler, attribute
from timesyncd.units import percentile

#: From this number of recorded steps on, the first one is omitted: it contains one-time work, such as making the
#: buckets.
MIN_STEPS_WITHOUT_FIRST = 20


@dataclass(frozen=True)
class Measured:
    """
    `recording` is without the omitted first step; `aligned` has only complete synchronizations, on the time axis of the
    attribution. `own_times`: of a job that synchronizes in groups; None: all its ranks synchronize together, or only the
    sums of each rank's waits are known, and `own_waits` compares these.
    """

    recorded_steps: int
    recording: Recording
    aligned: Recording
    attribution: Attribution
    costs: Sequence[StepCost]
    own_times: OwnTimes | None = None
    own_waits: OwnComparison | None = None

    @property
    def samples(self) -> list[StepSample]:
        """The mean of the ranks, for every step in which a rank was measured."""
        return [
            StepSample(cost.elapsed_ns / len(cost.ranks), cost.exposed_ns / len(cost.ranks))
            for cost in self.costs
            if cost.elapsed_ns > 0
        ]

    @property
    def exposed_ns(self) -> int:
        return sum(cost.exposed_ns for cost in self.costs)

    @property
    def elapsed_ns(self) -> int:
        return sum(cost.elapsed_ns for cost in self.costs)

    def rank_exposed_ns(self, rank: int) -> int:
        return sum(cost.ranks[rank].exposed_ns for cost in self.costs if rank in cost.ranks)

    @property
    def is_account(self) -> bool:
        """Whether nearly all that the ranks issued has marks: else no cost is known, and no rank is named."""
        return self.recording.calls is None or self.recording.calls.is_account

    @cached_property
    def ranks_without_steps(self) -> list[int]:
        """
        The ranks that ended less than half as many steps as another one, where no synchronization of all ranks is in
        one step: they count their steps by other updates, or have none.
        """
        if self.attribution.method is not None or self.own_times is not None or self.own_waits is not None:
            return []
        ended = {rank: len(self.recording.steps.get(rank, ())) for rank in self.recording.ranks}
        most = max(ended.values(), default=0)
        return [rank for rank, steps in sorted(ended.items()) if 2 * steps < most]

    @cached_property
    def rare(self) -> RareWaits | None:
        if not self.is_account:
            return None
        return rare_waits(self.attribution.syncs) if self.own_times is None else rare_own_waits(self.own_times)

    @cached_property
    def late_spans(self) -> list[LateSpan]:
        if not self.is_account:
            return []
        return [each.span for each in self.slow_spans] if self.own_times else late_spans(self.attribution.syncs)

    @cached_property
    def slow_spans(self) -> list[SlowSpan]:
        """The spans of a job that synchronizes in groups."""
        return [] if self.own_times is None else slow_spans(self.own_times)

    @cached_property
    def uncompared_share(self) -> float:
        """The part of the waiting in groups that is in steps in which ranks with the same work had other synchronizations."""
        if self.own_times is None or not self.own_times.comparable or not self.exposed_ns:
            return 0.0
        compared = set.intersection(*({key for key, _ in of.same} for of in self.own_times.comparable))
        return sum(cost.exposed_ns for cost in self.costs if cost.step not in compared) / self.exposed_ns

    @cached_property
    def hang(self) -> Hang | None:
        presence = {rank: record.presence for rank, record in self.recording.ranks.items()}
        usual_ns = median_length_ns(self.samples) if self.samples else None
        return find_hang(presence, self.recording.world_size, usual_ns)

    @cached_property
    def late_ranks(self) -> set[int]:
        """The ranks that are stragglers, in all steps or up to the last one."""
        late = {found.rank for found in self.attribution.stragglers if found.verdict == "straggler"}
        return late | {span.straggler.rank for span in self.late_spans if not span.ended}

    @property
    def waits_in_groups(self) -> Mapping[int, Mapping[int, OwnWait]]:
        """By step: what the ranks state that they waited in groups, where no mark tells in which one."""
        return self.recording.own_waits if self.recording.groups is None else {}

    @cached_property
    def unreduced_steps(self) -> int:
        """The steps in which some rank updated its parameters, and no rank has a mark of data that it exchanged."""
        reduced = {sync.step for sync in self.recording.syncs if sync.kind != Kind.BARRIER}
        reduced |= {request.step for requests in self.recording.requests.values() for request in requests}
        if self.recording.groups is not None:
            reduced |= {mark.step for marks in self.recording.groups.marks.values() for mark in marks}
        reduced |= self.recording.own_waits.keys()
        return len({mark.step for marks in self.recording.steps.values() for mark in marks} - reduced)

    @property
    def trains_apart(self) -> bool:
        """Whether the ranks update their parameters mostly without a reduction."""
        return self.recording.world_size > 1 and 2 * self.unreduced_steps > len(self.recording.step_keys)

    def overhead_without(self, steps: Collection[int]) -> float | None:
        """The overhead of all steps but these."""
        rest = [cost for cost in self.costs if cost.step not in steps]
        return ratio(sum(cost.exposed_ns for cost in rest), sum(cost.elapsed_ns for cost in rest))

    @property
    def own_overhead(self) -> float | None:
        """Metering's own time over the time since the ranks joined, or over their measured steps if that is unknown."""
        own_ns = metered_ns = 0
        for rank, record in self.recording.ranks.items():
            own_ns += record.own_overhead_ns
            metered_ns += record.metered_ns or sum(c.ranks[rank].elapsed_ns for c in self.costs if rank in c.ranks)
        return own_ns / metered_ns if metered_ns else None


def measured(recording: Recording) -> Measured:
    keys = recording.step_keys
    if len(keys) >= MIN_STEPS_WITHOUT_FIRST:
        recording = _after(recording, keys[0])
    if is_in_groups(recording):
        return _measured_in_groups(len(keys), recording)
    own = compare_own(sorted(_own_waits(recording).items()), recording.world_size)
    if own is not None and recording.groups is None:
        return _measured_by_own_waits(len(keys), recording, own)
    attribution = attribute(recording.syncs, recording.nodes, recording.world_size)
    recorded_steps = len(keys)
    if (apart := attribution.apart) is not None and attribution.method is not None:
        recording = _before(recording, apart.since)
        recorded_steps = len([key for key in keys if key < apart.since])
        attribution = replace(attribute(recording.syncs, recording.nodes, recording.world_size), apart=apart)
    if recording.calls is not None and not recording.calls.is_account:
        attribution = replace(attribution, stragglers=())  # it may only have waited for another rank, unseen
    return Measured(recorded_steps, recording, _aligned(recording, attribution), attribution, _costs(recording))


def is_in_groups(recording: Recording) -> bool:
    """
    Whether more than one in a hundred of the ranks' synchronizations are of a group, or are messages. Without the first
    two steps, in which modules are made.
    """
    if recording.groups is None:
        return False
    first = recording.step_keys[:2]
    since = first[-1] if first else 0
    in_groups = sum(mark.step > since for marks in recording.groups.marks.values() for mark in marks)
    of_all = sum(len(sync.arrivals) for sync in recording.syncs if sync.step > since)
    return in_groups > MAX_UNMETERED_PART * (in_groups + of_all)


def _measured_in_groups(recorded_steps: int, recording: Recording) -> Measured:
    """The ranks compared by their own time: who is late in one group may only have waited in another one."""
    found = own_times(recording)
    is_account = recording.calls is None or recording.calls.is_account
    stragglers = tuple(each.straggler for each in found.slow) if is_account else ()
    attribution = _without_comparison(stragglers, found.may_be_chance)
    return Measured(recorded_steps, recording, _aligned(recording, attribution), attribution, found.costs, found)


def _own_waits(recording: Recording) -> Mapping[int, Mapping[int, OwnWait]]:
    """Of all steps."""
    return {key: recording.own_waits.get(key, {}) for key in recording.step_keys}


def _measured_by_own_waits(recorded_steps: int, recording: Recording, own: OwnComparison) -> Measured:
    """A hub's window of a job that synchronizes in groups has their waits by step and rank alone."""
    attribution = _without_comparison(() if own.slow is None else (own.slow,), own.may_be_chance)
    return Measured(
        recorded_steps, recording, _aligned(recording, attribution), attribution, _costs(recording), own_waits=own
    )


def _without_comparison(stragglers: tuple[Straggler, ...], may_be_chance: bool) -> Attribution:
    return Attribution(
        method=None,
        clock_bound_ns=None,
        trusted=False,
        skew_p50_ns=None,
        skew_p99_ns=None,
        stragglers=stragglers,
        suspicion=None,
        syncs=(),
        may_be_chance=may_be_chance,
    )


def _after(recording: Recording, step: int) -> Recording:
    return replace(
        recording,
        syncs=[sync for sync in recording.syncs if sync.step > step],
        steps={rank: [mark for mark in marks if mark.step > step] for rank, marks in recording.steps.items()},
        requests={rank: [one for one in many if one.step > step] for rank, many in recording.requests.items()},
        groups=None if recording.groups is None else recording.groups.after(step),
        own_waits={key: own for key, own in recording.own_waits.items() if key > step},
    )


def _before(recording: Recording, step: int) -> Recording:
    return replace(
        recording,
        syncs=[sync for sync in recording.syncs if sync.step < step],
        steps={rank: [mark for mark in marks if mark.step < step] for rank, marks in recording.steps.items()},
        requests={rank: [one for one in many if one.step < step] for rank, many in recording.requests.items()},
        own_waits={key: own for key, own in recording.own_waits.items() if key < step},
    )


def waits_ns(attribution: Attribution) -> dict[int, list[int]]:
    """By rank, for each comparable step: its wait for the last rank, at the synchronization with the widest skew."""
    found: dict[int, list[int]] = {}
    for _, step in same_step(attribution.syncs):
        comparison = widest_skew_sync(step).comparison
        for rank, wait_ns in comparison.waits_ns.items() if comparison else ():
            found.setdefault(rank, []).append(wait_ns)
    return found


def median_length_ns(samples: Sequence[StepSample]) -> int:
    """The median length of a step in ns."""
    return percentile([round(sample.length_ns) for sample in samples], 50)


def _costs(recording: Recording) -> list[StepCost]:
    by_step = dict(same_step(recording.syncs))
    requests: dict[int, dict[int, list[Interval]]] = {}
    for rank, many in recording.requests.items():
        for one in many:
            requests.setdefault(one.step, {}).setdefault(rank, []).append((one.begin_ns, one.end_ns))
    keys = recording.step_keys
    own = recording.own_waits if recording.groups is None else {}
    found = []
    for key, following in zip(keys, [*keys[1:], None], strict=False):
        after = by_step.get(following, []) if following is not None else []
        marks = {rank: mark for rank in recording.steps if (mark := recording.step_mark(rank, key)) is not None}
        found.append(step_cost(key, by_step.get(key, []), after, marks, requests.get(key, {}), own.get(key)))
    return found


def _aligned(recording: Recording, attribution: Attribution) -> Recording:
    """The recording with its steps shifted like the synchronizations that the attribution aligned."""
    moved = {(sync.step, sync.sync): sync for sync in attribution.syncs}
    shifts_ns: dict[tuple[int, int], int] = {}
    for sync in recording.syncs:
        if (sync.step, sync.sync) in moved:
            shifts_ns |= _shifts_ns(sync, moved[sync.step, sync.sync])
    steps = {
        rank: [_moved(mark, shifts_ns[rank, mark.step]) for mark in marks if (rank, mark.step) in shifts_ns]
        for rank, marks in recording.steps.items()
    }
    return replace(recording, syncs=attribution.syncs, steps=steps)


def _shifts_ns(before: Sync, after: Sync) -> dict[tuple[int, int], int]:
    return {
        (rank, before.step): arrival.arrival_ns - before.arrivals[rank].arrival_ns
        for rank, arrival in after.arrivals.items()
    }


def _moved(mark: StepMark, by_ns: int) -> StepMark:
    ready_ns = None if mark.ready_ns is None else mark.ready_ns + by_ns
    return StepMark(mark.step, mark.arrival_ns + by_ns, ready_ns, mark.end_ns + by_ns)


def place(now: Measured, late: Straggler) -> str:
    """Where the straggler loses its time, as far as the marks separate it."""
    if now.own_times is not None:
        slow = [*now.own_times.slow, *(each.slow for each in now.slow_spans)]
        return next(each.place for each in slow if each.straggler is late)
    if now.own_waits is not None:
        found = now.own_waits.place
        return f"in {late.where if found is None or found.text is None else found.text}"
    return late_place(now.recording.syncs, now.recording.step_marks, late)


#: Where the ranks of a mesh wait, for people.
IN_GROUPS = "its groups and messages"

StageName = Literal["compute", "synchronize", "update"]

_StageKey = tuple[str, StageName]


@dataclass(frozen=True, slots=True)
class Stage:
    """
    A stage: computing until the wait at `where`, the synchronization there, or (`where` "") the update after the last
    one. Of a job that synchronizes in groups `where` is the part of the step.

    `cost_ns` is the mean time that it adds to a step; the stages add up to the step's length. `rank` is the slowest one
    in `lead_share` of the steps (None: none, or explicable by chance).
    """

    where: str
    stage: StageName
    cost_ns: int
    share: float
    rank: int | None
    lead_share: float | None


@dataclass
class _StageTotals:
    cost_ns: int = 0
    leaders: list[int | None] = field(default_factory=list)


def stages(now: Measured) -> list[Stage]:
    """In the order of a step, from the steps in which every rank was measured; empty: there is none."""
    if now.own_times is not None or now.own_waits is not None:
        return _stages_in_groups(now)
    found: dict[_StageKey, _StageTotals] = {}
    steps = 0
    for key_costs in _each_step(now):
        steps += 1
        for key, cost_ns, rank in key_costs:
            stage = found.setdefault(key, _StageTotals())
            stage.cost_ns += cost_ns
            stage.leaders.append(rank)
    total_ns = sum(stage.cost_ns for stage in found.values())
    if not total_ns:
        return []
    tests = len(found) * now.recording.world_size
    return [
        Stage(*key, stage.cost_ns // steps, stage.cost_ns / total_ns, *_leader(stage.leaders, tests))
        for key, stage in sorted(found.items(), key=lambda one: one[0] == _UPDATE)
    ]


def _stages_in_groups(now: Measured) -> list[Stage]:
    """
    By the parts of their own time that the ranks state, and what they waited: each rank waits for others elsewhere, so no
    frontier is common to all.
    """
    found = step_parts(_own_waits(now.recording).values(), now.recording.world_size)
    if found is None:
        return []
    costs_ns: dict[_StageKey, int] = {}
    for part, text in found.texts.items():
        costs_ns[_UPDATE if part is OwnPart.OPTIMIZER else (text, "compute")] = found.parts_ns[part]
    costs_ns[IN_GROUPS, "synchronize"] = found.waited_ns
    total_ns = sum(costs_ns.values())
    in_order = sorted(costs_ns.items(), key=lambda one: one[0] == _UPDATE)
    return [Stage(*key, ns, ns / total_ns, None, None) for key, ns in in_order if ns] if total_ns else []


_UPDATE: _StageKey = ("", "update")


def _each_step(now: Measured) -> Iterator[list[tuple[_StageKey, int, int | None]]]:
    """By step: its stages, the time that each adds, and the rank that alone is the slowest (None: there is none)."""
    by_step = dict(same_step(now.recording.syncs))
    for cost in now.costs:
        syncs = by_step.get(cost.step, [])
        if syncs and len(cost.ranks) == now.recording.world_size and not now.waits_in_groups.get(cost.step):
            named: list[_StageKey] = []
            for where in positions(syncs):
                named += (where, "compute"), (where, "synchronize")
            boundaries = _boundaries(now, cost, syncs)
            leads = zip([*named, _UPDATE], frontier(boundaries), strict=False)
            yield [(key, each.cost_ns, each.rank if _is_ahead(each, boundaries) else None) for key, each in leads]


def _boundaries(now: Measured, cost: StepCost, syncs: list[Sync]) -> Mapping[int, list[Interval]]:
    """
    By rank, in ns since its step began: the interval of its wait at each synchronization, then the end of its step.
    """
    found = {}
    for rank, of_rank in cost.ranks.items():
        mark = now.recording.step_mark(rank, cost.step)
        began_ns = mark.arrival_ns if mark is not None else syncs[0].arrivals[rank].arrival_ns
        spans = [(sync.arrivals[rank].begin_ns - began_ns, sync.arrivals[rank].end_ns - began_ns) for sync in syncs]
        found[rank] = [*spans, (of_rank.elapsed_ns, of_rank.elapsed_ns)]
    return found


def _is_ahead(lead: StageCost, boundaries: Mapping[int, list[Interval]]) -> bool:
    """Whether the rank leads by more than the granularity of clock readings."""
    side = 0 if lead.stage == "reach" else 1
    at_ns = {rank: spans[lead.sync][side] for rank, spans in boundaries.items()}
    others_ns = max((ns for rank, ns in at_ns.items() if rank != lead.rank), default=None)
    return others_ns is not None and at_ns[lead.rank] - others_ns > READING_GRANULARITY_NS


def _leader(leaders: list[int | None], tests: int) -> tuple[int | None, float | None]:
    led = [{rank for rank in (each,) if rank is not None} for each in leaders]
    times_led = Counter(rank for rank in leaders if rank is not None)
    if not times_led:
        return None, None
    (rank, times), steps = times_led.most_common(1)[0], len(leaders)
    if not is_persistent(*independent_steps(times, steps, independent_part(led)), tests):
        return None, None
    return rank, times / steps


Cause = Literal["wait", "transfer", "undivided", "request"]


@dataclass(frozen=True, slots=True)
class OverheadSource:
    """
    One cause: the exposed time of all ranks in ns, and its share of all exposed time.

    `wait`: for `rank`, the last to arrive (None: inconclusive); `transfer`: after the last arrival; `undivided`: the
    clocks cannot separate the two; `request`: a push or pull of `rank`.
    """

    cause: Cause
    rank: int | None
    where: str
    exposed_ns: int
    share: float


def overhead_sources(now: Measured) -> list[OverheadSource]:
    """
    Every cause, the largest first; their sum is the exposed time of the measured steps.

    Time that belongs to several synchronizations or requests counts for the one that ends first, so none counts twice.
    """
    if now.own_times is not None:
        return _named_sources(_costs_in_groups(now.recording))
    if now.own_waits is not None:
        return _named_sources({("undivided", None, IN_GROUPS): now.exposed_ns})
    compared = {(sync.step, sync.sync): sync.comparison for sync in now.attribution.syncs}
    by_step = dict(same_step(now.recording.syncs))
    requests = _requests(now.recording)
    costs_ns: dict[_CauseKey, int] = defaultdict(int)
    for cost in now.costs:
        if now.waits_in_groups.get(cost.step):
            costs_ns["undivided", None, IN_GROUPS] += cost.exposed_ns
            continue
        step = by_step.get(cost.step, [])
        named = list(zip(step, positions(step), [compared.get((sync.step, sync.sync)) for sync in step], strict=True))
        for rank, (_, elapsed_ns) in cost.ranks.items():
            mark = now.recording.step_mark(rank, cost.step)
            begin_ns = mark.arrival_ns if mark is not None else step[0].arrivals[rank].arrival_ns
            parts = [_timed_cause(sync.arrivals[rank], name, rank, comparison) for sync, name, comparison in named]
            pushes_and_pulls = [
                _TimedCause(*span, ("request", rank, "its requests")) for span in requests.get((rank, cost.step), [])
            ]
            for source, cost_ns in _time_by_cause([*parts, *pushes_and_pulls], (begin_ns, begin_ns + elapsed_ns)):
                costs_ns[source] += cost_ns
    return _named_sources(costs_ns)


def _named_sources(costs_ns: Mapping[_CauseKey, int]) -> list[OverheadSource]:
    total_ns = sum(costs_ns.values())
    found = [
        OverheadSource(*source, cost_ns, cost_ns / total_ns) for source, cost_ns in costs_ns.items() if cost_ns > 0
    ]
    return sorted(found, key=lambda source: -source.exposed_ns)


def _costs_in_groups(recording: Recording) -> Mapping[_CauseKey, int]:
    """By group and kind. Which rank was waited for is not stated: it may have waited itself."""
    groups = recording.groups
    assert groups is not None, "the recording has groups"
    compared = {
        (sync.communicator, sync.number): compare(sync.arrivals) for sync in groups.syncs if len(sync.arrivals) > 1
    }
    costs_ns: dict[_CauseKey, int] = defaultdict(int)
    for rank in range(recording.world_size):
        parts: dict[int, list[_TimedCause]] = defaultdict(list)
        for mark in groups.marks.get(rank, ()):
            name = f"{kind_text(mark.kind)} of the {group_text(mark.communicator)}"
            comparison = compared.get((mark.communicator, mark.number))
            parts[mark.step].append(_timed_cause(mark.arrival, name, rank, comparison))
        for sync in recording.syncs:
            if rank in sync.arrivals:
                name = f"{kind_text(sync.kind)} of {group_text(None)}"
                parts[sync.step].append(_timed_cause(sync.arrivals[rank], name, rank, sync.comparison))
        before: list[_TimedCause] = []  # one that is issued in a step may end in the next one
        for step in recording.steps.get(rank, ()):
            own = parts.get(step.step, [])
            for (cause, _, where), cost_ns in _time_by_cause([*before, *own], (step.arrival_ns, step.end_ns)):
                costs_ns[cause, None, where] += cost_ns
            before = own
    return costs_ns


_CauseKey = tuple[Cause, int | None, str]


class _TimedCause(NamedTuple):
    """
    A rank's wait or request. Until `last_ns` its cause is `before` (None: there is one cause only), then `source`.
    """

    begin_ns: int
    end_ns: int
    source: _CauseKey
    before: _CauseKey | None = None
    last_ns: int = 0


def _timed_cause(arrival: Arrival, name: str, rank: int, comparison: Comparison | None) -> _TimedCause:
    if comparison is None:
        return _TimedCause(arrival.begin_ns, arrival.end_ns, ("undivided", None, name))
    last_ns = arrival.arrival_ns + comparison.waits_ns[rank]
    wait: _CauseKey = ("wait", comparison.last_rank, name)
    return _TimedCause(arrival.begin_ns, arrival.end_ns, ("transfer", None, name), wait, last_ns)


def _requests(recording: Recording) -> dict[tuple[int, int], list[Interval]]:
    """By rank and step."""
    found: dict[tuple[int, int], list[Interval]] = defaultdict(list)
    for rank, requests in recording.requests.items():
        for request in requests:
            found[rank, request.step].append((request.begin_ns, request.end_ns))
    return found


def _time_by_cause(parts: Sequence[_TimedCause], within: Interval) -> Iterator[tuple[_CauseKey, int]]:
    for part, begin_ns, end_ns in _intervals(parts, within):
        if part.before is not None:
            yield part.before, min(max(part.last_ns - begin_ns, 0), end_ns - begin_ns)
            begin_ns = min(max(part.last_ns, begin_ns), end_ns)
        yield part.source, end_ns - begin_ns


def _intervals(parts: Sequence[_TimedCause], within: Interval) -> Iterator[tuple[_TimedCause, int, int]]:
    """Disjoint intervals that cover the parts within `within`, each with the part that ends first."""
    at_ns, until_ns = within
    begun: list[tuple[int, int]] = []
    upcoming = sorted((part.begin_ns, number) for number, part in enumerate(parts))
    for next_ns, number in [*upcoming, (until_ns, -1)]:
        next_ns = min(next_ns, until_ns)
        while begun and at_ns < next_ns:
            end_ns, first = begun[0]
            if end_ns > at_ns:
                yield parts[first], at_ns, min(end_ns, next_ns)
                at_ns = min(end_ns, next_ns)
            if end_ns <= at_ns:
                heappop(begun)
        at_ns = max(at_ns, next_ns)
        if number >= 0:
            heappush(begun, (parts[number].end_ns, number))
