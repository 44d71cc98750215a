"""Finds the pauses of ranks in recorded steps, removes them and inserts them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from timesyncd.audit.timeline import RankSync, RecordedStep, Run
from timesyncd.units import percentile

#: A pause exceeds the rank's median compute time by this share of it, and by this many median deviations.
_SHARE_PERCENT = 25
_SPREADS = 8


@dataclass(frozen=True, slots=True)
class Pause:
    """
    One rank computed `ns` longer than its median; `step` is an index in its run. `typical`: its parts without a pause.
    """

    rank: int
    step: int
    ns: int
    typical: tuple[RankSync, ...]


def pauses_of(runs: Sequence[Run]) -> list[Pause]:
    """In the order of the runs and their steps. Work that all ranks do in one step is no pause."""
    return [pause for run in runs for pause in _of_run(run)]


def _of_run(run: Run) -> list[Pause]:
    ranks = range(len(run.starts_ns))
    found = [pause for rank in ranks for pause in _of_rank(run, rank)]
    at_once = Counter(pause.step for pause in found)
    return sorted(
        (pause for pause in found if at_once[pause.step] < len(ranks)), key=lambda pause: (pause.step, pause.rank)
    )


def _of_rank(run: Run, rank: int) -> list[Pause]:
    computed = [step.ranks[rank].compute_ns for step in run.steps]
    typical_ns = percentile(computed, 50)
    spread_ns = percentile([abs(value - typical_ns) for value in computed], 50)
    at_least_ns = max(typical_ns * _SHARE_PERCENT // 100, _SPREADS * spread_ns, 1)
    typical = _typical_parts(run, rank)
    return [
        Pause(rank, at, value - typical_ns, typical)
        for at, value in enumerate(computed)
        if value - typical_ns >= at_least_ns
    ]


def _typical_parts(run: Run, rank: int) -> tuple[RankSync, ...]:
    """By synchronization: when the rank arrives and begins to wait, in the median."""
    by_part: list[list[RankSync]] = []
    for step in run.steps:
        for at, part in enumerate(step.ranks[rank].parts):
            if at == len(by_part):
                by_part.append([])
            by_part[at].append(part)
    return tuple(
        replace(
            parts[0],
            arrives_ns=percentile([part.arrives_ns for part in parts], 50),
            waits_ns=percentile([part.waits_ns for part in parts], 50),
        )
        for parts in by_part
    )


def without_pause(step: RecordedStep, pause: Pause) -> RecordedStep:
    """Each point of the rank's step moves earlier by its lateness against the typical step, at most by the pause."""

    def earlier(at_ns: int, typical_ns: int) -> int:
        return at_ns - min(max(0, at_ns - typical_ns), pause.ns)

    own = step.ranks[pause.rank]
    parts = tuple(
        replace(
            part,
            arrives_ns=earlier(part.arrives_ns, typical.arrives_ns),
            waits_ns=earlier(part.waits_ns, typical.waits_ns),
        )
        for part, typical in zip(own.parts, pause.typical, strict=False)
    )
    return _with_rank(step, pause.rank, parts, own.compute_ns - pause.ns)


def with_pause(step: RecordedStep, rank: int, pause_ns: int) -> RecordedStep:
    """The pause is at the begin of the step."""
    own = step.ranks[rank]
    parts = tuple(
        replace(part, arrives_ns=part.arrives_ns + pause_ns, waits_ns=part.waits_ns + pause_ns) for part in own.parts
    )
    return _with_rank(step, rank, parts, own.compute_ns + pause_ns)


def _with_rank(step: RecordedStep, rank: int, parts: tuple[RankSync, ...], compute_ns: int) -> RecordedStep:
    changed = replace(step.ranks[rank], parts=parts, compute_ns=compute_ns)
    return replace(step, ranks=(*step.ranks[:rank], changed, *step.ranks[rank + 1 :]))
