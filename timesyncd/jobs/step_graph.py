"""
Recorded steps as operations that depend on one another, across ranks, pipeline stages and groups; and their replay from
durations. Pure.

The model is that of Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025,
section 3): a rank computes in order, a communication begins when the last of its ranks has arrived, and it then
takes its transfer time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

COMPUTE = "compute"


@dataclass(frozen=True, slots=True)
class Operation:
    """
    One rank's computing, or its part in a meeting of ranks.

    `start_ns`, `end_ns`: as recorded, on the clock of its trace. `after`: the operations that end before it starts, by
    index. `delay_ns`: from the end of the last of them to its start. `duration_ns`: of computing, or of the transfer
    after the last rank arrived. `step`, `place`: which step, and which of its rank's operations there: ranks that do
    the same work have the same places. `waits`: it ends only after all ranks of the meeting have arrived.
    """

    rank: int
    kind: str
    meeting: int | None
    start_ns: int
    end_ns: int
    after: tuple[int, ...]
    delay_ns: int
    duration_ns: int
    step: int
    place: int
    waits: bool = True


@dataclass(frozen=True, slots=True)
class PlaceLabel:
    """
    What a rank computes at a place of a step: `batches`, micro-batches with shares that sum to 1. Places with the same
    `work` on ranks of one stage do the same for other micro-batches.
    """

    batches: tuple[tuple[int, float], ...]
    work: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Meeting:
    """One collective, or one send with its receive: the operations of its ranks, by index."""

    kind: str
    ranks: tuple[int, ...]
    operations: tuple[int, ...]
    bytes: int | None = None


class CircularError(ValueError):
    """Operations wait for one another in a circle, so they are not matched as they ran."""


@dataclass(frozen=True)
class StepGraph:
    """
    The recorded steps of all ranks. `stages`: the pipeline stage by rank. `replicas`: by rank, which ranks work on the
    same data. `labels`: by (rank, step, place) what is computed there, where messages show it. `hosts`: by rank, as its
    trace names it; absent or "": not known.
    """

    steps: int
    operations: tuple[Operation, ...]
    meetings: tuple[Meeting, ...]
    stages: dict[int, int]
    replicas: dict[int, int]
    labels: dict[tuple[int, int, int], PlaceLabel]
    hosts: dict[int, str] = field(default_factory=dict)

    @property
    def ranks(self) -> list[int]:
        return sorted(self.stages)

    @property
    def durations(self) -> list[float]:
        return [float(operation.duration_ns) for operation in self.operations]

    @cached_property
    def order(self) -> tuple[tuple[int, ...], ...]:
        """
        The operations so that each follows all that it depends on; those of a meeting together. Raises CircularError.
        """
        units = self._units()
        unit_of = {index: number for number, unit in enumerate(units) for index in unit}
        followers: list[list[int]] = [[] for _ in units]
        missing = [0] * len(units)
        for number, unit in enumerate(units):
            for before in {unit_of[each] for index in unit for each in self.operations[index].after}:
                followers[before].append(number)
                missing[number] += 1
        ready = deque(number for number, count in enumerate(missing) if not count)
        found = []
        while ready:
            number = ready.popleft()
            found.append(units[number])
            for after in followers[number]:
                missing[after] -= 1
                if not missing[after]:
                    ready.append(after)
        if len(found) < len(units):
            raise CircularError("operations wait for one another in a circle")
        return tuple(found)

    def _units(self) -> list[tuple[int, ...]]:
        alone = [(index,) for index, operation in enumerate(self.operations) if operation.meeting is None]
        return [*alone, *(meeting.operations for meeting in self.meetings)]


@dataclass(frozen=True, slots=True)
class StepReplay:
    """When each operation was ready (a rank arrived) and ended, in ns since all ranks began."""

    ready_ns: list[float]
    ends_ns: list[float]

    @property
    def length_ns(self) -> float:
        return max(self.ends_ns, default=0.0)


def replay(graph: StepGraph, durations: Sequence[float]) -> StepReplay:
    """Replays all steps with these durations. All ranks begin at 0. Raises CircularError."""
    operations = graph.operations
    ready = [0.0] * len(operations)
    ends = [0.0] * len(operations)
    for unit in graph.order:
        for index in unit:
            operation = operations[index]
            ready[index] = max((ends[before] for before in operation.after), default=0.0) + operation.delay_ns
        begin = max(ready[index] for index in unit)
        for index in unit:
            ends[index] = (begin if operations[index].waits else ready[index]) + durations[index]
    return StepReplay(ready, ends)


@dataclass(frozen=True, slots=True)
class OperationWait:
    """
    How long `rank` waited for `awaited`, over all steps: it arrived last where `rank` was. A sender is not counted: it
    may compute meanwhile.
    """

    rank: int
    awaited: int
    kind: str
    waited_ns: float


def waits(graph: StepGraph, played: StepReplay) -> list[OperationWait]:
    """Which rank waited for which, the longest first."""
    found: dict[tuple[int, int, str], float] = {}
    for rank, awaited, kind, waited_ns in _waits(graph, played):
        found[rank, awaited, kind] = found.get((rank, awaited, kind), 0.0) + waited_ns
    return sorted((OperationWait(*key, ns) for key, ns in found.items()), key=lambda wait: (-wait.waited_ns, wait.rank))


def _waits(graph: StepGraph, played: StepReplay) -> Iterator[tuple[int, int, str, float]]:
    for meeting in graph.meetings:
        last = max(meeting.operations, key=lambda index: played.ready_ns[index])
        for index in meeting.operations:
            waited_ns = played.ready_ns[last] - played.ready_ns[index]
            if waited_ns > 0 and graph.operations[index].waits and graph.operations[index].kind != "send":
                yield graph.operations[index].rank, graph.operations[last].rank, meeting.kind, waited_ns


def misfit(graph: StepGraph, played: StepReplay, ranks: Iterable[int]) -> float:
    """
    By how much the replay misses the recorded length of a rank, at worst, as a share of it. From each rank's first
    meeting on, since a rank's trace may begin at any time.
    """
    worst = 0.0
    for rank in ranks:
        own = [i for i, operation in enumerate(graph.operations) if operation.rank == rank]
        met = [i for i in own if graph.operations[i].meeting is not None]
        if met:
            first = min(met, key=lambda i: graph.operations[i].end_ns)
            recorded = max(graph.operations[i].end_ns for i in own) - graph.operations[first].end_ns
            played_ns = max(played.ends_ns[i] for i in own) - played.ends_ns[first]
            worst = max(worst, abs(played_ns - recorded) / recorded if recorded > 0 else 0.0)
    return worst
