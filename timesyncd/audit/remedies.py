"""
The gain of each remedy: the recorded steps are changed as the remedy would change them, and replayed. Pure.

In a replay, each rank computes for as long as recorded, and waits for the ranks that arrive later. A rank's pause is
computing that takes longer than its median; a remedy removes pauses or inserts them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from timesyncd.audit.timeline import RankStep, RankSync, RecordedStep, Run
from timesyncd.units import percentile


@dataclass(frozen=True, slots=True)
class StepTime:
    """A replayed step, in ns by rank: its length, its exposed waiting, and its longest wait for the last rank."""

    lengths_ns: tuple[int, ...]
    exposed_ns: tuple[int, ...]
    slack_ns: tuple[int, ...]


@dataclass(slots=True)
class _RankProgress:
    """One rank's progress through a step. `clock_ns` is the begin of the step plus all waits since."""

    step: RankStep
    clock_ns: int
    waits_done: int = 0
    exposed_ns: int = 0
    slack_ns: int = 0

    def wait(self, until: int, ends_ns: Sequence[int], lasts_ns: Sequence[int]) -> None:
        """Performs the waits of this step up to number `until`, in the order of their ends."""
        while self.waits_done < until:
            index = self.step.order[self.waits_done]
            begin_ns = self.clock_ns + self.step.parts[index].waits_ns
            waited_ns = max(0, ends_ns[index] - begin_ns)
            self.slack_ns = max(self.slack_ns, min(waited_ns, lasts_ns[index] - begin_ns))
            self.clock_ns += waited_ns
            self.exposed_ns += waited_ns
            self.waits_done += 1


def replay(runs: Sequence[Run]) -> list[StepTime]:
    """
    Every step's times, in order. Unchanged steps take exactly as long as recorded.

    Runs in time proportional to the number of synchronizations.
    """
    times: list[StepTime] = []
    for run in runs:
        clocks_ns = list(run.starts_ns)
        for step in run.steps:
            before_ns, progresses = clocks_ns, _replay_step(step, clocks_ns)
            clocks_ns = [progress.clock_ns + progress.step.compute_ns for progress in progresses]
            times.append(
                StepTime(
                    tuple(after - before for after, before in zip(clocks_ns, before_ns, strict=True)),
                    tuple(progress.exposed_ns for progress in progresses),
                    tuple(progress.slack_ns for progress in progresses),
                )
            )
    return times


def _replay_step(step: RecordedStep, clocks_ns: Sequence[int]) -> list[_RankProgress]:
    progresses = [_RankProgress(rank, clock_ns) for rank, clock_ns in zip(step.ranks, clocks_ns, strict=True)]
    ends_ns: list[list[int]] = [[] for _ in progresses]
    lasts_ns: list[int] = []
    through_ns = 0
    for index, transfer_ns in enumerate(step.transfers_ns):
        arrivals = []
        for rank, progress in enumerate(progresses):
            part = progress.step.parts[index]
            progress.wait(part.after, ends_ns[rank], lasts_ns)
            arrivals.append(progress.clock_ns + part.arrives_ns)
        lasts_ns.append(max(arrivals))
        through_ns = (max(lasts_ns[-1], through_ns) if step.queued[index] else lasts_ns[-1]) + transfer_ns
        for rank, progress in enumerate(progresses):
            part = progress.step.parts[index]
            left_ns = arrivals[rank] + part.own_ns if part.leaves_ns is None else through_ns + part.leaves_ns
            ends_ns[rank].append(max(left_ns, arrivals[rank]))
    for rank, progress in enumerate(progresses):
        progress.wait(len(progress.step.order), ends_ns[rank], lasts_ns)
    return progresses


def total_ns(times: Sequence[StepTime]) -> float:
    """The sum of all steps' lengths, as the mean of the ranks."""
    return sum(sum(time.lengths_ns) / len(time.lengths_ns) for time in times)


def overhead(times: Sequence[StepTime]) -> float | None:
    """Exposed waiting over elapsed time, both summed over the ranks; None: no time elapsed."""
    elapsed_ns = sum(sum(time.lengths_ns) for time in times)
    return sum(sum(time.exposed_ns) for time in times) / elapsed_ns if elapsed_ns else None


#: The numbers of steps between synchronizations, and the numbers of steps per update, that are replayed.
LOCAL_STEPS = (4, 16)
BATCHES = (2, 4)


@dataclass(frozen=True, slots=True)
class ReplayCase:
    """The recorded runs, their replay, and the ranks that are stragglers."""

    runs: Sequence[Run]
    times: Sequence[StepTime]
    stragglers: Collection[int]


@dataclass(frozen=True, slots=True)
class Remedy:
    """
    `changed` returns the changed runs, or the reason why the remedy does not apply. `assumption` is what its gain
    depends on.
    """

    name: str
    title: str
    assumption: str
    changed: Callable[[ReplayCase], list[Run] | str]


@dataclass(frozen=True, slots=True)
class RemedyGain:
    """`gain`: the share of the time that the remedy would save; None: it does not apply, for `reason`."""

    remedy: Remedy
    gain: float | None
    step_saved_ns: int | None
    sync_overhead: float | None
    reason: str


def gains(runs: Sequence[Run], stragglers: Collection[int]) -> list[RemedyGain]:
    """Every remedy's gain, the largest first; those that do not apply are last."""
    times = replay(runs)
    before_ns = total_ns(times)
    if not before_ns:
        return []
    case = ReplayCase(runs, times, stragglers)
    found = [_gain(remedy, case, before_ns) for remedy in REMEDIES]
    return sorted(found, key=lambda gain: float("inf") if gain.gain is None else -gain.gain)


def _gain(remedy: Remedy, case: ReplayCase, before_ns: float) -> RemedyGain:
    changed = remedy.changed(case)
    if isinstance(changed, str):
        return RemedyGain(remedy, None, None, None, changed)
    times = replay(changed)
    saved_ns = before_ns - total_ns(times)
    return RemedyGain(remedy, saved_ns / before_ns, round(saved_ns / len(times)), overhead(times), "")


def _each_step(runs: Sequence[Run], change: Callable[[RecordedStep], RecordedStep]) -> list[Run]:
    return [replace(run, steps=tuple(map(change, run.steps))) for run in runs]


def _no_straggler(case: ReplayCase) -> list[Run] | str:
    if not case.stragglers:
        return "no rank is persistently late"
    if len(case.stragglers) == len(case.runs[0].starts_ns):
        return "every rank is a straggler"
    return _each_step(case.runs, lambda step: leveled(step, case.stragglers))


def leveled(step: RecordedStep, stragglers: Collection[int]) -> RecordedStep:
    """Stragglers compute no longer than the median of the others, up to each point of the step."""
    others = [rank for index, rank in enumerate(step.ranks) if index not in stragglers]
    parts = tuple(zip(*(rank.parts for rank in others), strict=True))
    model = RankStep(
        compute_ns=percentile([rank.compute_ns for rank in others], 50),
        update_ns=0,
        parts=tuple(
            replace(
                same[0],
                arrives_ns=percentile([part.arrives_ns for part in same], 50),
                waits_ns=percentile([part.waits_ns for part in same], 50),
            )
            for same in parts
        ),
        order=(),
    )
    ranks = [_no_longer(rank, model) if index in stragglers else rank for index, rank in enumerate(step.ranks)]
    return replace(step, ranks=tuple(ranks))


def _no_longer(rank: RankStep, model: RankStep) -> RankStep:
    def earlier(part: RankSync, like: RankSync) -> RankSync:
        return replace(
            part,
            arrives_ns=min(part.arrives_ns, like.arrives_ns),
            waits_ns=min(part.waits_ns, like.waits_ns),
        )

    parts = tuple(earlier(part, like) for part, like in zip(rank.parts, model.parts, strict=True))
    return replace(rank, compute_ns=min(rank.compute_ns, model.compute_ns), parts=parts)


def _slack_used(case: ReplayCase) -> list[Run] | str:
    """
    Each pause moves into the first later wait of its rank in the same run that is as long; a wait takes one pause.
    """
    if not pauses_of(case.runs):
        return "no pause is longer than usual, so there is no work to move into the waits"
    slack = [list(time.slack_ns) for time in replay(without_pauses(case.runs))]
    at, changed = 0, []
    for run in case.runs:
        moved = []
        for pause in pauses_of([run]):
            later = range(at + pause.step, at + len(run.steps))
            fits = next((step for step in later if slack[step][pause.rank] >= pause.ns), None)
            if fits is not None:
                slack[fits][pause.rank] = 0
                moved.append(pause)
        changed.append(_without(run, moved))
        at += len(run.steps)
    return changed


def _no_pauses(case: ReplayCase) -> list[Run] | str:
    if not pauses_of(case.runs):
        return "no pause is longer than usual, so there is nothing to remove"
    return without_pauses(case.runs)


def _pauses_together(case: ReplayCase) -> list[Run] | str:
    """
    The longest pauses of all ranks move into one step, then the second longest, and so on, each time into the step of
    the longest of them. So a pair costs its longer pause, and pairing by size costs least.
    """
    by_rank: dict[int, list[tuple[int, Pause]]] = defaultdict(list)
    for number, run in enumerate(case.runs):
        for pause in pauses_of([run]):
            by_rank[pause.rank].append((number, pause))
    if not by_rank:
        return "no pause is longer than usual, so there is nothing to synchronize"
    if len(by_rank) < 2:
        return "only one rank pauses"
    in_order = [sorted(found, key=lambda one: -one[1].ns) for found in by_rank.values()]
    changed = [list(run.steps) for run in without_pauses(case.runs)]
    for together in zip_longest(*in_order):
        found = [one for one in together if one is not None]
        number, longest = max(found, key=lambda one: one[1].ns)
        for _, pause in found:
            changed[number][longest.step] = with_pause(changed[number][longest.step], pause.rank, pause.ns)
    return [replace(run, steps=tuple(steps)) for run, steps in zip(case.runs, changed, strict=True)]


def without_pauses(runs: Sequence[Run]) -> list[Run]:
    return [_without(run, pauses_of([run])) for run in runs]


def _without(run: Run, pauses: Sequence[Pause]) -> Run:
    steps = list(run.steps)
    for pause in pauses:
        steps[pause.step] = without_pause(steps[pause.step], pause)
    return replace(run, steps=tuple(steps))


def every(steps: int, update_once: bool) -> Callable[[ReplayCase], list[Run] | str]:
    """Only the last of `steps` steps synchronizes; with `update_once`, only that step updates the parameters."""

    def changed(case: ReplayCase) -> list[Run] | str:
        if max(len(run.steps) for run in case.runs) < steps:
            return f"fewer than {steps} consecutive steps are recorded"
        return [
            replace(
                run, steps=tuple(s if at % steps == steps - 1 else _without_sync(s) for at, s in enumerate(run.steps))
            )
            for run in case.runs
        ]

    def _without_sync(step: RecordedStep) -> RecordedStep:
        ranks = [RankStep(rank.compute_ns - (rank.update_ns if update_once else 0), 0, (), ()) for rank in step.ranks]
        return RecordedStep(step.key, (), (), (), tuple(ranks))

    return changed


def _phase_shift(case: ReplayCase) -> list[Run]:
    """No transfer takes longer than the fastest tenth of the transfers at the same place."""
    transfers: dict[str, list[int]] = defaultdict(list)
    for run in case.runs:
        for step in run.steps:
            for place, transfer_ns in zip(step.places, step.transfers_ns, strict=True):
                transfers[place].append(transfer_ns)
    least = {place: percentile(values, 10) for place, values in transfers.items()}

    def shortened(step: RecordedStep) -> RecordedStep:
        both = zip(step.places, step.transfers_ns, strict=True)
        return replace(step, transfers_ns=tuple(min(transfer_ns, least[place]) for place, transfer_ns in both))

    return _each_step(case.runs, shortened)


REMEDIES = (
    Remedy(
        "no_straggler",
        "No straggler",
        "Each straggler computes no longer than the median of the other ranks in the same step; nothing else changes.",
        _no_straggler,
    ),
    Remedy(
        "slack_used",
        "Slack used",
        "Pauses (garbage collection, checkpoints) can be postponed to a step in which the rank waits that long anyway.",
        _slack_used,
    ),
    Remedy(
        "no_pauses",
        "No pauses",
        "What interrupts single ranks (garbage collection, a checkpoint of one rank) is removed, or done beside the training.",
        _no_pauses,
    ),
    Remedy(
        "pauses_together",
        "Synchronized pauses",
        "The ranks pause in the same steps, their pauses paired by size, so that only the longest counts; none becomes rarer or shorter.",
        _pauses_together,
    ),
    *(
        Remedy(
            f"local_steps_{steps}",
            f"Local steps, H = {steps}",
            f"Ranks synchronize every {steps}th step and need no more steps to converge: check that on your own loss.",
            every(steps, update_once=False),
        )
        for steps in LOCAL_STEPS
    ),
    *(
        Remedy(
            f"larger_batch_{times}",
            f"Batch {times} times as large",
            f"Computing grows with the batch, and {times} steps become one; convergence must tolerate the larger batch.",
            every(times, update_once=True),
        )
        for times in BATCHES
    ),
    Remedy(
        "phase_shift",
        "Phase shift",
        "An upper limit: what a transfer takes beyond the fastest tenth at its place is another job's traffic, and would be avoided.",
        _phase_shift,
    ),
)


#: A pause exceeds the rank's median compute time by this share of it, and by this many median deviations.
_SHARE_PERCENT = 25
_SPREADS = 8


@dataclass(frozen=True, slots=True)
class Pause:
    """
    One rank computed `ns` longer than its median; `step` is an index in its run. `typical`: its parts of this step as
    they are without a pause.
    """

    rank: int
    step: int
    ns: int
    typical: tuple[RankSync, ...]


def pauses_of(runs: Sequence[Run]) -> list[Pause]:
    """
    In the order of the runs and their steps. Work that all ranks do in one step is no pause, only what a rank does
    beyond the least of them.
    """
    return [pause for run in runs for pause in _of_run(run)]


def _of_run(run: Run) -> list[Pause]:
    computed_ns = [[step.ranks[rank].compute_ns for step in run.steps] for rank in range(len(run.starts_ns))]
    pauses = pauses_in(computed_ns)
    paused = {(step, rank) for step, rank, _ in pauses}
    calm: dict[tuple[int, tuple[str, ...]], list[RankStep]] = defaultdict(list)
    for at, step in enumerate(run.steps):
        for rank, own in enumerate(step.ranks):
            if (at, rank) not in paused:
                calm[rank, step.places].append(own)
    typical = {key: _typical_parts(steps, 50) for key, steps in calm.items()}
    found = []
    for at, rank, ns in pauses:
        step = run.steps[at]
        others = [other for each, other in enumerate(step.ranks) if each != rank]
        found.append(Pause(rank, at, ns, typical.get((rank, step.places)) or _typical_parts(others, 0)))
    return found


def pauses_in(computed_ns: Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
    """
    (step, rank, ns) in order, of what each rank computes step by step. What all ranks compute longer in one step is no
    pause.
    """
    excess_ns = [_excess_ns(of_rank) for of_rank in computed_ns]
    common_ns = [max(0, min(of_step)) for of_step in zip(*excess_ns, strict=True)]
    found = []
    for rank, of_rank in enumerate(excess_ns):
        spread_ns = percentile([abs(value) for value in of_rank], 50)
        typical_ns = computed_ns[rank][0] - of_rank[0]
        at_least_ns = max(typical_ns * _SHARE_PERCENT // 100, _SPREADS * spread_ns, 1)
        own_ns = [excess - common for excess, common in zip(of_rank, common_ns, strict=True)]
        found += [(step, rank, value) for step, value in enumerate(own_ns) if value >= at_least_ns]
    return sorted(found)


def _excess_ns(computed_ns: Sequence[int]) -> list[int]:
    typical_ns = percentile(computed_ns, 50)
    return [value - typical_ns for value in computed_ns]


def _typical_parts(steps: Sequence[RankStep], percent: int) -> tuple[RankSync, ...]:
    """By synchronization: when a rank arrives and begins to wait, in this percentile of the steps, which are alike."""
    return tuple(
        replace(
            parts[0],
            arrives_ns=percentile([part.arrives_ns for part in parts], percent),
            waits_ns=percentile([part.waits_ns for part in parts], percent),
        )
        for parts in zip(*(step.parts for step in steps), strict=True)
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
        for part, typical in zip(own.parts, pause.typical, strict=True)
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
