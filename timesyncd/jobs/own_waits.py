"""
Who is slow in a running job whose ranks synchronize in groups: each rank's own time by step, as the rank itself adds it
up, against the ranks that do the same work. Pure.

A hub does not know which ranks share their data. So a rank is named only if no other one is slow with it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from timesyncd.ipc.job_datagram import Kind
from timesyncd.jobs.arrivals import Arrival, Sync, compare
from timesyncd.jobs.exposed import OwnWait
from timesyncd.jobs.own_place import OwnPlace, own_place
from timesyncd.jobs.stragglers import Straggler, stragglers_and_doubt

#: A rank is slow together with another one that is late by at least one part in so many of it.
_TOGETHER_PART = 2

#: What of a slow rank is compared, for people: what it waited is not in it.
OWN_PLACE = "its own time of a step"

OwnStepTimes = Sequence[tuple[int, Mapping[int, OwnWait]]]
"""By key in order, each rank's."""


@dataclass(frozen=True)
class OwnComparison:
    """
    `slow`: the rank that takes longer than its like. `together`: ranks that are slow together, so none is named.
    `alone`: those that have no other rank with the same work. `unknown`: those of which calls have no mark; then nothing
    is compared. `may_be_chance`: as of an Attribution. `step`: the newest one that all ranks have sent. `place`: of the
    slow rank.
    """

    step: int
    slow: Straggler | None = None
    together: tuple[int, ...] = ()
    alone: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    may_be_chance: bool = False
    compared_steps: int = 0
    place: OwnPlace | None = None


def compare_own(steps: OwnStepTimes, world_size: int) -> OwnComparison | None:
    """Of the steps of which all ranks have sent theirs. None: in most steps the ranks do not synchronize in groups."""
    whole = [(key, own) for key, own in steps if len(own) == world_size]
    if not whole or 2 * sum(bool(own) for _, own in steps) < len(steps):
        return None
    unknown = {rank for _, own in whole for rank, each in own.items() if each.waited_ns is None}
    if unknown:
        return OwnComparison(whole[-1][0], unknown=tuple(sorted(unknown)))
    classes = _classes(whole)
    alone = sorted(rank for ranks, _ in classes if len(ranks) < 2 for rank in ranks)
    found, lateness_ns, may_be_chance, compared = [], dict[int, int](), False, 0
    for ranks, alike in classes:
        if len(ranks) > 1 and alike:
            stragglers, doubt = stragglers_and_doubt(list(_compared(ranks, alike)))
            usual_ns = [_lower_median([_own_ns(own, rank) for rank in ranks]) for _, own in alike]
            found += [
                replace(each, where=OWN_PLACE, exposed_ns=_exposed_ns(each.rank, usual_ns, alike))
                for each in stragglers
            ]
            lateness_ns |= {rank: _lateness_ns(rank, usual_ns, alike) for rank in ranks}
            may_be_chance, compared = may_be_chance or doubt, max(compared, len(alike))
    sure = [each for each in found if each.verdict == "straggler"]
    together = tuple(sorted(_together(sure, lateness_ns)))
    slow = sure[0] if sure and not together and not alone else None
    place = None if slow is None else _place(slow.rank, classes)
    return OwnComparison(whole[-1][0], slow, together, tuple(alone), (), may_be_chance, compared, place)


def _place(rank: int, classes: Sequence[tuple[tuple[int, ...], OwnStepTimes]]) -> OwnPlace:
    like, alike = next(each for each in classes if rank in each[0])
    return own_place(rank, like, [own for _, own in alike])


def _together(sure: Sequence[Straggler], lateness_ns: Mapping[int, int]) -> set[int]:
    """The slow ranks and those that are late with them; empty: one alone is slow."""
    if not sure:
        return set()
    most_ns = max(lateness_ns[each.rank] for each in sure)
    late = {rank for rank, late_ns in lateness_ns.items() if _TOGETHER_PART * late_ns >= most_ns}
    late |= {each.rank for each in sure}
    return late if len(late) > 1 else set()


def _classes(whole: OwnStepTimes) -> list[tuple[tuple[int, ...], OwnStepTimes]]:
    """The ranks that do the same work in most steps, and the steps in which all of them do it."""
    works: dict[int, Counter[int]] = defaultdict(Counter)
    for _, own in whole:
        for rank, each in own.items():
            works[rank][each.work] += 1
    usual = {rank: counts.most_common(1)[0][0] for rank, counts in works.items()}
    by_work: dict[object, list[int]] = defaultdict(list)
    for rank in sorted(usual):
        by_work[usual[rank] or f"rank {rank}"].append(rank)
    found: list[tuple[tuple[int, ...], OwnStepTimes]] = []
    for ranks in by_work.values():
        alike = [(key, own) for key, own in whole if all(own[rank].work == usual[rank] for rank in ranks)]
        found.append((tuple(ranks), alike))
    return found


def _own_ns(own: Mapping[int, OwnWait], rank: int) -> int:
    return own[rank].own_ns or 0


def _lower_median(values: Sequence[int]) -> int:
    return sorted(values)[(len(values) - 1) // 2]


def _lateness_ns(rank: int, usual_ns: Sequence[int], alike: OwnStepTimes) -> int:
    """What the rank usually takes longer than its like, which take `usual_ns` step by step."""
    return _lower_median([_own_ns(own, rank) - usual for (_, own), usual in zip(alike, usual_ns, strict=True)])


def _compared(ranks: Sequence[int], alike: OwnStepTimes) -> Iterator[Sync]:
    """As if the ranks began each step together and never waited: they end it after their own time."""
    at_ns = 0
    for key, own in alike:
        arrivals = {rank: _arrival(at_ns + _own_ns(own, rank)) for rank in ranks}
        yield Sync(key, 0, int(Kind.STEP), arrivals, compare(arrivals))
        at_ns += max(each.elapsed_ns for each in own.values())


def _arrival(at_ns: int) -> Arrival:
    return Arrival("own time", 0, at_ns, at_ns, at_ns, 0)


def _exposed_ns(late: int, usual_ns: Sequence[int], alike: OwnStepTimes) -> int:
    """For how long half of the other ranks waited for what this one takes longer than its like."""
    total_ns = 0
    for (_, own), usual in zip(alike, usual_ns, strict=True):
        waited = [each.waited_ns or 0 for rank, each in own.items() if rank != late]
        total_ns += min(max(0, _own_ns(own, late) - usual), _lower_median(waited))
    return total_ns
