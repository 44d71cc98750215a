"""
A recorded job as JSON: what a daemon serves of a job's window, and what a later audit compares with.

A recorded job: what its ranks marked, joined by step. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Self

from pydantic import Field

from timesyncd.jobs.arrivals import Arrival, StepMark, Sync, compare
from timesyncd.jobs.stragglers import position_text
from timesyncd.messages.node import Int64, Message


@dataclass(frozen=True, slots=True)
class ServerRequest:
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
    requests: Mapping[int, Sequence[ServerRequest]] = field(default_factory=dict)
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


def positions(syncs: Iterable[Sync]) -> list[str]:
    """Where each synchronization of one step is, for people: its kind, and the how manieth of that kind, from 0."""
    seen: Counter[int] = Counter()
    named = []
    for sync in syncs:
        named.append(position_text((sync.kind, seen[sync.kind])))
        seen[sync.kind] += 1
    return named


VERSION = 1


class RankMessage(Message):
    """A rank of a recording."""

    rank: Int64
    node: str
    marks_lost: Int64 = 0
    own_overhead_ns: Int64 = 0
    metered_ns: Int64 | None = None


class ArrivalMessage(Message):
    """A rank's part in a synchronization, CLOCK_REALTIME; an equal `clock` is one clock, null: it was stepped near this."""

    rank: Int64
    clock: str | None
    real_minus_boot_ns: Int64
    arrival_ns: Int64
    begin_ns: Int64
    end_ns: Int64
    bytes: Int64
    error_ns: Int64 | None


class SyncMessage(Message):
    """One synchronization of a step, with those ranks of which there is a mark."""

    step: Int64
    sync: Int64
    kind: Int64
    arrivals: list[ArrivalMessage]


class StepMessage(Message):
    """One rank's step, CLOCK_REALTIME: it began, its last own gradient was ready (null: not told), its parameters were updated."""

    rank: Int64
    step: Int64
    arrival_ns: Int64
    ready_ns: Int64 | None
    end_ns: Int64


class RequestMessage(Message):
    """One rank's push or pull, CLOCK_REALTIME: asked, answered."""

    rank: Int64
    step: Int64
    begin_ns: Int64
    end_ns: Int64


class RecordingMessage(Message):
    """
    What is known of a job's marks, joined by step: of the newest steps where it is a hub's window. Steps are step keys. `next_step`: of a page, the step
    that the next one begins with; null: nothing follows.
    """

    version: Int64 = VERSION
    job: str
    attempt: Int64
    world_size: Int64 = Field(ge=1, le=4_096)
    ranks: list[RankMessage]
    syncs: list[SyncMessage]
    steps: list[StepMessage] = Field(default_factory=list)
    requests: list[RequestMessage] = Field(default_factory=list)
    next_step: Int64 | None = None

    @classmethod
    def of(cls, recording: Recording) -> Self:
        return cls(
            job=recording.job,
            attempt=recording.attempt,
            world_size=recording.world_size,
            ranks=[_rank_message(rank, record) for rank, record in sorted(recording.ranks.items())],
            syncs=[_sync_message(sync) for sync in recording.syncs],
            steps=[_step_message(rank, mark) for rank, marks in sorted(recording.steps.items()) for mark in marks],
            requests=[_request_message(rank, one) for rank, many in sorted(recording.requests.items()) for one in many],
        )

    def recording(self) -> Recording:
        """Raises ValueError: another version's, or a rank outside its world."""
        if self.version != VERSION:
            raise ValueError(f"version {self.version}; known here: {VERSION}")
        told = {one.rank for one in self.ranks} | {one.rank for one in self.steps} | {one.rank for one in self.requests}
        told |= {arrival.rank for sync in self.syncs for arrival in sync.arrivals}
        if not told <= set(range(self.world_size)):
            raise ValueError(f"rank {max(told, key=abs)} of {self.world_size}")
        steps: dict[int, list[StepMark]] = {}
        for mark in sorted(self.steps, key=lambda mark: mark.step):
            steps.setdefault(mark.rank, []).append(StepMark(mark.step, mark.arrival_ns, mark.ready_ns, mark.end_ns))
        requests: dict[int, list[ServerRequest]] = {}
        for one in sorted(self.requests, key=lambda one: one.begin_ns):
            requests.setdefault(one.rank, []).append(ServerRequest(one.step, one.begin_ns, one.end_ns))
        return Recording(
            job=self.job,
            attempt=self.attempt,
            world_size=self.world_size,
            ranks={rank.rank: _rank_record(rank) for rank in self.ranks},
            syncs=sorted((self._sync(sync) for sync in self.syncs), key=lambda sync: (sync.step, sync.sync)),
            steps=steps,
            requests=requests,
        )

    def _sync(self, told: SyncMessage) -> Sync:
        arrivals = {
            arrival.rank: Arrival(**arrival.model_dump(exclude={"rank"}))
            for arrival in sorted(told.arrivals, key=lambda arrival: arrival.rank)
        }
        comparison = compare(arrivals) if len(arrivals) == self.world_size else None
        return Sync(told.step, told.sync, told.kind, arrivals, comparison)


def _rank_message(rank: int, record: RankRecord) -> RankMessage:
    return RankMessage(
        rank=rank,
        node=record.node,
        marks_lost=record.marks_lost,
        own_overhead_ns=record.own_overhead_ns,
        metered_ns=record.metered_ns,
    )


def _rank_record(told: RankMessage) -> RankRecord:
    return RankRecord(told.node, told.marks_lost, told.own_overhead_ns, told.metered_ns)


def _sync_message(sync: Sync) -> SyncMessage:
    arrivals = [
        ArrivalMessage(
            rank=rank,
            clock=arrival.clock,
            real_minus_boot_ns=arrival.real_minus_boot_ns,
            arrival_ns=arrival.arrival_ns,
            begin_ns=arrival.begin_ns,
            end_ns=arrival.end_ns,
            bytes=arrival.bytes,
            error_ns=arrival.error_ns,
        )
        for rank, arrival in sync.arrivals.items()
    ]
    return SyncMessage(step=sync.step, sync=sync.sync, kind=sync.kind, arrivals=arrivals)


def _step_message(rank: int, mark: StepMark) -> StepMessage:
    return StepMessage(
        rank=rank, step=mark.step, arrival_ns=mark.arrival_ns, ready_ns=mark.ready_ns, end_ns=mark.end_ns
    )


def _request_message(rank: int, one: ServerRequest) -> RequestMessage:
    return RequestMessage(rank=rank, step=one.step, begin_ns=one.begin_ns, end_ns=one.end_ns)
