"""
What each remedy would gain: the recorded steps, changed as it would change them, replayed. Pure.

Runs recorded steps anew: each rank computes as long as it did, and waits for whom it has to. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from timesyncd.audit.pauses import Pause, pauses_of, with_pause, without_pause
from timesyncd.audit.timeline import RankStep, RankSync, RecordedStep, Run
from timesyncd.units import percentile


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step as replayed, in nanoseconds by rank: its length, how much of it was waiting, its longest wait for a rank."""

    lengths_ns: tuple[int, ...]
    exposed_ns: tuple[int, ...]
    slack_ns: tuple[int, ...]


@dataclass(slots=True)
class _Walk:
    """One rank on its way through a step. `clock_ns` is when the step began, and every wait since."""

    step: RankStep
    clock_ns: int
    over: int = 0
    exposed_ns: int = 0
    slack_ns: int = 0

    def wait(self, until: int, ends_ns: Sequence[int], lasts_ns: Sequence[int]) -> None:
        """Sit out the waits of this step up to the number `until`, in the order in which they were over."""
        while self.over < until:
            index = self.step.order[self.over]
            begin_ns = self.clock_ns + self.step.parts[index].waits_ns
            waited_ns = max(0, ends_ns[index] - begin_ns)
            self.slack_ns = max(self.slack_ns, min(waited_ns, lasts_ns[index] - begin_ns))
            self.clock_ns += waited_ns
            self.exposed_ns += waited_ns
            self.over += 1


def replay(runs: Sequence[Run]) -> list[StepTime]:
    """
    Every step's times, in order. Unchanged steps take exactly as long as they were recorded to.

    Each part of a step is looked at once, so the time grows with their number and no faster.
    """
    times: list[StepTime] = []
    for run in runs:
        clocks_ns = list(run.starts_ns)
        for step in run.steps:
            before_ns, walks = clocks_ns, _walked(step, clocks_ns)
            clocks_ns = [walk.clock_ns + walk.step.compute_ns for walk in walks]
            times.append(
                StepTime(
                    tuple(after - before for after, before in zip(clocks_ns, before_ns, strict=True)),
                    tuple(walk.exposed_ns for walk in walks),
                    tuple(walk.slack_ns for walk in walks),
                )
            )
    return times


def _walked(step: RecordedStep, clocks_ns: Sequence[int]) -> list[_Walk]:
    walks = [_Walk(rank, clock_ns) for rank, clock_ns in zip(step.ranks, clocks_ns, strict=True)]
    ends_ns: list[list[int]] = [[] for _ in walks]
    lasts_ns: list[int] = []
    through_ns = 0
    for index, transfer_ns in enumerate(step.transfers_ns):
        arrivals = []
        for rank, walk in enumerate(walks):
            part = walk.step.parts[index]
            walk.wait(part.after, ends_ns[rank], lasts_ns)
            arrivals.append(walk.clock_ns + part.arrives_ns)
        lasts_ns.append(max(arrivals))
        through_ns = (max(lasts_ns[-1], through_ns) if step.queued[index] else lasts_ns[-1]) + transfer_ns
        for rank, walk in enumerate(walks):
            part = walk.step.parts[index]
            left_ns = arrivals[rank] + part.own_ns if part.leaves_ns is None else through_ns + part.leaves_ns
            ends_ns[rank].append(max(left_ns, arrivals[rank]))
    for rank, walk in enumerate(walks):
        walk.wait(len(walk.step.order), ends_ns[rank], lasts_ns)
    return walks


def total_ns(times: Sequence[StepTime]) -> float:
    """The mean over the ranks of all steps' lengths."""
    return sum(sum(time.lengths_ns) / len(time.lengths_ns) for time in times)


def overhead(times: Sequence[StepTime]) -> float | None:
    """Waiting over elapsed time, both summed over the ranks; None: no time passed."""
    elapsed_ns = sum(sum(time.lengths_ns) for time in times)
    return sum(sum(time.exposed_ns) for time in times) / elapsed_ns if elapsed_ns else None


#: Synchronize every so many steps; gradients of so many steps before one update.
LOCAL_STEPS = (4, 16)
BATCHES = (2, 4)


@dataclass(frozen=True, slots=True)
class ReplayCase:
    """The recorded runs as they were, their replay, and who was found to be a straggler."""

    runs: Sequence[Run]
    times: Sequence[StepTime]
    stragglers: Collection[int]


@dataclass(frozen=True, slots=True)
class Remedy:
    """`changed` gives the runs under it, or in one line why it does not apply. `assumption`: what its figure stands on."""

    name: str
    title: str
    assumption: str
    changed: Callable[[ReplayCase], list[Run] | str]


@dataclass(frozen=True, slots=True)
class RemedyGain:
    """`gain` is the share of the time that the same steps would take less; None: it does not apply, `reason` says why."""

    remedy: Remedy
    gain: float | None
    step_saved_ns: int | None
    sync_overhead: float | None
    reason: str


def gains(runs: Sequence[Run], stragglers: Collection[int]) -> list[RemedyGain]:
    """Every remedy's, the largest first, those that do not apply last."""
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
        return "every rank is one"
    return _each_step(case.runs, lambda step: _levelled(step, case.stragglers))


def _levelled(step: RecordedStep, stragglers: Collection[int]) -> RecordedStep:
    """Stragglers compute no longer than the median of the others does, up to each point of the step."""
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
    """Each pause moves into the first later wait of its rank, within the same run, that is as long; each wait takes one."""
    if not pauses_of(case.runs):
        return "no pause stands out: no work to move into the waits"
    calm = without_pauses(case.runs)
    slack = [list(time.slack_ns) for time in replay(calm)]
    at, changed = 0, []
    for run, calm_run in zip(case.runs, calm, strict=True):
        steps = list(calm_run.steps)
        for pause in pauses_of([run]):
            later = range(at + pause.step, at + len(run.steps))
            fits = next((step for step in later if slack[step][pause.rank] >= pause.ns), None)
            if fits is None:
                steps[pause.step] = with_pause(steps[pause.step], pause.rank, pause.ns)
            else:
                slack[fits][pause.rank] = 0
        changed.append(replace(run, steps=tuple(steps)))
        at += len(run.steps)
    return changed


def _pauses_together(case: ReplayCase) -> list[Run] | str:
    """The k-th pause of every rank in the step of the earliest of them."""
    found = pauses_of(case.runs)
    if not found:
        return "no pause stands out: nothing to do at the same instant"
    if len({pause.rank for pause in found}) < 2:
        return "only one rank pauses"
    changed = []
    for run, calm in zip(case.runs, without_pauses(case.runs), strict=True):
        by_rank: dict[int, list[Pause]] = defaultdict(list)
        for pause in pauses_of([run]):
            by_rank[pause.rank].append(pause)
        steps = list(calm.steps)
        for number in range(max(map(len, by_rank.values()), default=0)):
            together = [pauses[number] for pauses in by_rank.values() if number < len(pauses)]
            at = min(pause.step for pause in together)
            for pause in together:
                steps[at] = with_pause(steps[at], pause.rank, pause.ns)
        changed.append(replace(run, steps=tuple(steps)))
    return changed


def without_pauses(runs: Sequence[Run]) -> list[Run]:
    changed = []
    for run in runs:
        steps = list(run.steps)
        for pause in pauses_of([run]):
            steps[pause.step] = without_pause(steps[pause.step], pause)
        changed.append(replace(run, steps=tuple(steps)))
    return changed


def _every(steps: int, update_once: bool) -> Callable[[ReplayCase], list[Run] | str]:
    """Only the last of so many steps synchronizes; with `update_once` it alone updates the parameters, too."""

    def changed(case: ReplayCase) -> list[Run] | str:
        if max(len(run.steps) for run in case.runs) < steps:
            return f"fewer than {steps} steps in a row are recorded"
        return [
            replace(run, steps=tuple(s if at % steps == steps - 1 else _alone(s) for at, s in enumerate(run.steps)))
            for run in case.runs
        ]

    def _alone(step: RecordedStep) -> RecordedStep:
        ranks = [RankStep(rank.compute_ns - (rank.update_ns if update_once else 0), 0, (), ()) for rank in step.ranks]
        return RecordedStep(step.key, (), (), (), tuple(ranks))

    return changed


def _phase_shift(case: ReplayCase) -> list[Run]:
    """Every transfer takes no longer than a tenth of its like do."""
    transfers: dict[str, list[int]] = defaultdict(list)
    for run in case.runs:
        for step in run.steps:
            for place, transfer_ns in zip(step.places, step.transfers_ns, strict=True):
                transfers[place].append(transfer_ns)
    least = {place: percentile(values, 10) for place, values in transfers.items()}

    def alone(step: RecordedStep) -> RecordedStep:
        both = zip(step.places, step.transfers_ns, strict=True)
        return replace(step, transfers_ns=tuple(min(transfer_ns, least[place]) for place, transfer_ns in both))

    return _each_step(case.runs, alone)


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
        "Pauses (garbage collection, checkpoints) can be put off until a step in which the rank waits that long anyway.",
        _slack_used,
    ),
    Remedy(
        "pauses_together",
        "Synchronized pauses",
        "The pauses of all ranks take place in one step, so that the longest counts once; none becomes rarer or shorter.",
        _pauses_together,
    ),
    *(
        Remedy(
            f"local_steps_{steps}",
            f"Local steps, H = {steps}",
            f"Ranks synchronize every {steps}th step and need no step more to converge: check that on your own loss.",
            _every(steps, update_once=False),
        )
        for steps in LOCAL_STEPS
    ),
    *(
        Remedy(
            f"larger_batch_{times}",
            f"Batch {times} times as large",
            f"Per sample: computing grows with the batch, {times} steps become one; convergence must bear the larger batch.",
            _every(times, update_once=True),
        )
        for times in BATCHES
    ),
    Remedy(
        "phase_shift",
        "Phase shift",
        "At most: all that a transfer takes beyond the fastest tenth of its like is another job's traffic, and would be avoided.",
        _phase_shift,
    ),
)
