"""Simulated ranks that synchronize in groups, as those of a mesh, and their recording."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from machine_load import MachineLoad

from timesyncd.ipc.group_marks import Communicator
from timesyncd.ipc.job_datagram import Kind
from timesyncd.jobs.arrivals import Arrival, StepMark
from timesyncd.jobs.group_recording import GroupMark, GroupRecording, GroupSync
from timesyncd.jobs.issued_calls import IssuedCallCounts
from timesyncd.jobs.recording import RankRecord, Recording

MS = 1_000_000
AT = 1_800_000_000_000_000_000

Work = Callable[[int, int], float]
"""What a rank computes before its n-th synchronization of a step, in ms."""

StepWork = Callable[[int, int, int], float]
"""The same, in each step."""


@dataclass
class Mesh:
    """Ranks that each have a clock with an offset, simulated: a collective begins when the last of its ranks has come."""

    world_size: int
    seed: int = 1
    load: MachineLoad | None = None
    now_ns: list[int] = field(default_factory=list)
    marks: dict[int, list[GroupMark]] = field(default_factory=dict)
    syncs: list[GroupSync] = field(default_factory=list)
    steps: dict[int, list[StepMark]] = field(default_factory=dict)
    numbers: dict[Communicator, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.now_ns = [0] * self.world_size
        for rank in range(self.world_size):
            self.marks[rank], self.steps[rank] = [], []

    def compute(self, rank: int, ms: float) -> None:
        work_ns = round(MS * ms * (1 + self.chance.gauss(0, 0.02)))
        now_ns = self.now_ns[rank]
        self.now_ns[rank] = now_ns + work_ns if self.load is None else self.load.end_ns(rank, now_ns, work_ns)

    def meet(self, step: int, communicator: Communicator, kind: int = Kind.ALL_REDUCE) -> None:
        arrived = {rank: self.now_ns[rank] for rank in communicator.ranks}
        end_ns = max(arrived.values()) + MS // 10
        self._put(step, communicator, {rank: (kind, at_ns, at_ns, end_ns) for rank, at_ns in arrived.items()})

    def send(self, step: int, communicator: Communicator) -> None:
        sender, receiver = communicator.ranks
        sent_ns = self.now_ns[sender]
        received_ns = max(self.now_ns[receiver], sent_ns + MS // 10)
        ends = {
            sender: (Kind.SEND, sent_ns, sent_ns, sent_ns + 1_000),
            receiver: (Kind.RECEIVE, self.now_ns[receiver], self.now_ns[receiver], received_ns),
        }
        self._put(step, communicator, ends)

    def receive(self, communicator: Communicator, sent_ns: int) -> tuple[int, int, int, int]:
        """The receiver waits for what was sent at that time. Returns its part for `sent`."""
        receiver = communicator.ranks[1]
        at_ns = self.now_ns[receiver]
        self.now_ns[receiver] = max(at_ns, sent_ns + MS // 10)
        return Kind.RECEIVE, at_ns, at_ns, self.now_ns[receiver]

    def sent(self, step: int, communicator: Communicator, sent_ns: int, received: tuple[int, int, int, int]) -> None:
        """The sender waits for what it gave to the transport at that time, and computed on since."""
        sender, receiver = communicator.ranks
        now_ns, waited_ns = self.now_ns[receiver], self.now_ns[sender]
        self._put(step, communicator, {sender: (Kind.SEND, sent_ns, waited_ns, waited_ns + 1_000), receiver: received})
        self.now_ns[receiver] = now_ns

    def _put(self, step: int, communicator: Communicator, ends: Mapping[int, tuple[int, int, int, int]]) -> None:
        """Of each rank: the kind, and when it arrived, only waited, and went on."""
        number = self.numbers[communicator] = self.numbers.get(communicator, -1) + 1
        arrivals = {}
        for rank, (kind, at_ns, begin_ns, end_ns) in ends.items():
            # Seconds apart, and no bound is known: no two clocks compare.
            offset_ns = AT + rank * 7_000 * MS
            arrivals[rank] = Arrival(
                f"clock {rank}", 0, offset_ns + at_ns, offset_ns + begin_ns, offset_ns + end_ns, None, 8
            )
            self.marks[rank].append(GroupMark(communicator, number, step, kind, arrivals[rank]))
            self.now_ns[rank] = end_ns
        first = communicator.ranks[0]
        self.syncs.append(GroupSync(communicator, number, step, ends[first][0], arrivals))

    def end_step(self, step: int) -> None:
        for rank, at_ns in enumerate(self.now_ns):
            offset_ns = AT + rank * 7_000 * MS
            begin_ns = self.steps[rank][-1].end_ns if self.steps[rank] else offset_ns
            self.steps[rank].append(StepMark(step, begin_ns, None, offset_ns + at_ns))

    def recording(self, calls: IssuedCallCounts | None = None) -> Recording:
        groups = GroupRecording(self.marks, self.syncs)
        ranks = {rank: RankRecord(f"node-{rank}") for rank in range(self.world_size)}
        return Recording("job", 0, self.world_size, ranks, [], self.steps, calls=calls, groups=groups)


def groups_of(dimension: str, *ranks: Sequence[int]) -> list[Communicator]:
    return [Communicator(f"{dimension} {number}", tuple(each), dimension) for number, each in enumerate(ranks)]


def two_by_two(work: Work, steps: int = 60) -> Mesh:
    """`two_by_two_by_step` of steps that are alike."""
    return two_by_two_by_step(lambda rank, number, step: work(rank, number), steps)


def two_by_two_by_step(work: StepWork, steps: int = 60, seed: int = 1, load: MachineLoad | None = None) -> Mesh:
    """DP x TP: two synchronizations in tensor parallel pairs, then one between data parallel ones."""
    mesh = Mesh(4, seed, load)
    tp, dp = groups_of("tp", (0, 1), (2, 3)), groups_of("dp", (0, 2), (1, 3))
    for step in range(steps):
        for number, groups in enumerate((tp, tp, dp)):
            for rank in range(4):
                mesh.compute(rank, work(rank, number, step))
            for group in groups:
                mesh.meet(step, group)
        mesh.end_step(step)
    return mesh


def pipelines(replicas: int, work: Work, steps: int = 60) -> Mesh:
    """`pipelines_by_step` of steps that are alike."""
    return pipelines_by_step(replicas, lambda rank, number, step: work(rank, number), steps)


def pipelines_by_step(
    replicas: int, work: StepWork, steps: int = 60, seed: int = 1, load: MachineLoad | None = None
) -> Mesh:
    """Stages of one rank each: stage s of replica r is rank 2 r + s. Forward, backward, then a reduction over the replicas of a stage."""
    mesh = Mesh(2 * replicas, seed, load)
    forward = [Communicator(f"pp {r}", (2 * r, 2 * r + 1), "pp", 0) for r in range(replicas)]
    backward = [Communicator(f"pp {r}", (2 * r + 1, 2 * r), "pp", 0) for r in range(replicas)]
    dp = groups_of("dp", *([2 * r + stage for r in range(replicas)] for stage in range(2)))
    for step in range(steps):
        for rank in range(0, 2 * replicas, 2):
            mesh.compute(rank, work(rank, 0, step))
        for channel in forward:
            mesh.send(step, channel)
        for rank in range(1, 2 * replicas, 2):
            mesh.compute(rank, work(rank, 0, step))
        for channel in backward:
            mesh.send(step, channel)
        for rank in range(2 * replicas):
            mesh.compute(rank, work(rank, 1, step))
        for group in dp if replicas > 1 else ():
            mesh.meet(step, group)
        mesh.end_step(step)
    return mesh


def gpipe(replicas: int, work: Callable[[int], float], batches: int = 4, steps: int = 40) -> Mesh:
    """
    Two stages that pass all micro-batches on before the first backward pass: `work` is what a rank's forward pass takes, its
    backward pass twice as much. A rank computes on after it sent, and waits for all that it sent at the end of the pass.
    """
    mesh = Mesh(2 * replicas)
    dp = groups_of("dp", *([2 * r + stage for r in range(replicas)] for stage in range(2)))
    for step in range(steps):
        for r in range(replicas):
            for ranks, factor in (((2 * r, 2 * r + 1), 1), ((2 * r + 1, 2 * r), 2)):
                channel = Communicator(f"pp {r}", ranks, "pp", 0)
                sent, received = [], []
                for _ in range(batches):
                    mesh.compute(ranks[0], factor * work(ranks[0]))
                    sent.append(mesh.now_ns[ranks[0]])
                for sent_ns in sent:
                    received.append(mesh.receive(channel, sent_ns))
                    mesh.compute(ranks[1], factor * work(ranks[1]))
                for sent_ns, part in zip(sent, received, strict=True):
                    mesh.sent(step, channel, sent_ns, part)
        for group in dp if replicas > 1 else ():
            mesh.meet(step, group)
        mesh.end_step(step)
    return mesh
