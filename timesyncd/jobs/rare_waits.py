"""
Rare causes: a few steps of a job that hold most of its waiting, and the rank that the others waited for in them. Pure.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

from timesyncd.jobs.arrivals import Sync, step_ns
from timesyncd.jobs.exposed import waited_ns
from timesyncd.jobs.lateness import FALSE_ALARM
from timesyncd.units import duration_text, median, percentile

#: A rare cause: at most one step in so many holds at least this share of the waiting.
RARE_PART = 10
MIN_SHARE = 0.5

#: In a window of fewer steps nothing is rare.
MIN_STEPS = 30

#: A rare wait is so many times as long as three quarters of the waits, and at least one part in so many of a step.
_TIMES_USUAL = 10
_STEP_PART = 4

#: Half of the waiting is in waits that are as long as the usual rare one. Shorter ones by this factor are of another kind.
_KIND_PART = 4

#: Rare steps for one rank with fewer steps than this from one to the next belong to one pause.
_APART = 5


@dataclass(frozen=True, slots=True)
class StepWait:
    """
    For how long half of the ranks only waited in this step for each rank that was surely the last, in ns. None: for
    ranks that all were late, so they may have had more to do.
    """

    step: int
    by_rank_ns: Mapping[int | None, int]

    @property
    def total_ns(self) -> int:
        return sum(self.by_rank_ns.values())

    @property
    def rank(self) -> int | None:
        """The rank that the others waited for the longest; only where they waited."""
        return max(self.by_rank_ns, key=lambda rank: self.by_rank_ns[rank])


@dataclass(frozen=True, slots=True)
class RareWaits:
    """
    `steps` (keys, in order) of `compared_steps` hold `share` of the waiting, `wait_ns` each in the median: for `rank`,
    if one is named.

    In `rank_steps` of them the others waited for `rank`, every `every` steps. `rank` None: ranks that are alike come so
    with a probability above FALSE_ALARM, or `shared`: the others mostly waited for ranks that may have had more to do.
    `rank_steps` is then of the rank in most of them.
    `every` None: irregular, or no rank is named.
    """

    steps: tuple[int, ...]
    compared_steps: int
    share: float
    wait_ns: int
    rank: int | None
    rank_steps: int
    every: int | None
    shared: bool = False

    @property
    def text(self) -> str:
        """For people, such as "4 of 99 steps hold 96 % of the waiting, for rank 0, 2.00 s each, every 20 steps"."""
        one, each = len(self.steps) == 1, duration_text(self.wait_ns)
        found = f"{len(self.steps):,} of {self.compared_steps:,} steps {'holds' if one else 'hold'} {self.share:.0%} of the waiting"
        found = found.replace("%", " %")
        if self.rank is None:
            return f"{found} ({each}{'' if one else ' each'}; {self._why_none})"
        named = f"for rank {self.rank}"
        if self.rank_steps < len(self.steps):
            named += f" in {self.rank_steps} of them"
        period = f", every {self.every} steps" if self.every else ""
        return f"{found}, {named}, {each} each{period}"

    @property
    def _why_none(self) -> str:
        if self.shared:
            return "ranks that work on the same data are late together, as with more data, so no rank is named"
        if 3 * self.rank_steps <= 2 * len(self.steps):
            return "they are of several ranks, so no rank is named"
        return "too few to tell a cause from chance, so no rank is named"


def step_waits(syncs: Sequence[Sync]) -> list[StepWait]:
    """
    The waiting of every step that compares, in order. A rank that is still inside an earlier synchronization does not
    wait for the next, so no time counts twice. An end before the last arrival is no wait for it.
    """
    found = []
    for step, group in groupby(syncs, key=lambda sync: sync.step):
        free_ns: dict[int, int] = {}
        waited: Counter[int | None] = Counter()
        compared = False
        for sync in group:
            if sync.comparison is not None:
                compared = True
                if (last := sync.comparison.last_rank) is not None:
                    waited[last] += waited_ns(sync, sync.comparison, last, free_ns)
            for rank, arrival in sync.arrivals.items():
                free_ns[rank] = max(free_ns.get(rank, 0), arrival.end_ns)
        if compared:
            found.append(StepWait(step, waited))
    return found


def rare_waits(syncs: Sequence[Sync]) -> RareWaits | None:
    """The rare cause in these synchronizations, in the order of (step, sync); None: the waiting is in no few steps."""
    ranks = next((list(sync.arrivals) for sync in syncs if sync.comparison is not None), [])
    return rare_among(step_waits(syncs), step_ns(syncs) or 0, dict.fromkeys(ranks, len(ranks)))


def rare_among(waits: Sequence[StepWait], length_ns: int, alike: Mapping[int, int]) -> RareWaits | None:
    """
    The rare cause in these steps, which take `length_ns` in the median. `alike`: by rank, among how many ranks that are
    alike it pauses by chance.
    """
    totals_ns = [wait.total_ns for wait in waits]
    if len(waits) < MIN_STEPS or not any(totals_ns):
        return None
    least_ns = max(_TIMES_USUAL * percentile(totals_ns, 75), length_ns // _STEP_PART, 1)
    limits_ns = (max(least_ns, _usual_rare_ns(totals_ns) // _KIND_PART), least_ns)
    choices = list(dict.fromkeys(tuple(i for i, ns in enumerate(totals_ns) if ns >= limit) for limit in limits_ns))
    tries = [_among(waits, at, alike, FALSE_ALARM / len(choices)) for at in choices]
    return next((found for found in tries if found is not None and found.rank is not None), tries[0])


def _usual_rare_ns(waits_ns: Sequence[int]) -> int:
    """Waits of so long or longer hold half of the waiting."""
    in_order = sorted(waits_ns, reverse=True)
    return next(ns for ns, held_ns in zip(in_order, accumulate(in_order), strict=True) if 2 * held_ns >= sum(waits_ns))


def _among(
    waits: Sequence[StepWait], at: Sequence[int], alike: Mapping[int, int], false_alarm: float
) -> RareWaits | None:
    """The rare cause where it is in the steps with these indices."""
    total_ns = sum(wait.total_ns for wait in waits)
    share = sum(waits[index].total_ns for index in at) / total_ns
    if not at or len(at) * RARE_PART > len(waits) or share < MIN_SHARE:
        return None
    pauses = _pauses(waits, at)
    rank = max(pauses, key=lambda each: len(pauses[each]))
    others = max((len(found) for each, found in pauses.items() if each != rank), default=0)
    times, count = len(pauses[rank]), sum(map(len, pauses.values()))
    probability = 1.0 if rank is None else _same_rank_probability(times, count, alike[rank])
    # Ranks that all pause regularly are each regular: only one that pauses far more often than any other is named by that.
    period, chance = _period(pauses[rank], len(waits)) if times > 2 * others else (None, 1.0)
    # Two ways to be named, with half of the false alarms each: by the number of steps alone, and by their regularity too.
    named = rank is not None and min(probability, probability * chance) < false_alarm / 2
    of_rank = [index for index in at if waits[index].rank == rank]
    return RareWaits(
        steps=tuple(waits[index].step for index in at),
        compared_steps=len(waits),
        share=share,
        wait_ns=median([waits[index].total_ns for index in (of_rank if named else at)]) or 0,
        rank=rank if named else None,
        rank_steps=len(of_rank),
        every=period if named and chance < 1 else None,
        shared=rank is None,
    )


def _pauses(waits: Sequence[StepWait], at: Sequence[int]) -> dict[int | None, list[int]]:
    """
    By rank, the first long one of the steps of each pause. A pause that lasts for several steps is one: they have one
    cause, so they show no more.
    """
    found: dict[int | None, list[list[int]]] = defaultdict(list)
    for index in at:
        of_rank = found[waits[index].rank]
        if of_rank and index - of_rank[-1][-1] < _APART:
            of_rank[-1].append(index)
        else:
            of_rank.append([index])

    def first_long(pause: Sequence[int]) -> int:
        longest_ns = max(waits[index].total_ns for index in pause)
        return next(index for index in pause if 2 * waits[index].total_ns >= longest_ns)

    return {rank: list(map(first_long, pauses)) for rank, pauses in found.items()}


def _same_rank_probability(times: int, pauses: int, ranks: int) -> float:
    """
    The probability, where every rank is as likely, that the others wait for any one rank in `times` of so many pauses.
    """
    tail: int = sum(math.comb(pauses, count) * (ranks - 1) ** (pauses - count) for count in range(times, pauses + 1))
    return min(1.0, float(ranks * tail / ranks**pauses))


def _period(at: Sequence[int], steps: int) -> tuple[int | None, float]:
    """
    The distance of these steps if it is the same within one step, and an upper limit of the probability that steps
    drawn at random are so regular.

    There are at most steps x steps / 2 (n - 1) choices of the first step and of the distance, and (2 t + 1) of each
    other step within a tolerance of t, out of all choices of n steps. Twice that, since two tolerances are tried.
    """
    if len(at) < 4:
        return None, 1.0
    gaps = [after - before for before, after in pairwise(at)]
    period = percentile(gaps, 50)
    tolerance = max(abs(gap - period) for gap in gaps)
    if tolerance > 1 or period < 2 * tolerance + 2:
        return None, 1.0
    count = len(at)
    ways = steps * steps / (2 * (count - 1)) * (2 * tolerance + 1) ** (count - 1)
    return period, min(1.0, 2 * ways / math.comb(steps, count))
