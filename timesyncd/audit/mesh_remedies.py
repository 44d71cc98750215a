"""
The gain of each remedy for a job that synchronizes in groups: its operations are changed as the remedy would change
them, and replayed over groups and messages. Pure.

A replay holds what depends on what between ranks, as `jobs.step_graph` describes it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from statistics import median

from timesyncd.audit.headline import percent
from timesyncd.audit.measured import Measured
from timesyncd.audit.remedies import REMEDIES, RemedyGain, pauses_in
from timesyncd.errors import TraceError
from timesyncd.jobs.recorded_traces import recorded_traces
from timesyncd.jobs.recording import Recording
from timesyncd.jobs.step_graph import COMPUTE, CircularError, StepGraph, StepReplay, misfit, replay
from timesyncd.jobs.trace_joining import JoinError, join
from timesyncd.units import percentile

#: So many marks are replayed at most, of the newest steps: a few seconds of the processor.
MAX_REPLAYED_MARKS = 40_000

#: A replay that misses the recorded time by more, as a share, gives no gain. Below that, a gain has to be larger.
MAX_MISFIT = 0.1

_NEEDS_ITS_GROUPS = "a step of a mesh exchanges activations or parts of the parameters, so it cannot do without"
_NO_PAUSE = (
    "no pause is longer than usual in the replayed steps, the newest with the usual synchronizations, so there is {}"
)


@dataclass(frozen=True)
class MeshReplay:
    """
    The steps of all ranks as operations, and as they are replayed. `peers`: by rank, the others with the same work.
    `misfit`: by how much the replay misses the recorded time of a rank, at worst, as a share of it.
    """

    graph: StepGraph
    played: StepReplay
    peers: Mapping[int, Sequence[int]]
    misfit: float

    def step_lengths_ns(self, durations: Sequence[float]) -> list[float]:
        """By step, how long all ranks together take with these durations."""
        return _step_lengths_ns(self.graph, replay(self.graph, durations))

    @cached_property
    def computing(self) -> Mapping[tuple[int, int], Mapping[int, Sequence[int]]]:
        """By rank and step, and by place: the operations that compute there."""
        found: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for index, operation in enumerate(self.graph.operations):
            if operation.kind == COMPUTE:
                found[operation.rank, operation.step][operation.place].append(index)
        return found

    def leveled(self, late: Collection[int]) -> list[float] | str:
        """Late ranks compute no longer than the median of the others with the same work, at each place of each step."""
        found = self.graph.durations
        for rank in sorted(late):
            like = [other for other in self.peers.get(rank, ()) if other not in late]
            if not like:
                return f"every rank with the same work as rank {rank} is late, or there is none"
            for step in range(self.graph.steps):
                for place, own in self.computing.get((rank, step), {}).items():
                    others_ns = [self.computed_ns(self.computing.get((each, step), {}).get(place, ())) for each in like]
                    _scale(found, own, median(others_ns))
        return found

    def computed_ns(self, operations: Sequence[int]) -> float:
        return float(sum(self.graph.operations[index].duration_ns for index in operations))


def _scale(durations: list[float], operations: Sequence[int], most_ns: float) -> None:
    """These operations together take at most so long."""
    own_ns = sum(durations[index] for index in operations)
    if own_ns > most_ns:
        for index in operations:
            durations[index] *= most_ns / own_ns


def _step_lengths_ns(graph: StepGraph, played: StepReplay) -> list[float]:
    ends = [0.0] * graph.steps
    for operation, end_ns in zip(graph.operations, played.ends_ns, strict=True):
        step = min(max(operation.step, 0), graph.steps - 1)
        ends[step] = max(ends[step], end_ns)
    found, before_ns = [], 0.0
    for end_ns in ends:
        found.append(max(0.0, end_ns - before_ns))
        before_ns = max(before_ns, end_ns)
    return found


# ---- the recording as operations


def mesh_replay(now: Measured) -> MeshReplay | str:
    """Of the newest steps that follow one another and have all usual synchronizations; a text: why there is none."""
    assert now.own_times is not None, "the job synchronizes in groups"
    keys = _newest_keys(now)
    if not keys:
        return "no two steps that follow one another have the usual synchronizations of all ranks"
    try:
        graph = join(recorded_traces(_only(now.recording, keys))).graph
        played = replay(graph, graph.durations)
    except (TraceError, JoinError, CircularError) as error:
        return f"the steps cannot be replayed: {error}"
    if graph.steps != len(keys):
        return "the synchronizations of the ranks do not divide into the recorded steps"
    missed = misfit(graph, played, graph.ranks)
    if missed > MAX_MISFIT:
        return (
            f"the replay misses the recorded time by {percent(missed)}, more than {percent(MAX_MISFIT, 0)}, so the marks do not "
            "show all that the ranks waited for"
        )
    peers = {rank: [each for each in of.ranks if each != rank] for of in now.own_times.classes for rank in of.ranks}
    return MeshReplay(graph, played, peers, missed)


def _newest_keys(now: Measured) -> set[int]:
    """Two or more."""
    assert now.own_times is not None, "the job synchronizes in groups"
    of_classes = [{key for key, _ in of.alike} for of in now.own_times.classes]
    usual = set.intersection(*of_classes) if of_classes else set()
    counts: dict[int, int] = defaultdict(int)
    for marks in now.recording.groups.marks.values() if now.recording.groups is not None else ():
        for mark in marks:
            counts[mark.step] += 1
    found: list[int] = []
    left = MAX_REPLAYED_MARKS
    for key in reversed(now.recording.step_keys):
        left -= counts[key]
        if key in usual and (left >= 0 or len(found) < 2):
            found.append(key)
        elif len(found) > 1:
            break
        else:
            found.clear()
    return set(found) if len(found) > 1 else set()


def _only(recording: Recording, keys: Collection[int]) -> Recording:
    groups = recording.groups
    assert groups is not None, "the recording has groups"
    return replace(
        recording,
        syncs=[sync for sync in recording.syncs if sync.step in keys],
        steps={rank: [mark for mark in marks if mark.step in keys] for rank, marks in recording.steps.items()},
        groups=replace(
            groups,
            marks={rank: [mark for mark in marks if mark.step in keys] for rank, marks in groups.marks.items()},
            syncs=[sync for sync in groups.syncs if sync.step in keys],
        ),
    )


# ---- remedies

_Changed = list[float] | str
"""The durations with a remedy, or why it does not apply."""


def mesh_gains(found: MeshReplay | str, late: Collection[int]) -> list[RemedyGain]:
    """Every remedy's gain, the largest first; those that do not apply, or have none that is known, are last."""
    gains = []
    for remedy in REMEDIES:
        changed = found if isinstance(found, str) else _CHANGES.get(remedy.name, _needs_its_groups)(found, late)
        if isinstance(changed, str) or isinstance(found, str):
            gains.append(RemedyGain(remedy, None, None, None, str(changed)))
            continue
        played = replay(found.graph, changed)
        saved_ns = found.played.length_ns - played.length_ns
        if 0 < abs(saved_ns) < found.misfit * found.played.length_ns:
            within = f"a gain of {percent(saved_ns / found.played.length_ns)} is within the error of the replay, {percent(found.misfit)}"
            gains.append(RemedyGain(remedy, None, None, None, within))
            continue
        gains.append(
            RemedyGain(
                remedy,
                saved_ns / found.played.length_ns,
                round(saved_ns / found.graph.steps),
                _overhead(found.graph, changed, played),
                "",
            )
        )
    return sorted(gains, key=lambda gain: float("inf") if gain.gain is None else -gain.gain)


def _overhead(graph: StepGraph, durations: Sequence[float], played: StepReplay) -> float | None:
    """The part of the ranks' time in which they do not compute."""
    ends: dict[int, float] = defaultdict(float)
    computed_ns = 0.0
    for operation, duration_ns, end_ns in zip(graph.operations, durations, played.ends_ns, strict=True):
        ends[operation.rank] = max(ends[operation.rank], end_ns)
        computed_ns += duration_ns if operation.kind == COMPUTE else 0.0
    elapsed_ns = sum(ends.values())
    return max(0.0, 1 - computed_ns / elapsed_ns) if elapsed_ns else None


def _no_straggler(found: MeshReplay, late: Collection[int]) -> _Changed:
    return found.leveled(late) if late else "no rank is persistently late"


def _pauses(found: MeshReplay) -> list[tuple[int, int, int]]:
    """(step, rank, ns)."""
    ranks = found.graph.ranks
    totals_ns = [
        [
            round(sum(found.computed_ns(own) for own in found.computing.get((rank, step), {}).values()))
            for step in range(1, found.graph.steps)
        ]
        for rank in ranks
    ]
    # The first step has no computing before its first synchronization.
    return [(step + 1, ranks[at], ns) for step, at, ns in pauses_in(totals_ns)] if totals_ns[0] else []


def _without(found: MeshReplay, pauses: Sequence[tuple[int, int, int]]) -> list[float]:
    """Each place of the step takes less by its part of the pause: what it takes longer than in the usual step."""
    durations = found.graph.durations
    usual_ns: dict[tuple[int, int], list[float]] = defaultdict(list)
    for (rank, _), places in found.computing.items():
        for place, own in places.items():
            usual_ns[rank, place].append(found.computed_ns(own))
    for step, rank, ns in pauses:
        places = found.computing[rank, step]
        over_ns = {
            place: max(0.0, found.computed_ns(own) - median(usual_ns[rank, place])) for place, own in places.items()
        }
        part = min(1.0, ns / sum(over_ns.values())) if any(over_ns.values()) else 0.0
        for place, own in places.items():
            _scale(durations, own, found.computed_ns(own) - part * over_ns[place])
    return durations


def _no_pauses(found: MeshReplay, late: Collection[int]) -> _Changed:
    pauses = _pauses(found)
    return _without(found, pauses) if pauses else _NO_PAUSE.format("nothing to remove")


def _pauses_together(found: MeshReplay, late: Collection[int]) -> _Changed:
    """As for a flat group: the longest pauses of all ranks move into one step, then the second longest, and so on."""
    by_rank: dict[int, list[tuple[int, int]]] = defaultdict(list)
    pauses = _pauses(found)
    for step, rank, ns in pauses:
        by_rank[rank].append((ns, step))
    if len(by_rank) < 2:
        return "only one rank pauses" if by_rank else _NO_PAUSE.format("nothing to synchronize")
    durations = _without(found, pauses)
    in_order = [[(ns, step, rank) for ns, step in sorted(own, reverse=True)] for rank, own in by_rank.items()]
    for together in zip_longest(*in_order):
        moved = [each for each in together if each is not None]
        _, into, _ = max(moved)
        for ns, step, rank in moved:
            places = found.computing.get((rank, into)) or found.computing[rank, step]
            durations[min(min(own) for own in places.values())] += ns
    return durations


def _phase_shift(found: MeshReplay, late: Collection[int]) -> _Changed:
    """No transfer takes longer than the fastest tenth of the transfers at the same place."""
    durations = found.graph.durations
    by_place: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, operation in enumerate(found.graph.operations):
        if operation.kind != COMPUTE and operation.waits and operation.meeting is not None:
            by_place[operation.rank, operation.place].append(index)
    for operations in by_place.values():
        least_ns = percentile([found.graph.operations[index].duration_ns for index in operations], 10)
        for index in operations:
            durations[index] = min(durations[index], least_ns)
    return durations


def _slack_used(found: MeshReplay, late: Collection[int]) -> _Changed:
    if not _pauses(found):
        return _NO_PAUSE.format("no work to move into the waits")
    return "which wait of a group a pause could move into is not known"


def _needs_its_groups(found: MeshReplay, late: Collection[int]) -> _Changed:
    return _NEEDS_ITS_GROUPS


_CHANGES: Mapping[str, Callable[[MeshReplay, Collection[int]], _Changed]] = {
    "no_straggler": _no_straggler,
    "slack_used": _slack_used,
    "no_pauses": _no_pauses,
    "pauses_together": _pauses_together,
    "phase_shift": _phase_shift,
}
