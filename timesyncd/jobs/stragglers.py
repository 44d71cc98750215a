"""
Attributes lateness: which ranks are late, where in the step, by how much, at what cost, and by which method that is
known. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from statistics import median as middle_of

from timesyncd.ipc.job_datagram import Trait, kind_text, kinds_with
from timesyncd.ipc.job_segment import Method
from timesyncd.jobs import collective_ends
from timesyncd.jobs.arrivals import Comparison, Sync, step_ns, widest_skew_sync
from timesyncd.jobs.causality import StepsApart, Suspicion, did_not_wait, steps_apart, suspect
from timesyncd.jobs.exposed import waited_ns
from timesyncd.jobs.lateness import MIN_CONCLUSIVE_STEPS, independent_part, independent_steps, is_persistent
from timesyncd.jobs.own_lateness import with_own_lateness
from timesyncd.jobs.wander import MAX_OTHERS, has_level
from timesyncd.messages.jobs import StragglerVerdict
from timesyncd.units import SIGMA_PER_MAD, median, percentile

_BUCKETS = kinds_with(Trait.BUCKET)

#: A straggler's median lateness exceeds that of all ranks by more than so many of their spreads: the modified z-score
#: of Iglewicz and Hoaglin (1993).
OUTLIER_SPREADS = 3.5

#: A rank that is late by less than one part in so many of a step, or by less than the second, is no straggler: ranks
#: always arrive in some order.
STEP_PART = 200
MIN_LATENESS_NS = 50_000

#: Steps whose buckets have other sizes are steps of another module, as the two of a GAN, if each kind of step is at
#: least one in so many.
MODULE_PART = 10

#: A rank is late in some of the steps alone if at most one step in so many has a lateness between, and as many have none.
_BETWEEN_PART = 10

StepPosition = tuple[int, int]
"""(kind, number of synchronizations of this kind before it in the step)."""

_BucketSizes = tuple[int, ...]

_ModulePosition = tuple[int, StepPosition]
"""The bytes of the step's buckets where steps of several modules alternate, else 0; and the position in the step."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """
    A rank that is late persistently. `lateness_p50_ns` is against the median rank, at `where`: the position in the step
    at which its lateness grows most. `exposed_ns` is how much of its lateness the others spent only waiting, over the
    window; 0: all of it was hidden.

    `late_share`: of the steps, those of which that median is; below 1 in the others it is hardly late.

    In `last_share` of the compared steps it surely arrived last there. `verdict` "inconclusive": it seems late, but
    within the clocks' error.
    """

    rank: int
    last_share: float
    lateness_p50_ns: int
    exposed_ns: int
    where: str
    verdict: StragglerVerdict
    late_share: float = 1.0


@dataclass(frozen=True, slots=True)
class Attribution:
    """
    `syncs` are compared by `method` (None: they do not compare). Differences between two ranks are right within
    +-`clock_bound_ns`, the median over the window: a bound by clocks, a statistical uncertainty by ends. `trusted`: the
    skew exceeds it. `stragglers`: the worst first. `unwaited` synchronizations were no wait for all ranks, as their
    times show; they are not compared. `may_be_chance`: a rank that is not among the stragglers seems late, but lateness
    that only lasts for many steps looks the same in so few. `apart`: the ranks' steps are, and where that is half of
    them or more, none compares.
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
    may_be_chance: bool = False
    apart: StepsApart | None = None


def position_text(position: StepPosition, module_bytes: int = 0) -> str:
    """For people: `bucket 2`, or `bucket 2 of the module with 1.05 MB of gradients` where modules alternate."""
    kind, ordinal = position
    of_module = f" of the module with {module_bytes / 1e6:.3g} MB of gradients" if module_bytes else ""
    return f"{kind_text(kind)} {ordinal}{of_module}"


def attribute(syncs: Sequence[Sync], nodes: Mapping[int, str], world_size: int = 0) -> Attribution:
    """
    Attribute the lateness in these synchronizations, in the order of (step, sync). Only those with all `world_size`
    ranks count (0: as many as any of them has). `nodes`: by rank, the node from which its marks are verified to come;
    only those clocks are suspected.
    """
    whole = _whole(syncs, world_size)
    apart = steps_apart(whole)
    if apart is not None and 2 * apart.part >= 1:
        method, compared_syncs = None, _ComparedSyncs([replace(sync, comparison=None) for sync in whole])
    else:
        method, compared_syncs = _by_best_method(_ComparedSyncs(_waited(whole)))
    stragglers, may_be_chance = _stragglers(compared_syncs)
    return Attribution(
        method=method,
        clock_bound_ns=compared_syncs.error_ns,
        trusted=compared_syncs.trusted,
        skew_p50_ns=median(compared_syncs.skews),
        skew_p99_ns=percentile(compared_syncs.skews, 99) if compared_syncs.skews else None,
        stragglers=tuple(stragglers),
        suspicion=suspect(whole, nodes),
        syncs=compared_syncs.syncs,
        unwaited=sum(map(did_not_wait, whole)),
        may_be_chance=may_be_chance,
        apart=apart,
    )


def _whole(syncs: Sequence[Sync], world_size: int) -> list[Sync]:
    """The synchronizations that have all ranks; with fewer, the late rank is unknown."""
    world = max((len(sync.arrivals) for sync in syncs), default=world_size)
    world = max(world, world_size)
    return [sync for sync in syncs if len(sync.arrivals) == world]


def _waited(syncs: Sequence[Sync]) -> list[Sync]:
    """
    Without the comparison where it was no wait for all ranks (local SGD, marks that are a step apart): it shows no
    lateness.
    """
    waited = [replace(sync, comparison=None) if did_not_wait(sync) else sync for sync in syncs]
    return with_own_lateness(waited)


class _ComparedSyncs:
    """Synchronizations as one method compares them."""

    def __init__(self, syncs: Sequence[Sync]) -> None:
        self.syncs = syncs
        self.compared = [sync.comparison for sync in syncs if sync.comparison is not None]
        steps = [widest_skew_sync(group).comparison for _, group in groupby(syncs, key=lambda sync: sync.step)]
        self.skews = [comparison.skew_ns for comparison in steps if comparison is not None]
        self.error_ns = median([comparison.error_ns for comparison in self.compared])

    @property
    def mostly_compares(self) -> bool:
        return 2 * len(self.compared) >= len(self.syncs) > 0

    @cached_property
    def trusted(self) -> bool:
        return self.error_ns is not None and (median(self.skews) or 0) > self.error_ns

    @property
    def clocks(self) -> int:
        return len({arrival.clock for sync in self.syncs for arrival in sync.arrivals.values()})


def _by_best_method(by_clocks: _ComparedSyncs) -> tuple[Method | None, _ComparedSyncs]:
    """By the clocks where these distinguish the ranks, else by the method with the smaller error."""
    if by_clocks.mostly_compares and by_clocks.trusted:
        return _clock_method(by_clocks), by_clocks
    found = collective_ends.aligned(by_clocks.syncs, by_clocks.error_ns if by_clocks.mostly_compares else None)
    by_ends = _ComparedSyncs(_waited(found or ()))
    if by_ends.compared:
        return Method.COLLECTIVE_ENDS, by_ends
    return _clock_method(by_clocks), by_clocks


def _clock_method(compared_syncs: _ComparedSyncs) -> Method | None:
    if not compared_syncs.compared:
        return None
    return Method.ONE_CLOCK if compared_syncs.clocks == 1 else Method.CLOCK_BOUNDS


def stragglers_in(syncs: Sequence[Sync]) -> list[Straggler]:
    """The stragglers of a part of the synchronizations that an attribution compared, the worst first."""
    return stragglers_and_doubt(syncs)[0]


def stragglers_and_doubt(syncs: Sequence[Sync]) -> tuple[list[Straggler], bool]:
    """The same, and whether another rank seems late that chance may have made so."""
    return _stragglers(_ComparedSyncs(syncs))


def _stragglers(compared_syncs: _ComparedSyncs) -> tuple[list[Straggler], bool]:
    """The stragglers, the worst first, and whether another rank seems late that chance may have made so."""
    histories = _histories(compared_syncs.syncs)
    ranks_tested = max((len(c.lateness_ns) for c in compared_syncs.compared), default=0)
    floor_ns = max(MIN_LATENESS_NS, (step_ns(compared_syncs.syncs) or 0) // STEP_PART)
    parts = [ranks_tested * part for part in _parts_of_alarm(len(histories))]
    late = [each for each, tests in zip(histories, parts, strict=True) if each.find_late_ranks(tests, floor_ns)]
    ranks = {rank for history in late for rank in history.late}
    exposed_ns = _exposed_ns(compared_syncs.syncs, ranks) if ranks else Counter[int]()
    found = [_straggler(rank, histories, exposed_ns[rank]) for rank in ranks]
    found.sort(key=lambda s: (s.verdict != "straggler", -s.exposed_ns, -s.lateness_p50_ns, s.rank))
    return found, any(history.by_chance - ranks for history in histories)


def _parts_of_alarm(positions: int) -> Iterator[int]:
    """
    By position of the step, which part of FALSE_ALARM its tests may use: one in so many. The parts sum to at most 1.

    A rank that is slow before a step is late at the first position already, so that one has half of it. The many
    positions of a deep model do not hide such a rank, and what is late only further on needs one independent step more.
    """
    if positions:
        yield 1 if positions == 1 else 2
        yield from [2 * (positions - 1)] * (positions - 1)


class _PositionHistory:
    """
    The comparisons at one position of the step, over the window. `late`: the ranks that are late there, and whether
    that is sure. `by_chance`: the ranks that seem late there, but may only wander.
    """

    def __init__(self, module_bytes: int, position: StepPosition) -> None:
        self.module_bytes = module_bytes
        self.position = position
        self.compared: list[Comparison] = []
        self.late: dict[int, bool] = {}
        self.by_chance: set[int] = set()

    def find_late_ranks(self, tests: int, floor_ns: int) -> bool:
        """Find the ranks that are late here persistently and are outliers. Whether there are any."""
        steps = len(self.compared)
        seems = Counter(rank for comparison in self.compared for rank in comparison.late_ranks)
        sure = Counter(rank for comparison in self.compared for rank in comparison.surely_late_ranks)
        often = [rank for rank, times in seems.items() if is_persistent(times, steps, tests)]
        part = independent_part([set(comparison.late_ranks) for comparison in self.compared]) if often else 1.0
        often = [rank for rank in often if is_persistent(*independent_steps(seems[rank], steps, part), tests)]
        if often:
            medians = {rank: self.lateness_p50_ns(rank) for rank in self.compared[0].lateness_ns}
            limit_ns = max(floor_ns, _outlier_limit_ns(list(medians.values())))
            late = [rank for rank in often if medians.get(rank, 0) > limit_ns]
            surely = {rank: is_persistent(*independent_steps(sure[rank], steps, part), tests) for rank in late}
            self.by_chance = {rank for rank in late if surely[rank] and not self._has_level(rank)}
            self.late = {rank: each for rank, each in surely.items() if rank not in self.by_chance}
        return bool(self.late)

    def lateness_p50_ns(self, rank: int) -> int:
        return median([c.lateness_ns[rank] for c in self.compared if rank in c.lateness_ns]) or 0

    def lateness_where_late(self, rank: int) -> tuple[int, float]:
        """
        The rank's median lateness of the steps in which it is late, and their share. All steps count, unless the lateness
        is of two kinds: then their common median may be anything between.
        """
        values_ns = [c.lateness_ns[rank] for c in self.compared if rank in c.lateness_ns]
        large_ns = percentile(values_ns, 90)
        late_ns = [each for each in values_ns if 2 * each >= large_ns]
        between = sum(large_ns < 4 * each < 3 * large_ns for each in values_ns)
        hardly_late = len(values_ns) - len(late_ns)
        if between * _BETWEEN_PART > len(values_ns) or hardly_late * _BETWEEN_PART < len(values_ns):
            return self.lateness_p50_ns(rank), 1.0
        return percentile(late_ns, 50), len(late_ns) / len(values_ns)

    def _has_level(self, rank: int) -> bool:
        """
        Whether the rank's lateness is no wander, tested once a rank: what wanders, the places of a step share. Of two
        ranks the other is as early, so it shows nothing more.
        """
        ranks = len(self.compared[0].lateness_ns)
        others = [other for other in self.compared[0].lateness_ns if other != rank]
        some = others[:: -(-len(others) // MAX_OTHERS)] if len(others) > 1 else []
        return has_level(self._against_the_others_ns(rank), [self._against_the_others_ns(each) for each in some], ranks)

    def _against_the_others_ns(self, rank: int) -> list[float]:
        """Step by step, how much later than the median of the other ranks it arrived."""
        return [
            c.lateness_ns[rank] - middle_of(late_ns for other, late_ns in c.lateness_ns.items() if other != rank)
            for c in self.compared
        ]

    def last_share(self, rank: int) -> float:
        return sum(comparison.last_rank == rank for comparison in self.compared) / len(self.compared)


def _outlier_limit_ns(values: Sequence[int]) -> int:
    middle = percentile(values, 50)
    spread_ns = SIGMA_PER_MAD * percentile([abs(value - middle) for value in values], 50)
    return middle + round(OUTLIER_SPREADS * spread_ns)


def _straggler(rank: int, histories: Sequence[_PositionHistory], exposed_ns: int) -> Straggler:
    """
    The rank as a straggler, at the position where its lateness grows most, up to the last one where it is late: behind
    that, overlapping collectives may only carry its lateness on. The lateness may be certain only at a later position
    than that.
    """
    sure = any(history.late.get(rank, False) for history in histories)
    last = max(number for number, history in enumerate(histories) if history.late.get(rank) == sure)
    grown_ns: dict[int, _PositionHistory] = {}
    before_ns = 0
    module = histories[0].module_bytes
    for history in histories[: last + 1]:
        lateness_ns = history.lateness_p50_ns(rank)
        if history.module_bytes != module:
            module, before_ns = history.module_bytes, 0
        grown_ns.setdefault(lateness_ns - max(0, before_ns), history)
        before_ns = lateness_ns
    where = grown_ns[max(grown_ns)]
    lateness_ns, late_share = where.lateness_where_late(rank)
    return Straggler(
        rank=rank,
        last_share=where.last_share(rank),
        lateness_p50_ns=lateness_ns,
        exposed_ns=exposed_ns,
        where=position_text(where.position, where.module_bytes),
        verdict="straggler" if sure else "inconclusive",
        late_share=late_share,
    )


def _histories(syncs: Sequence[Sync]) -> list[_PositionHistory]:
    """The positions that enough steps have, in the order in which a step reaches them."""
    histories: dict[_ModulePosition, _PositionHistory] = {}
    first: dict[_ModulePosition, int] = {}
    for position, sync in _positions(syncs):
        history = histories.setdefault(position, _PositionHistory(*position))
        first[position] = min(first.get(position, sync.sync), sync.sync)
        if sync.comparison is not None:
            history.compared.append(sync.comparison)
    enough = [position for position, history in histories.items() if len(history.compared) >= MIN_CONCLUSIVE_STEPS]
    in_order = sorted(enough, key=lambda position: (position[0], first[position], position[1]))
    return [histories[position] for position in in_order]


def _positions(syncs: Sequence[Sync]) -> Iterator[tuple[_ModulePosition, Sync]]:
    steps = [list(step) for _, step in groupby(syncs, key=lambda sync: sync.step)]
    sizes = [_bucket_bytes(step) for step in steps]
    modules = _alternating(sizes)
    for step, size in zip(steps, sizes, strict=True):
        module_bytes = sum(_longest_of(size, modules)) if modules else 0
        before: Counter[int] = Counter()
        for sync in step:
            yield (module_bytes, (sync.kind, before[sync.kind])), sync
            before[sync.kind] += 1


def module_sizes(syncs: Sequence[Sync]) -> list[int]:
    """The bytes of gradients of each module, where the steps of several modules alternate; empty: there is one."""
    found = _alternating([_bucket_bytes(list(step)) for _, step in groupby(syncs, key=lambda sync: sync.step)])
    return sorted(sum(sizes) for sizes in found)


def _alternating(steps: Sequence[_BucketSizes]) -> list[_BucketSizes]:
    """
    The buckets of each module; empty: there is one. A step that ends before another one does, as of a critic that is
    updated more often than its generator, has the same places.
    """
    enough = [sizes for sizes, times in Counter(steps).items() if sizes and times * MODULE_PART >= len(steps)]
    found = {_longest_of(sizes, enough) for sizes in enough}
    return sorted(found) if len(found) > 1 else []


def _longest_of(sizes: _BucketSizes, modules: Sequence[_BucketSizes]) -> _BucketSizes:
    """The longest of the modules that begins with these buckets."""
    return max((module for module in modules if module[: len(sizes)] == sizes), key=len, default=sizes)


def _bucket_bytes(step: Sequence[Sync]) -> _BucketSizes:
    """The size of each of the step's gradient buckets, equal on all ranks."""
    return tuple(max(each.bytes for each in sync.arrivals.values()) for sync in step if sync.kind in _BUCKETS)


def _exposed_ns(syncs: Sequence[Sync], ranks: set[int]) -> Counter[int]:
    """
    How much of each rank's lateness the others waited for. Two positions of one step are not counted twice: a rank that
    is still inside an earlier synchronization does not wait for the next.
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
