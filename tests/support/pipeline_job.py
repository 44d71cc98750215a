"""
A simulated job of dp x pp x tp ranks with a known truth: what each rank does is a list of instructions, which are run
until all are done. It shares no code with the replay that it tests.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from machine_load import MachineLoad

#: What each micro-batch takes on a stage without noise and causes, in ns, forward; backward takes twice as long.
FORWARD_NS = 4_000_000
TP_NS, P2P_NS, DP_NS = 60_000, 150_000, 1_500_000
OPTIMIZER_NS = 1_000_000
TP_PER_PASS = 2


@dataclass(frozen=True)
class SimulatedJob:
    """
    `slow`: by rank how many times longer it computes. `stage_factors`: the same by stage. `sequence_sigma`: the
    micro-batches' work is log-normal with this sigma, with the mean 1 over the job. `noise`: the relative deviation of
    each operation. `slow_links`: by the ranks of a data group how many times longer it transfers.
    """

    dp: int = 2
    pp: int = 4
    tp: int = 1
    micro_batches: int = 8
    steps: int = 6
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    seed: int = 0
    noise: float = 0.02
    slow: Mapping[int, float] = field(default_factory=dict)
    stage_factors: Mapping[int, float] = field(default_factory=dict)
    sequence_sigma: float = 0.0
    slow_links: Mapping[tuple[int, ...], float] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        return self.dp * self.pp * self.tp

    def rank(self, replica: int, stage: int, part: int) -> int:
        """As Megatron numbers ranks: tensor-parallel ones are neighbours, stages are furthest apart."""
        return (stage * self.dp + replica) * self.tp + part

    def places(self) -> Iterator[tuple[int, int, int, int]]:
        """(rank, replica, stage, part) of all ranks."""
        for stage in range(self.pp):
            for replica in range(self.dp):
                for part in range(self.tp):
                    yield self.rank(replica, stage, part), replica, stage, part

    def healthy(self) -> SimulatedJob:
        """The same job, with the same noise, without any cause."""
        return replace(self, slow={}, stage_factors={}, sequence_sigma=0.0, slow_links={})


@dataclass(frozen=True)
class Call:
    """A collective or a message as one rank made it. `group`: (the kind of group, its ranks)."""

    kind: str
    group: tuple[str, tuple[int, ...]]
    key: tuple[object, ...]
    begin_ns: int
    end_ns: int


@dataclass
class RankRun:
    """What one rank did, in true time: computing, calls, and the begin of each step."""

    busy: list[tuple[int, int]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    end_ns: int = 0


@dataclass(frozen=True)
class _Instruction:
    kind: str  # compute, collective, send, recv, step
    ns: int = 0
    group: tuple[str, tuple[int, ...]] = ("", ())
    key: tuple[object, ...] = ()
    name: str = ""


def run(job: SimulatedJob, load: MachineLoad | None = None) -> dict[int, RankRun]:
    """Runs the job. A send does not block its rank; a receive and a collective do. `load`: what slows its computing."""
    programs = {rank: list(_program(job, rank, *place)) for rank, *place in job.places()}
    runs = {rank: RankRun() for rank in programs}
    now = dict.fromkeys(programs, 0)
    at = dict.fromkeys(programs, 0)
    arrived: dict[tuple[object, ...], dict[int, int]] = {}
    moving = list(programs)
    while moving:
        again = set()
        for rank in moving:
            again |= _advance(rank, programs, runs, now, at, arrived, load)
        moving = sorted(again)
    assert all(at[rank] == len(programs[rank]) for rank in programs), "the simulated job is in a deadlock"
    for rank, each in runs.items():
        each.calls.sort(key=lambda call: (call.begin_ns, call.end_ns))
        each.end_ns = now[rank]
    return runs


def _advance(
    rank: int,
    programs: dict[int, list[_Instruction]],
    runs: dict[int, RankRun],
    now: dict[int, int],
    at: dict[int, int],
    arrived: dict[tuple[object, ...], dict[int, int]],
    load: MachineLoad | None,
) -> set[int]:
    """Runs one rank until it must wait for another; the ranks that may go on since."""
    woken: set[int] = set()
    while at[rank] < len(programs[rank]):
        step = programs[rank][at[rank]]
        if step.kind == "compute":
            end_ns = now[rank] + step.ns if load is None else load.end_ns(rank, now[rank], step.ns)
            if end_ns > now[rank]:
                runs[rank].busy.append((now[rank], end_ns))
            now[rank] = end_ns
        elif step.kind == "step":
            runs[rank].steps.append(now[rank])
        else:
            here = arrived.setdefault(step.key, {})
            here.setdefault(rank, now[rank])
            members = step.group[1]
            if step.kind == "send":
                woken.add(members[1])
            elif len(here) < len(members):
                return woken
            else:
                end_ns = max(here.values()) + step.ns
                _record(rank, step, here, end_ns, runs)
                now[rank] = end_ns
                woken |= set(members) - {rank}
        at[rank] += 1
    return woken


def _record(rank: int, step: _Instruction, here: dict[int, int], end_ns: int, runs: dict[int, RankRun]) -> None:
    runs[rank].calls.append(Call(step.name, step.group, step.key, here[rank], end_ns))
    if step.kind == "recv":
        sender = step.group[1][0]
        runs[sender].calls.append(Call("send", step.group, step.key, here[sender], end_ns))


def _program(job: SimulatedJob, rank: int, replica: int, stage: int, part: int) -> Iterator[_Instruction]:
    for step in range(job.steps):
        yield _Instruction("step")
        for is_forward, batch in _schedule(job, stage):
            yield from _pass(job, rank, (replica, stage, part), step, is_forward, batch)
        if job.dp > 1:
            members = tuple(job.rank(each, stage, part) for each in range(job.dp))
            ns = round(DP_NS * job.slow_links.get(members, 1.0) * _noise(job, "dp", step, stage, part))
            yield _Instruction("collective", ns, ("dp", members), ("dp", step, members), "all_reduce")
        yield _Instruction("compute", round(OPTIMIZER_NS * _noise(job, "optimizer", step, rank)))


def _schedule(job: SimulatedJob, stage: int) -> list[tuple[bool, int]]:
    """The (is forward, micro-batch) passes of a stage in order."""
    every = range(job.micro_batches)
    if job.schedule == "gpipe":
        return [(True, batch) for batch in every] + [(False, batch) for batch in every]
    warm_up = min(job.pp - 1 - stage, job.micro_batches)
    found = [(True, batch) for batch in range(warm_up)]
    for batch in range(job.micro_batches - warm_up):
        found += [(True, warm_up + batch), (False, batch)]
    return found + [(False, batch) for batch in range(job.micro_batches - warm_up, job.micro_batches)]


def _pass(
    job: SimulatedJob, rank: int, place: tuple[int, int, int], step: int, is_forward: bool, batch: int
) -> Iterator[_Instruction]:
    replica, stage, part = place
    before, after = (stage - 1, stage + 1) if is_forward else (stage + 1, stage - 1)
    name = "f" if is_forward else "b"
    if 0 <= before < job.pp:
        yield _message(job, "recv", (job.rank(replica, before, part), rank), name, step, batch)
    work_ns = FORWARD_NS * (1 if is_forward else 2) * _work(job, rank, replica, stage, step, batch)
    pieces = TP_PER_PASS if job.tp > 1 else 1
    for piece in range(pieces):
        yield _Instruction("compute", round(work_ns / pieces * _noise(job, "c", rank, step, name, batch, piece)))
        if job.tp > 1:
            members = tuple(job.rank(replica, stage, each) for each in range(job.tp))
            key = ("tp", members, step, name, batch, piece)
            yield _Instruction("collective", round(TP_NS * _noise(job, *key)), ("tp", members), key, "all_reduce")
    if 0 <= after < job.pp:
        yield _message(job, "send", (rank, job.rank(replica, after, part)), name, step, batch)


def _message(job: SimulatedJob, kind: str, ends: tuple[int, int], name: str, step: int, batch: int) -> _Instruction:
    key = ("p2p", ends, name, step, batch)
    return _Instruction(kind, round(P2P_NS * _noise(job, *key)), ("pp", ends), key, kind)


def _work(job: SimulatedJob, rank: int, replica: int, stage: int, step: int, batch: int) -> float:
    return job.slow.get(rank, 1.0) * job.stage_factors.get(stage, 1.0) * sequence(job, replica, step, batch)


def sequence(job: SimulatedJob, replica: int, step: int, batch: int) -> float:
    """The work of a micro-batch; the mean over all of the job is 1."""
    if not job.sequence_sigma:
        return 1.0
    return _sequences(job.seed, job.sequence_sigma, job.dp, job.steps, job.micro_batches)[replica, step, batch]


_CACHE: dict[tuple[int, float, int, int, int], dict[tuple[int, int, int], float]] = {}


def _sequences(seed: int, sigma: float, dp: int, steps: int, batches: int) -> dict[tuple[int, int, int], float]:
    key = (seed, sigma, dp, steps, batches)
    if key not in _CACHE:
        dice = random.Random(f"{seed} sequences")
        every = [(d, s, b) for d in range(dp) for s in range(steps) for b in range(batches)]
        drawn = {each: dice.lognormvariate(0.0, sigma) for each in every}
        mean = sum(drawn.values()) / len(drawn)
        _CACHE.clear()
        _CACHE[key] = {each: value / mean for each, value in drawn.items()}
    return _CACHE[key]


def _noise(job: SimulatedJob, *what: object) -> float:
    """The same for the same operation with and without a cause."""
    return max(0.2, random.Random(f"{job.seed} {what}").gauss(1.0, job.noise))


def step_ns(runs: Mapping[int, RankRun], job: SimulatedJob) -> float:
    return max(each.end_ns for each in runs.values()) / job.steps
