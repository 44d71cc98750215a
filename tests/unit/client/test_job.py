"""A rank in its own process: its place in the job, valid signals, and the wait for aligned clocks."""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from timesyncd.bound import ClockStatus
from timesyncd.client import AlignmentError, AlignmentReason, Job, Plan, Signals
from timesyncd.client.job import RankPlacement, placement_from, why_not_aligned
from timesyncd.clocks import boot_id, time_namespace
from timesyncd.ipc.clock_segment import Epoch
from timesyncd.ipc.job_datagram import SOCKET_NAME, Datagram, decode, job_id
from timesyncd.ipc.job_segment import JobWriter, segment_path
from timesyncd.ipc.wire_types import CodedReason

ALIGNED = Signals(
    world_size=2,
    steps_complete=0,
    steps_incomplete=0,
    alignment_ns=900,
    alignment_growth_ppb=0,
    alignment_reason="node-a and node-b, by their grandmaster",
)

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "run-7",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
ONE_AGENT = TORCHRUN | {"GROUP_WORLD_SIZE": "1"}
TWO_AGENTS = TORCHRUN | {"GROUP_WORLD_SIZE": "2"}
LOOPBACK = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "127.0.0.1"}
SLURM = {"SLURM_JOB_ID": "815", "SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_RESTART_COUNT": "1"}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, RankPlacement(None, None, None, None)),
        (ONE_AGENT, RankPlacement("run-7", 3, 4, 2)),
        (TWO_AGENTS, RankPlacement("run-7", 3, 4, None)),
        (TORCHRUN, RankPlacement("run-7", 3, 4, None)),
        (SLURM, RankPlacement("815", 5, 8, 1)),
        (SLURM | {"SLURM_STEP_ID": "2"}, RankPlacement("815.2", 5, 8, 1)),
        (SLURM | {"SLURM_STEP_ID": "2", "MASTER_ADDR": "10.0.0.1"}, RankPlacement("815.2", 5, 8, 1)),
        ({"SLURM_STEP_ID": "2"}, RankPlacement(None, None, None, None)),
        (SLURM | ONE_AGENT, RankPlacement("run-7", 3, 4, 2)),
        (SLURM | TWO_AGENTS, RankPlacement("run-7", 3, 4, 1)),
        (ONE_AGENT | {"TORCHELASTIC_RUN_ID": "none"}, RankPlacement("10.0.0.1:29500", 3, 4, 2)),
        (ONE_AGENT | SLURM | {"TORCHELASTIC_RUN_ID": "none"}, RankPlacement("10.0.0.1:29500", 3, 4, 2)),
        (ONE_AGENT | LOOPBACK, RankPlacement(f"127.0.0.1:29500 on {socket.gethostname()}", 3, 4, 2)),
        ({"RANK": "first", "WORLD_SIZE": "-1"}, RankPlacement(None, None, None, None)),
    ],
)
def test_a_rank_finds_its_place_in_the_environment(environ: dict[str, str], place: RankPlacement) -> None:
    """
    torchrun's word before Slurm's; a job without a name of its own is called by its rendezvous address, and of Slurm's
    by job and step, since steps of one allocation may run at once. Every host has a loopback address. Several agents count restarts each for
    itself, so that their ranks would not be of one job by them.
    """
    assert placement_from(environ) == place


class Node:
    """The daemon's two ends for one job: the socket, and the segment that it writes."""

    def __init__(self, folder: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(folder / SOCKET_NAME))
        self.socket.settimeout(60)
        path = segment_path(folder, job_id(os.getuid(), "job", 0))
        path.parent.mkdir()
        self._writer = JobWriter(path, Epoch(boot_id(), time_namespace()))

    def receive(self) -> Datagram:
        return decode(self.socket.recv(65_536))

    def show(self, signals: Signals, plan: Plan | None = None) -> None:
        self._writer.write(time.clock_gettime_ns(time.CLOCK_BOOTTIME), signals, plan or Plan())


@pytest.fixture
def node(folder: Path) -> Iterator[Node]:
    running = Node(folder)
    yield running
    running.socket.close()


@pytest.fixture
def job(folder: Path) -> Iterator[Job]:
    made = Job("job", 0, 2, 0, runtime_dir=folder)
    yield made
    made.close()


def test_a_datagram_identifies_its_rank(folder: Path, node: Node) -> None:
    """Arguments take precedence over the environment; a name too long for a datagram is cut between two characters."""
    job = Job("ü" * 300, rank=1, world_size=2, attempt=3, node="here", runtime_dir=folder)
    with job.meter.sync(1):
        pass
    job.close()

    head = node.receive().header
    assert (head.job, head.rank, head.world_size, head.attempt, head.node) == ("ü" * 127, 1, 2, 3, "here")
    assert (head.status, head.gm_bound_ns, head.grandmaster_identity) == (ClockStatus.UNKNOWN, None, None)
    assert (head.joined_ns, head.own_overhead_ns >= 0) == (job.joined_ns, True)
    assert (job.signals(), job.plan().mode) == (None, "plain")


def test_a_rank_outside_its_job_raises_at_construction(folder: Path) -> None:
    """A rank outside its world raises ValueError at construction."""
    with pytest.raises(ValueError, match="rank = 2, world_size = 2"):
        Job("job", rank=2, world_size=2, runtime_dir=folder)


def test_signals_of_an_earlier_run_are_ignored(node: Node, job: Job) -> None:
    """Signals and plan are absent until the hub has received a mark of this process."""
    timed = Plan(version=1, mode="timed")
    node.show(ALIGNED, timed)
    elsewhere = (job.signals(), job.plan())
    node.show(replace(ALIGNED, joined_ns=(job.joined_ns - 1,)), timed)
    earlier = (job.signals(), job.plan())
    node.show(replace(ALIGNED, joined_ns=(job.joined_ns - 1, job.joined_ns)), timed)
    own = (job.signals(), job.plan())

    assert elsewhere == earlier == (None, Plan())
    assert own[0] is not None
    assert (own[0].alignment_ns, own[1]) == (900, timed)


def hub(node: Node, job: Job, *shown: Callable[[int], Signals]) -> threading.Thread:
    """Publishes one reply for each datagram. It uses a daemon thread, so that a failing test does not wait for it."""

    def answer() -> None:
        for signals_for in shown:
            node.show(signals_for(node.receive().header.joined_ns))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    return thread


def test_a_job_waits_until_its_clocks_agree(node: Node, job: Job) -> None:
    """A rank without marks announces itself; an earlier run's alignment, or one above the limit, is not enough."""
    answers = hub(
        node,
        job,
        lambda joined_ns: replace(ALIGNED, joined_ns=(joined_ns - 1,)),
        lambda joined_ns: replace(ALIGNED, joined_ns=(joined_ns,), alignment_ns=1_001),
        lambda joined_ns: replace(ALIGNED, joined_ns=(joined_ns,), alignment_ns=1_000),
    )

    signals = job.require_alignment(1_000, timeout_s=60)
    answers.join(60)

    assert signals.alignment_ns == 1_000
    assert job.meter.lost == 0


def test_clocks_that_do_not_agree_raise_one_line(node: Node, job: Job) -> None:
    """The line names the nodes, the reason, the alignment and the next command."""
    node.show(replace(ALIGNED, joined_ns=(job.joined_ns,)))

    with pytest.raises(AlignmentError) as raised:
        job.require_alignment(100, timeout_s=0)

    assert raised.value.reason_code is AlignmentReason.TOO_FAR_APART
    assert str(raised.value) == (
        "job 'job', after 0 s: the nodes' clocks may be 900 ns apart, more than 100 ns (node-a and node-b, by their grandmaster); "
        "`timesyncd preflight --job job` shows each node"
    )


NOT_JOINED = CodedReason(AlignmentReason.NOT_JOINED, "the hub has not received any mark of this process yet")


@pytest.mark.parametrize(
    ("signals", "why"),
    [
        (replace(ALIGNED, joined_ns=(6,)), NOT_JOINED),
        (ALIGNED, NOT_JOINED),
        (
            replace(ALIGNED, joined_ns=(7,), alignment_ns=None, alignment_reason="node-b: the PTP parent changed"),
            CodedReason(
                AlignmentReason.ALIGNMENT_UNKNOWN,
                "the alignment of the nodes' clocks is unknown: node-b: the PTP parent changed",
            ),
        ),
        (replace(ALIGNED, joined_ns=(6, 7)), None),
        (replace(ALIGNED, joined_ns=(7,), alignment_ns=0), None),
    ],
)
def test_only_signals_that_contain_this_process_show_alignment(
    signals: Signals, why: CodedReason[AlignmentReason] | None
) -> None:
    """Signals without the known processes do not count: nothing else protects a job from wrong clocks."""
    assert why_not_aligned(signals, 7, 1_000) == why


def test_without_a_daemon_or_a_hub_the_error_states_which_is_missing(folder: Path, job: Job) -> None:
    """With a daemon but no hub, it names the command that finds the cause."""
    with pytest.raises(
        AlignmentError, match=rf"no daemon receives marks at {folder}/job\.sock: start timesyncd, or set"
    ) as raised:
        job.require_alignment(100, timeout_s=0.01)
    assert raised.value.reason_code is AlignmentReason.NO_DAEMON
    node = Node(folder)
    try:
        with pytest.raises(
            AlignmentError, match="no signals from a hub for this process: `timesyncd doctor`"
        ) as raised:
            job.require_alignment(100, timeout_s=0)
        assert raised.value.reason_code is AlignmentReason.NO_SIGNALS
    finally:
        node.socket.close()


@pytest.mark.parametrize(("max_ns", "timeout_s"), [(-1, 1.0), (100, math.nan)])
def test_an_invalid_requirement_raises_at_the_call(job: Job, max_ns: int, timeout_s: float) -> None:
    """A negative limit and a NaN raise ValueError at once."""
    with pytest.raises(ValueError, match="give at least 0|is NaN"):
        job.require_alignment(max_ns, timeout_s)
