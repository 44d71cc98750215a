"""Who is late, where in the step, by how much, what it costs, and by which clock that is known. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Literal

from timesyncd.ipc.job_datagram import kind_text
from timesyncd.ipc.job_segment import Method
from timesyncd.jobs import collective_ends
from timesyncd.jobs.arrivals import Comparison, Sync, step_ns, widest_skew_sync
from timesyncd.jobs.causality import Suspicion, did_not_wait, suspect
from timesyncd.jobs.exposed import waited_ns
from timesyncd.jobs.lateness import MIN_CONCLUSIVE_STEPS, independent_part, independent_steps, is_persistent
from timesyncd.units import median, percentile

#: A straggler's median lateness lies further from that of all ranks than so many of their spreads: Iglewicz and Hoaglin's modified z-score (1993).
STANDS_OUT = 3.5
_SIGMA_OF_MAD = 1.4826

#: What is late by less than this part of a step, or by less than this, is not worth a name: ranks always have some order.
STEP_PART = 200
LEAST_LATENESS_NS = 50_000

StepPosition = tuple[int, int]
"""(kind, how many of this kind the step had before)."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """
    A rank that is late persistently. `lateness_p50_ns` is against the median rank, at `where`: the place of the step at which its lateness grows the
    most. `exposed_ns` is, over the window, how much of its lateness the others spent waiting for nothing else: 0 = it was all hidden.

    `last_share` of the compared steps it was surely the last there. `verdict` "inconclusive": it seems late, but by less than the clocks tell apart.
    """

    rank: int
    last_share: float
    lateness_p50_ns: int
    exposed_ns: int
    where: str
    verdict: Literal["straggler", "inconclusive"]


@dataclass(frozen=True, slots=True)
class Attribution:
    """
    `syncs` are compared by `method` (None: by nothing), and what that says between two ranks is right within +-`clock_bound_ns`, the median over the
    window: a bound by clocks, a statistical uncertainty by ends. `stragglers` are the worst first. `trusted`: the skew is larger than that. `unwaited`: so many
    synchronizations were no wait for all ranks, by the times themselves; they are compared with nothing.
    """

    method: Method | None
    clock_bound_ns: int | None
    trusted: bool
    skew_p50_ns: int | None
    skew_p99_ns: int | None
    stragglers: tuple[Straggler, ...]
    suspicion: Suspicion | None
    syncs: Sequence[Sync]
    unwaited: int = 0


def position_text(position: StepPosition) -> str:
    """For people: `bucket 2`."""
    kind, ordinal = position
    return f"{kind_text(kind)} {ordinal}"


def attribute(syncs: Sequence[Sync], nodes: Mapping[int, str], world_size: int = 0) -> Attribution:
    """
    Over these synchronizations, in the order of (step, sync), that have all `world_size` ranks (0: as many as any of them has). `nodes`: by rank,
    where its marks are known to come from; a clock is suspected only there.
    """
    whole = _whole(syncs, world_size)
    by_clocks = _Seen(_waited(whole))
    method, seen = _best(by_clocks)
    return Attribution(
        method=method,
        clock_bound_ns=seen.error_ns,
        trusted=seen.trusted,
        skew_p50_ns=median(seen.skews),
        skew_p99_ns=percentile(seen.skews, 99) if seen.skews else None,
        stragglers=tuple(_stragglers(seen)),
        suspicion=suspect(whole, nodes),
        syncs=seen.syncs,
        unwaited=sum(map(did_not_wait, whole)),
    )


def _whole(syncs: Sequence[Sync], world_size: int) -> list[Sync]:
    """Those that have all ranks: of fewer, nobody knows who was late."""
    world = max((len(sync.arrivals) for sync in syncs), default=world_size)
    world = max(world, world_size)
    return [sync for sync in syncs if len(sync.arrivals) == world]


def _waited(syncs: Sequence[Sync]) -> list[Sync]:
    """What was no wait for all ranks (local SGD, marks that are a step apart) tells nothing of who was late."""
    return [replace(sync, comparison=None) if did_not_wait(sync) else sync for sync in syncs]


class _Seen:
    """Synchronizations as one method compares them."""

    def __init__(self, syncs: Sequence[Sync]) -> None:
        self.syncs = syncs
        self.compared = [sync.comparison for sync in syncs if sync.comparison is not None]
        steps = [widest_skew_sync(group).comparison for _, group in groupby(syncs, key=lambda sync: sync.step)]
        self.skews = [comparison.skew_ns for comparison in steps if comparison is not None]
        self.error_ns = median([comparison.error_ns for comparison in self.compared])

    @property
    def holds_mostly(self) -> bool:
        return 2 * len(self.compared) >= len(self.syncs) > 0

    @cached_property
    def trusted(self) -> bool:
        return self.error_ns is not None and (median(self.skews) or 0) > self.error_ns

    @property
    def clocks(self) -> int:
        return len({arrival.clock for sync in self.syncs for arrival in sync.arrivals.values()})


def _best(by_clocks: _Seen) -> tuple[Method | None, _Seen]:
    """The clocks wherever they tell the ranks apart; else whatever tells more."""
    if by_clocks.holds_mostly and by_clocks.trusted:
        return _by_clocks(by_clocks), by_clocks
    found = collective_ends.aligned(by_clocks.syncs, by_clocks.error_ns if by_clocks.holds_mostly else None)
    by_ends = _Seen(_waited(found or ()))
    if by_ends.compared:
        return Method.COLLECTIVE_ENDS, by_ends
    return _by_clocks(by_clocks), by_clocks


def _by_clocks(seen: _Seen) -> Method | None:
    if not seen.compared:
        return None
    return Method.ONE_CLOCK if seen.clocks == 1 else Method.CLOCK_BOUNDS


def _stragglers(seen: _Seen) -> list[Straggler]:
    places = _places(seen.syncs)
    tests = len(places) * max((len(c.lateness_ns) for c in seen.compared), default=0)
    floor_ns = max(LEAST_LATENESS_NS, (step_ns(seen.syncs) or 0) // STEP_PART)
    late = [place for place in places if place.find_late(tests, floor_ns)]
    ranks = {rank for place in late for rank in place.late}
    exposed_ns = _exposed_ns(seen.syncs, ranks) if ranks else Counter[int]()
    found = [_straggler(rank, places, exposed_ns[rank]) for rank in ranks]
    return sorted(found, key=lambda s: (s.verdict != "straggler", -s.exposed_ns, -s.lateness_p50_ns, s.rank))


class _Place:
    """One position of the step, over the window's comparisons there. `late` tells by rank whether that is sure."""

    def __init__(self, position: StepPosition) -> None:
        self.position = position
        self.compared: list[Comparison] = []
        self.late: dict[int, bool] = {}

    def find_late(self, tests: int, floor_ns: int) -> bool:
        """The ranks that are late here persistently, and stand out; whether there is any."""
        steps = len(self.compared)
        seems = Counter(rank for comparison in self.compared for rank in comparison.late_ranks)
        sure = Counter(rank for comparison in self.compared for rank in comparison.surely_late_ranks)
        often = [rank for rank, times in seems.items() if is_persistent(times, steps, tests)]
        part = independent_part([set(comparison.late_ranks) for comparison in self.compared]) if often else 1.0
        often = [rank for rank in often if is_persistent(*independent_steps(seems[rank], steps, part), tests)]
        if often:
            medians = {rank: self.lateness_p50_ns(rank) for rank in self.compared[0].lateness_ns}
            limit_ns = max(floor_ns, _outside_ns(list(medians.values())))
            late = [rank for rank in often if medians.get(rank, 0) > limit_ns]
            self.late = {rank: is_persistent(*independent_steps(sure[rank], steps, part), tests) for rank in late}
        return bool(self.late)

    def lateness_p50_ns(self, rank: int) -> int:
        return median([c.lateness_ns[rank] for c in self.compared if rank in c.lateness_ns]) or 0

    def last_share(self, rank: int) -> float:
        return sum(comparison.last_rank == rank for comparison in self.compared) / len(self.compared)


def _outside_ns(values: Sequence[int]) -> int:
    middle = percentile(values, 50)
    spread_ns = _SIGMA_OF_MAD * percentile([abs(value - middle) for value in values], 50)
    return middle + round(STANDS_OUT * spread_ns)


def _straggler(rank: int, places: Sequence[_Place], exposed_ns: int) -> Straggler:
    """
    Where its lateness grows the most, up to where it is late: from there on it may only be carried on, by the collectives that overlap. That it is late there
    need not be sure there: a place further on may tell.
    """
    sure = any(place.late.get(rank, False) for place in places)
    last = max(number for number, place in enumerate(places) if place.late.get(rank) == sure)
    grown_ns: dict[int, _Place] = {}
    before_ns = 0
    for place in places[: last + 1]:
        lateness_ns = place.lateness_p50_ns(rank)
        grown_ns.setdefault(lateness_ns - max(0, before_ns), place)
        before_ns = lateness_ns
    where = grown_ns[max(grown_ns)]
    return Straggler(
        rank=rank,
        last_share=where.last_share(rank),
        lateness_p50_ns=where.lateness_p50_ns(rank),
        exposed_ns=exposed_ns,
        where=position_text(where.position),
        verdict="straggler" if sure else "inconclusive",
    )


def _places(syncs: Sequence[Sync]) -> list[_Place]:
    """The positions that enough steps have, in the order in which a step comes to them."""
    places: dict[StepPosition, _Place] = {}
    first: dict[StepPosition, int] = {}
    for position, sync in _positions(syncs):
        place = places.setdefault(position, _Place(position))
        first[position] = min(first.get(position, sync.sync), sync.sync)
        if sync.comparison is not None:
            place.compared.append(sync.comparison)
    enough = [position for position, place in places.items() if len(place.compared) >= MIN_CONCLUSIVE_STEPS]
    return [places[position] for position in sorted(enough, key=lambda position: (first[position], position))]


def _positions(syncs: Sequence[Sync]) -> Iterator[tuple[StepPosition, Sync]]:
    for _, step in groupby(syncs, key=lambda sync: sync.step):
        before: Counter[int] = Counter()
        for sync in step:
            yield (sync.kind, before[sync.kind]), sync
            before[sync.kind] += 1


def _exposed_ns(syncs: Sequence[Sync], ranks: set[int]) -> Counter[int]:
    """
    How much of each rank's lateness the others waited for. Two places of one step are not counted twice: who is still inside an
    earlier synchronization does not wait for the next one.
    """
    total: Counter[int] = Counter()
    for _, step in groupby(syncs, key=lambda sync: sync.step):
        free_ns: dict[int, int] = {}
        for sync in step:
            if sync.comparison is not None:
                for rank in ranks.intersection(sync.comparison.late_ranks):
                    total[rank] += waited_ns(sync, sync.comparison, rank, free_ns)
            for rank, arrival in sync.arrivals.items():
                free_ns[rank] = max(free_ns.get(rank, 0), arrival.end_ns)
    return total
