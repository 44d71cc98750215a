"""What other work on busy machines does to the ranks of a simulated job: bursts, pauses, and cores that ranks share."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MS = 1_000_000

#: What a load may consist of. `wander`: each rank's speed changes slowly, by itself.
KINDS = ("bursts", "pauses", "cores", "wander")

_Slowed = tuple[int, int, float]
"""From, until (ns), and the speed meanwhile; 0: the rank does nothing."""


@dataclass(frozen=True)
class MachineLoad:
    """
    Each rank's speed over time, as a share of what it would do alone. All ranks have the same chance to be slowed, so in
    the long run none is slower than the others. `changes_ns`, `speeds`: by rank.
    """

    changes_ns: Sequence[Sequence[int]]
    speeds: Sequence[Sequence[float]]

    def end_ns(self, rank: int, begin_ns: int, work_ns: int) -> int:
        """When the rank has done what takes so long alone, if it begins then."""
        changes, speeds = self.changes_ns[rank], self.speeds[rank]
        at, now, left = bisect_right(changes, begin_ns) - 1, begin_ns, float(work_ns)
        while at + 1 < len(changes):
            speed = 1.0 if at < 0 else speeds[at]
            done = (changes[at + 1] - now) * speed
            if done >= left and speed > 0:
                return now + round(left / speed)
            now, left, at = changes[at + 1], left - done, at + 1
        return now + round(left)


def machine_load(
    kinds: Sequence[str], nodes: Sequence[Sequence[int]], step_ns: int, lasts_ns: int, seed: int
) -> MachineLoad:
    """A load of these kinds on `nodes`, which have these ranks, for steps of about `step_ns`."""
    slowed: dict[int, list[_Slowed]] = {rank: [] for node in nodes for rank in node}
    for kind in kinds:
        for number, node in enumerate(nodes):
            dice = random.Random(f"{seed} {kind} {number}")
            for rank, each in _GENERATORS[kind](dice, node, step_ns, lasts_ns):
                slowed[rank].append(each)
    found = [_speeds(slowed[rank]) for rank in sorted(slowed)]
    return MachineLoad([changes for changes, _ in found], [speeds for _, speeds in found])


def _bursts(dice: random.Random, node: Sequence[int], step_ns: int, lasts_ns: int) -> Iterator[tuple[int, _Slowed]]:
    """Another process runs on the node now and then, beside some of its ranks or all."""
    now = 0.0
    while (now := now + dice.expovariate(1 / (3 * step_ns))) < lasts_ns:
        until = now + min(step_ns, dice.paretovariate(1.3) * step_ns / 20)
        speed = dice.uniform(0.2, 0.8)
        for rank in dice.sample(node, dice.randint(1, len(node))):
            yield rank, (round(now), round(until), speed)


def _pauses(dice: random.Random, node: Sequence[int], step_ns: int, lasts_ns: int) -> Iterator[tuple[int, _Slowed]]:
    """A rank pauses: its garbage is collected, or its machine does something else."""
    for rank in node:
        now = 0.0
        while (now := now + dice.expovariate(1 / (3 * step_ns))) < lasts_ns:
            until = now + min(2 * step_ns, dice.paretovariate(1.2) * step_ns / 30)
            yield rank, (round(now), round(until), 0.0)
            now = until


def _cores(dice: random.Random, node: Sequence[int], step_ns: int, lasts_ns: int) -> Iterator[tuple[int, _Slowed]]:
    """A scheduler moves the ranks and another process, so that some share a core for a while."""
    now = 0
    while now < lasts_ns:
        until = now + round(dice.uniform(0.05, 0.6) * step_ns)
        cores = max(1, len(node) + 1 - dice.randint(0, len(node) // 2))
        placed = [dice.randrange(cores) for _ in range(len(node) + 1)]
        for rank, core in zip(node, placed, strict=False):
            yield rank, (now, until, 1 / placed.count(core))
        now = until


def _wander(dice: random.Random, node: Sequence[int], step_ns: int, lasts_ns: int) -> Iterator[tuple[int, _Slowed]]:
    """A first-order autoregression of each rank's speed, from half of a step to the next."""
    for rank in node:
        value, now = dice.gauss(0, 0.1), 0
        while now < lasts_ns:
            yield rank, (now, now + step_ns // 2, 1 / (1 + max(0.0, value)))
            now += step_ns // 2
            value = 0.8 * value + dice.gauss(0, 0.06)


_GENERATORS = {"bursts": _bursts, "pauses": _pauses, "cores": _cores, "wander": _wander}


def _speeds(slowed: Sequence[_Slowed]) -> tuple[list[int], list[float]]:
    """The times at which the speed changes, and the product of all that slow then."""
    events = sorted(
        [(begin, speed, True) for begin, _, speed in slowed] + [(end, speed, False) for _, end, speed in slowed]
    )
    changes: list[int] = []
    speeds: list[float] = []
    active: list[float] = []
    for at, speed, begins in events:
        if begins:
            active.append(speed)
        else:
            active.remove(speed)
        now = 1.0
        for each in active:
            now *= each
        if changes and changes[-1] == at:
            speeds[-1] = now
        else:
            changes.append(at)
            speeds.append(now)
    return changes, speeds
