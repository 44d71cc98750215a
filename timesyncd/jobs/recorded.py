"""A recorded job: what its ranks marked, joined by step. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

from timesyncd.jobs.arrivals import StepMark, Sync
from timesyncd.jobs.stragglers import position_text


@dataclass(frozen=True, slots=True)
class Request:
    """One rank's push to or pull from a parameter server, CLOCK_REALTIME nanoseconds: asked, answered."""

    step: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class RankRecord:
    """
    One rank over the whole recording: the marks it lost, and what metering cost it of the `metered_ns` since it joined (None:
    not told).
    """

    node: str
    marks_lost: int = 0
    own_overhead_ns: int = 0
    metered_ns: int | None = None


@dataclass(frozen=True)
class Recording:
    """
    Synchronizations in the order of (step key, sync); by rank its own steps and its requests, in order. A rank of which nothing
    was heard is in none of them. `notes`: what of it was not read, for people.
    """

    job: str
    attempt: int
    world_size: int
    ranks: Mapping[int, RankRecord]
    syncs: Sequence[Sync]
    steps: Mapping[int, Sequence[StepMark]] = field(default_factory=dict)
    requests: Mapping[int, Sequence[Request]] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def nodes(self) -> dict[int, str]:
        """What each rank calls its host."""
        return {rank: record.node for rank, record in self.ranks.items()}

    @property
    def marks_lost(self) -> int:
        return sum(record.marks_lost for record in self.ranks.values())

    @property
    def step_keys(self) -> list[int]:
        """Of all steps, in order."""
        own = {mark.step for marks in self.steps.values() for mark in marks}
        asked = {request.step for requests in self.requests.values() for request in requests}
        return sorted({sync.step for sync in self.syncs} | own | asked)

    def step_mark(self, rank: int, step: int) -> StepMark | None:
        return self._step_marks.get((rank, step))

    @cached_property
    def _step_marks(self) -> dict[tuple[int, int], StepMark]:
        return {(rank, mark.step): mark for rank, marks in self.steps.items() for mark in marks}


def same_step(syncs: Sequence[Sync]) -> Iterator[tuple[int, list[Sync]]]:
    """Synchronizations in order, by the key of their step."""
    for key, group in groupby(syncs, key=lambda sync: sync.step):
        yield key, list(group)


def places(syncs: Iterable[Sync]) -> list[str]:
    """Where each synchronization of one step is, for people: its kind, and the how manieth of that kind, from 0."""
    seen: Counter[int] = Counter()
    named = []
    for sync in syncs:
        named.append(position_text((sync.kind, seen[sync.kind])))
        seen[sync.kind] += 1
    return named
