"""
A recorded job: the marks of its ranks joined by step, and the JSON in which a daemon serves it and an audit reads it.
Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Self

from pydantic import Field

from timesyncd.ipc.job_datagram import Mark, OwnPart
from timesyncd.ipc.network_record import NetworkRecord
from timesyncd.ipc.wire_types import Int64
from timesyncd.jobs.arrivals import Arrival, StepMark, Sync, compare
from timesyncd.jobs.exposed import OwnWait
from timesyncd.jobs.group_recording import GroupRecording
from timesyncd.jobs.issued_calls import IssuedCallCounts
from timesyncd.jobs.missing_ranks import Presence
from timesyncd.jobs.stragglers import position_text
from timesyncd.messages.node import Message


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """
    One rank's push to or pull from a parameter server: request and reply, CLOCK_REALTIME nanoseconds. `step` is a key.
    """

    step: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class LossMark:
    """One rank's loss in the step with this key, on training data or on held-out data."""

    step: int
    loss: float
    is_validation: bool = False


@dataclass(frozen=True, slots=True)
class RankRecord:
    """
    One rank over the whole recording: the marks that it lost, and the cost of metering in the `metered_ns` since it
    joined (None: unknown). `presence`: its newest mark, and its newest sign of where it is.
    """

    node: str
    marks_lost: int = 0
    own_overhead_ns: int = 0
    metered_ns: int | None = None
    presence: Presence = field(default_factory=Presence)


@dataclass(frozen=True)
class Recording:
    """
    Synchronizations in the order of (step key, sync), and by rank its steps and its requests, in order. A rank without
    any mark is in none of them. `own_waits`: by step key and rank, of steps with groups. `notes`: sentences about what
    was not read. `calls`: what the ranks issued with and without a mark; None: unknown. `losses`: by rank, of the
    recording's files alone; a hub keeps none. `networks`: by rank, as it saw its network; of files alone, too.
    """

    job: str
    attempt: int
    world_size: int
    ranks: Mapping[int, RankRecord]
    syncs: Sequence[Sync]
    steps: Mapping[int, Sequence[StepMark]] = field(default_factory=dict)
    requests: Mapping[int, Sequence[ServerRequest]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    calls: IssuedCallCounts | None = None
    groups: GroupRecording | None = None
    losses: Mapping[int, Sequence[LossMark]] = field(default_factory=dict)
    own_waits: Mapping[int, Mapping[int, OwnWait]] = field(default_factory=dict)
    networks: Mapping[int, NetworkRecord] = field(default_factory=dict)

    @property
    def nodes(self) -> dict[int, str]:
        """By rank, its name for its host."""
        return {rank: record.node for rank, record in self.ranks.items()}

    @property
    def marks_lost(self) -> int:
        return sum(record.marks_lost for record in self.ranks.values())

    @property
    def step_keys(self) -> list[int]:
        """The keys of all steps, in order."""
        own = {mark.step for marks in self.steps.values() for mark in marks}
        requested = {request.step for requests in self.requests.values() for request in requests}
        return sorted({sync.step for sync in self.syncs} | own | requested)

    def step_mark(self, rank: int, step: int) -> StepMark | None:
        return self.step_marks.get((rank, step))

    @cached_property
    def step_marks(self) -> dict[tuple[int, int], StepMark]:
        """By rank and the step's key."""
        return {(rank, mark.step): mark for rank, marks in self.steps.items() for mark in marks}


def same_step(syncs: Sequence[Sync]) -> Iterator[tuple[int, list[Sync]]]:
    """Synchronizations in order, grouped by the key of their step."""
    for key, group in groupby(syncs, key=lambda sync: sync.step):
        yield key, list(group)


def positions(syncs: Iterable[Sync]) -> list[str]:
    """The position of each synchronization of one step, for people: its kind and its number among that kind, from 0."""
    before: Counter[int] = Counter()
    texts = []
    for sync in syncs:
        texts.append(position_text((sync.kind, before[sync.kind])))
        before[sync.kind] += 1
    return texts


VERSION = 1


class RankMessage(Message):
    """A rank of a recording. `last`: its newest mark; `sign`: its newest mark of kind arrival, alive or left;
    `failed`: an error in the synchronization that it was inside ended it."""

    rank: Int64
    node: str
    marks_lost: Int64 = 0
    own_overhead_ns: Int64 = 0
    metered_ns: Int64 | None = None
    last: Mark | None = None
    sign: Mark | None = None
    failed: bool = False


class ArrivalMessage(Message):
    """
    A rank's part in a synchronization, CLOCK_REALTIME. Ranks with an equal `clock` read one clock; null: it was stepped
    near this time.
    """

    rank: Int64
    clock: str | None
    real_minus_boot_ns: Int64
    arrival_ns: Int64
    begin_ns: Int64
    end_ns: Int64
    bytes: Int64
    error_ns: Int64 | None


class SyncMessage(Message):
    """One synchronization of a step, with the ranks that have a mark of it."""

    step: Int64
    sync: Int64
    kind: Int64
    arrivals: list[ArrivalMessage] = Field(min_length=1)


class StepMessage(Message):
    """
    One rank's step, CLOCK_REALTIME: it began, its last own gradient was ready (null: unknown), its parameters were
    updated.
    """

    rank: Int64
    step: Int64
    arrival_ns: Int64
    ready_ns: Int64 | None
    end_ns: Int64


class RequestMessage(Message):
    """One rank's push or pull, CLOCK_REALTIME: request and reply."""

    rank: Int64
    step: Int64
    begin_ns: Int64
    end_ns: Int64


class OwnPartsMessage(Message):
    """One rank's own time by part of a step, in ns, as far as hooks know it; the forward pass is in none of them."""

    data: Int64 = 0
    backward: Int64 = 0
    optimizer: Int64 = 0

    @classmethod
    def of(cls, parts_ns: Mapping[OwnPart, int]) -> Self:
        return cls(**{part.name.lower(): ns for part, ns in parts_ns.items()})

    @property
    def parts_ns(self) -> Mapping[OwnPart, int]:
        return {part: getattr(self, part.name.lower()) for part in OwnPart}


class OwnWaitMessage(Message):
    """
    One rank's step with groups: how long it took, and for how long of it the rank only waited in all of them (null:
    unknown). Ranks with an equal `work` do the same; 0: unknown. `parts_ns`: its own time by part of the step; null: the
    rank does not state it.
    """

    rank: Int64
    step: Int64
    elapsed_ns: Int64
    waited_ns: Int64 | None
    work: Int64
    parts_ns: OwnPartsMessage | None = None


class RecordingMessage(Message):
    """
    The marks of a job, joined by step; a hub's window holds the newest steps. Steps are keys. `next_step`: the first
    step of the next page; null: nothing follows.
    """

    version: Int64 = VERSION
    job: str
    attempt: Int64
    world_size: Int64 = Field(ge=1, le=4_096)
    ranks: list[RankMessage]
    syncs: list[SyncMessage]
    steps: list[StepMessage] = Field(default_factory=list)
    requests: list[RequestMessage] = Field(default_factory=list)
    own_waits: list[OwnWaitMessage] = Field(default_factory=list)
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
            own_waits=[
                OwnWaitMessage(
                    rank=rank,
                    step=step,
                    elapsed_ns=one.elapsed_ns,
                    waited_ns=one.waited_ns,
                    work=one.work,
                    parts_ns=None if one.parts_ns is None else OwnPartsMessage.of(one.parts_ns),
                )
                for step, ranks in sorted(recording.own_waits.items())
                for rank, one in sorted(ranks.items())
            ],
        )

    def recording(self) -> Recording:
        """The recording. Raises ValueError for another version and for a rank outside the world size."""
        if self.version != VERSION:
            raise ValueError(f"version {self.version} of the format is unknown; this timesyncd reads version {VERSION}")
        ranks = (
            {one.rank for one in self.ranks} | {one.rank for one in self.steps} | {one.rank for one in self.requests}
        )
        ranks |= {arrival.rank for sync in self.syncs for arrival in sync.arrivals} | {
            one.rank for one in self.own_waits
        }
        if not ranks <= set(range(self.world_size)):
            raise ValueError(f"rank {max(ranks, key=abs)} is outside the world of {self.world_size} ranks")
        steps: dict[int, list[StepMark]] = {}
        for mark in sorted(self.steps, key=lambda mark: mark.step):
            steps.setdefault(mark.rank, []).append(StepMark(mark.step, mark.arrival_ns, mark.ready_ns, mark.end_ns))
        requests: dict[int, list[ServerRequest]] = {}
        for one in sorted(self.requests, key=lambda one: one.begin_ns):
            requests.setdefault(one.rank, []).append(ServerRequest(one.step, one.begin_ns, one.end_ns))
        own_waits: dict[int, dict[int, OwnWait]] = {}
        for own in self.own_waits:
            own_waits.setdefault(own.step, {})[own.rank] = OwnWait(
                own.elapsed_ns, own.waited_ns, own.work, None if own.parts_ns is None else own.parts_ns.parts_ns
            )
        return Recording(
            job=self.job,
            attempt=self.attempt,
            world_size=self.world_size,
            ranks={rank.rank: _rank_record(rank) for rank in self.ranks},
            syncs=sorted((self._sync(sync) for sync in self.syncs), key=lambda sync: (sync.step, sync.sync)),
            steps=steps,
            requests=requests,
            own_waits=own_waits,
        )

    def _sync(self, message: SyncMessage) -> Sync:
        arrivals = {
            arrival.rank: Arrival(**arrival.model_dump(exclude={"rank"}))
            for arrival in sorted(message.arrivals, key=lambda arrival: arrival.rank)
        }
        comparison = compare(arrivals) if len(arrivals) == self.world_size else None
        return Sync(message.step, message.sync, message.kind, arrivals, comparison)


def _rank_message(rank: int, record: RankRecord) -> RankMessage:
    return RankMessage(
        rank=rank,
        node=record.node,
        marks_lost=record.marks_lost,
        own_overhead_ns=record.own_overhead_ns,
        metered_ns=record.metered_ns,
        last=record.presence.last,
        sign=record.presence.sign,
        failed=record.presence.failed,
    )


def _rank_record(message: RankMessage) -> RankRecord:
    presence = Presence(message.last, message.sign, message.failed)
    return RankRecord(message.node, message.marks_lost, message.own_overhead_ns, message.metered_ns, presence)


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
