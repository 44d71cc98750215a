"""Finds the pauses of ranks among recorded steps, takes them out and puts them in. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from timesyncd.audit.timeline import RankSync, RecordedStep, Run
from timesyncd.units import percentile

#: A step's computing beyond the rank's median by this share of it, and by this many times the usual spread, is a pause.
_SHARE_PERCENT = 25
_SPREADS = 8


@dataclass(frozen=True, slots=True)
class Pause:
    """One rank computed for `ns` longer than it does; `step` is an index in its run. `usual`: its parts as they are without."""

    rank: int
    step: int
    ns: int
    usual: tuple[RankSync, ...]


def pauses_of(runs: Sequence[Run]) -> list[Pause]:
    """In the order of the runs and their steps. What all ranks do in one step is the step's own work, no pause."""
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
    usual_ns = percentile(computed, 50)
    spread_ns = percentile([abs(value - usual_ns) for value in computed], 50)
    at_least_ns = max(usual_ns * _SHARE_PERCENT // 100, _SPREADS * spread_ns, 1)
    usual = _usual(run, rank)
    return [
        Pause(rank, at, value - usual_ns, usual) for at, value in enumerate(computed) if value - usual_ns >= at_least_ns
    ]


def _usual(run: Run, rank: int) -> tuple[RankSync, ...]:
    """By part: when the rank usually arrives and begins to wait."""
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
    """Each point of the rank's step comes earlier by what it was later than usual, at most by the pause."""

    def earlier(at_ns: int, usual_ns: int) -> int:
        return at_ns - min(max(0, at_ns - usual_ns), pause.ns)

    own = step.ranks[pause.rank]
    parts = tuple(
        replace(
            part,
            arrives_ns=earlier(part.arrives_ns, usual.arrives_ns),
            waits_ns=earlier(part.waits_ns, usual.waits_ns),
        )
        for part, usual in zip(own.parts, pause.usual, strict=False)
    )
    return _with_rank(step, pause.rank, parts, own.compute_ns - pause.ns)


def with_pause(step: RecordedStep, rank: int, pause_ns: int) -> RecordedStep:
    """The pause comes before all else in the step."""
    own = step.ranks[rank]
    parts = tuple(
        replace(part, arrives_ns=part.arrives_ns + pause_ns, waits_ns=part.waits_ns + pause_ns) for part in own.parts
    )
    return _with_rank(step, rank, parts, own.compute_ns + pause_ns)


def _with_rank(step: RecordedStep, rank: int, parts: tuple[RankSync, ...], compute_ns: int) -> RecordedStep:
    changed = replace(step.ranks[rank], parts=parts, compute_ns=compute_ns)
    return replace(step, ranks=(*step.ranks[:rank], changed, *step.ranks[rank + 1 :]))
