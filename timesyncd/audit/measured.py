"""A recording with the costs of its steps and the comparison of its ranks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from timesyncd.audit.bootstrap import StepSample
from timesyncd.jobs.arrivals import StepMark, Sync, widest_skew_sync
from timesyncd.jobs.exposed import Interval, StepCost, step_cost
from timesyncd.jobs.recording import Recording, same_step
from timesyncd.jobs.stragglers import Attribution, attribute
from timesyncd.units import percentile

#: From this number of recorded steps on, the first one is omitted: it contains one-time work, such as making the
#: buckets.
MIN_STEPS_WITHOUT_FIRST = 20


@dataclass(frozen=True, slots=True)
class Measured:
    """
    `recording` is without the omitted first step; `aligned` has only complete synchronizations, on the time axis of the
    attribution.
    """

    recorded_steps: int
    recording: Recording
    aligned: Recording
    attribution: Attribution
    costs: Sequence[StepCost]

    @property
    def samples(self) -> list[StepSample]:
        """The mean of the ranks, for every step in which a rank was measured."""
        return [
            StepSample(cost.elapsed_ns / len(cost.ranks), cost.exposed_ns / len(cost.ranks))
            for cost in self.costs
            if cost.elapsed_ns > 0
        ]

    @property
    def exposed_ns(self) -> int:
        return sum(cost.exposed_ns for cost in self.costs)

    @property
    def elapsed_ns(self) -> int:
        return sum(cost.elapsed_ns for cost in self.costs)

    def rank_exposed_ns(self, rank: int) -> int:
        return sum(cost.ranks[rank].exposed_ns for cost in self.costs if rank in cost.ranks)

    @property
    def own_overhead(self) -> float | None:
        """Metering's own time over the time since the ranks joined, or over their measured steps if that is unknown."""
        own_ns = metered_ns = 0
        for rank, record in self.recording.ranks.items():
            own_ns += record.own_overhead_ns
            metered_ns += record.metered_ns or sum(c.ranks[rank].elapsed_ns for c in self.costs if rank in c.ranks)
        return own_ns / metered_ns if metered_ns else None


def measured(recording: Recording) -> Measured:
    keys = recording.step_keys
    if len(keys) >= MIN_STEPS_WITHOUT_FIRST:
        recording = _after(recording, keys[0])
    attribution = attribute(recording.syncs, recording.nodes, recording.world_size)
    return Measured(len(keys), recording, _aligned(recording, attribution), attribution, _costs(recording))


def _after(recording: Recording, step: int) -> Recording:
    return replace(
        recording,
        syncs=[sync for sync in recording.syncs if sync.step > step],
        steps={rank: [mark for mark in marks if mark.step > step] for rank, marks in recording.steps.items()},
        requests={rank: [one for one in many if one.step > step] for rank, many in recording.requests.items()},
    )


def waits_ns(attribution: Attribution) -> dict[int, list[int]]:
    """By rank, for each comparable step: its wait for the last rank, at the synchronization with the widest skew."""
    found: dict[int, list[int]] = {}
    for _, step in same_step(attribution.syncs):
        comparison = widest_skew_sync(step).comparison
        for rank, wait_ns in comparison.waits_ns.items() if comparison else ():
            found.setdefault(rank, []).append(wait_ns)
    return found


def median_length_ns(samples: Sequence[StepSample]) -> int:
    """The median length of a step in ns."""
    return percentile([round(sample.length_ns) for sample in samples], 50)


def _costs(recording: Recording) -> list[StepCost]:
    by_step = dict(same_step(recording.syncs))
    requests: dict[int, dict[int, list[Interval]]] = {}
    for rank, many in recording.requests.items():
        for one in many:
            requests.setdefault(one.step, {}).setdefault(rank, []).append((one.begin_ns, one.end_ns))
    keys = recording.step_keys
    found = []
    for key, following in zip(keys, [*keys[1:], None], strict=True):
        after = by_step.get(following, []) if following is not None else []
        marks = {rank: mark for rank in recording.steps if (mark := recording.step_mark(rank, key)) is not None}
        found.append(step_cost(key, by_step.get(key, []), after, marks, requests.get(key, {})))
    return found


def _aligned(recording: Recording, attribution: Attribution) -> Recording:
    """The recording with its steps shifted like the synchronizations that the attribution aligned."""
    moved = {(sync.step, sync.sync): sync for sync in attribution.syncs}
    shifts_ns: dict[tuple[int, int], int] = {}
    for sync in recording.syncs:
        if (sync.step, sync.sync) in moved:
            shifts_ns |= _shifts_ns(sync, moved[sync.step, sync.sync])
    steps = {
        rank: [_moved(mark, shifts_ns[rank, mark.step]) for mark in marks if (rank, mark.step) in shifts_ns]
        for rank, marks in recording.steps.items()
    }
    return replace(recording, syncs=attribution.syncs, steps=steps)


def _shifts_ns(before: Sync, after: Sync) -> dict[tuple[int, int], int]:
    return {
        (rank, before.step): arrival.arrival_ns - before.arrivals[rank].arrival_ns
        for rank, arrival in after.arrivals.items()
    }


def _moved(mark: StepMark, by_ns: int) -> StepMark:
    ready_ns = None if mark.ready_ns is None else mark.ready_ns + by_ns
    return StepMark(mark.step, mark.arrival_ns + by_ns, ready_ns, mark.end_ns + by_ns)
