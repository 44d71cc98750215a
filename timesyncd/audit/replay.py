"""Runs recorded steps anew: each rank computes as long as it did, and waits for whom it has to. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from timesyncd.audit.timeline import RankStep, Run, Step


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


def _walked(step: Step, clocks_ns: Sequence[int]) -> list[_Walk]:
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
