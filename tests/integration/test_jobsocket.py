"""The job link from end to end: ranks that are processes, a real socket, and the segments that they read."""

from __future__ import annotations

import array
import asyncio
import json
import logging
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from timesyncd.bound import ClockStatus
from timesyncd.client import AlignmentError, Job, Kind, Method, Signals
from timesyncd.clocks import NS_PER_S, SystemClocks
from timesyncd.daemon.job_socket import (
    CALLS_OF_A_BURST,
    MAX_JOBS_OF_A_USER,
    MAX_JOINS_LOGGED,
    MAX_REQUESTS,
    REMOVED_AFTER_NS,
    JobSocket,
    Peer,
)
from timesyncd.errors import ConfigError
from timesyncd.ipc import job_datagram
from timesyncd.ipc.job_datagram import SOCKET_NAME, encode_request, job_id
from timesyncd.ipc.job_segment import JOBS_NAME, Phase, Plan, segment_path
from timesyncd.messages.jobs import JobState, MarkBatch, PolicyRequest, RankState

pytestmark = pytest.mark.integration

#: Another user where we may become one, so that the kernel's word is seen to count.
SENDER = 65_534 if os.getuid() == 0 else os.getuid()

#: A rank that marks one step, prints a line, and lives until its standard input ends; then it prints what it reads.
RANK = """
import json, os, sys
from timesyncd.bound import ClockStatus
from timesyncd.client import AlignmentError, Job, Kind, Method, Signals
folder, uid = sys.argv[1], int(sys.argv[2])
if uid != os.getuid():
    os.setuid(uid)
job = Job("job", rank=1, world_size=2, attempt=3, node="pod", runtime_dir=folder)
with job.meter.sync(7, Kind.ALL_REDUCE, 64):
    pass
print("marked", flush=True)
sys.stdin.readline()
signals = job.signals()
print(json.dumps([signals and [signals.straggler_rank, signals.alignment_ns, signals.wait_p50_ns], job.plan().slack_ns]))
"""


class Node:
    """A job socket in a folder of its own, and what it delivered."""

    def __init__(self, folder: Path, incarnation: int = 5) -> None:
        self.folder = folder
        self.batches: list[MarkBatch] = []
        self.requests: list[PolicyRequest] = []
        self.socket = JobSocket(folder, "node-a", incarnation, self._take)
        self.socket.open()

    def _take(self, message: MarkBatch | PolicyRequest) -> None:
        if isinstance(message, PolicyRequest):
            self.requests.append(message)
        else:
            self.batches.append(message)

    async def delivered(self, count: int = 1) -> list[MarkBatch]:
        await until(lambda: len(self.batches) >= count)
        return self.batches

    def read(self) -> None:
        """What the event loop calls when something came."""
        assert self.socket._socket is not None
        self.socket._read(self.socket._socket)

    def is_read(self) -> bool:
        """Whether the event loop waits for what comes."""
        listening, loop = self.socket._socket, asyncio.get_running_loop()
        assert listening is not None
        waits = loop.remove_reader(listening)
        if waits:
            loop.add_reader(listening, self.socket._read, listening)
        return waits

    def send(self, data: bytes) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(data, str(self.folder / SOCKET_NAME))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path that everybody may enter."""
    path = Path(tempfile.mkdtemp(prefix="ts-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def node(folder: Path) -> AsyncIterator[Node]:
    running = Node(folder)
    yield running
    running.socket.close()


@pytest.fixture
def rank(node: Node) -> Iterator[subprocess.Popen[str]]:
    """A process of another user that has marked once."""
    command = [sys.executable, "-c", RANK, str(node.folder), str(SENDER)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "marked\n"
    yield process
    process.kill()
    process.communicate()


def job_state(identifier: str, published_ns: int | None = None, joined_ns: int | None = None) -> JobState:
    """`joined_ns`: of the process that the hub knows."""
    return JobState(
        node="hub",
        incarnation=1,
        sequence=1,
        job_id=identifier,
        job="job",
        attempt=3,
        uid=SENDER,
        world_size=2,
        published_realtime_ns=SystemClocks().realtime_ns() if published_ns is None else published_ns,
        step=7,
        steps_complete=1,
        steps_incomplete=0,
        sync_overhead=0.25,
        arrival_skew_ns=5_000,
        arrival_skew_p50_ns=5_000,
        arrival_skew_error_ns=100,
        last_rank=1,
        straggler_rank=1,
        verdict="straggler",
        alignment_ns=0,
        alignment_growth_ppb=0,
        alignment_reason="one clock",
        ranks=[
            RankState(
                rank=0,
                node="node-a",
                wait_p50_ns=4_000,
                wait_total_ns=4_000,
                last_share=0.0,
                lateness_p50_ns=0,
                marks_lost=0,
                clock_status="UNKNOWN",
                joined_ns=joined_ns,
            )
        ],
        plan=Plan(version=1, mode="timed", slack_ns=700_000, guard_ns=10_000),
    )


def read_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_a_mark_arrives_with_the_sender_that_the_kernel_names(node: Node, rank: subprocess.Popen[str]) -> None:
    """The batch carries the node's order, the sender's uid and pid, and the rank's own words."""
    (batch,) = await node.delivered()

    assert (batch.node, batch.incarnation, batch.sequence) == ("node-a", 5, 1)
    assert (batch.uid, batch.pid) == (SENDER, rank.pid)
    assert (batch.job, batch.attempt, batch.rank, batch.world_size, batch.lost) == ("job", 3, 1, 2, 0)
    assert (batch.status, batch.gm_bound_ns) == ("UNKNOWN", None)
    assert batch.own_overhead_ns > 0
    assert 0 < batch.joined_ns <= SystemClocks().boottime_ns()
    assert [(m.step, m.sync, m.kind, m.bytes) for m in batch.marks] == [(7, 0, Kind.ALL_REDUCE, 64)]


async def test_a_rank_reads_its_jobs_signals_and_plan(node: Node, rank: subprocess.Popen[str]) -> None:
    """The hub's state of the job comes back to its rank through shared memory, across users."""
    (batch,) = await node.delivered()
    node.socket.publish(job_state(job_id(SENDER, "job", 3), joined_ns=batch.joined_ns))

    output, _ = rank.communicate("\n")
    assert json.loads(output) == [[1, 0, [4_000, None]], 700_000]


async def test_every_signal_reaches_the_rank(node: Node) -> None:
    """All fields of a state that reach a rank do so under the same name, and no field is another one's."""
    job = Job("job", rank=0, world_size=2, runtime_dir=node.folder)
    job.meter.announce()
    (batch,) = await node.delivered()
    state = job_state(job_id(os.getuid(), "job", 0))
    expected = {
        field.name: number
        for number, field in enumerate(fields(Signals), 101)
        if field.name in JobState.model_fields
        and field.name not in ("world_size", "alignment_growth_ppb", "alignment_reason", "alignment_reason_code")
    } | {"trusted": True, "method": Method.CLOCK_BOUNDS}
    here = state.ranks[0].model_copy(update={"joined_ns": batch.joined_ns})
    elsewhere = here.model_copy(update={"rank": 1, "node": "node-b", "wait_p50_ns": 5, "joined_ns": 77})
    plan = replace(
        state.plan,
        phase=Phase(period_ns=10, shift_ns=4, hold_share_ppm=50_000),
        policy="bsp + fp16",
        policy_version=3,
        groups=((0, 1),),
    )
    node.socket.publish(state.model_copy(update={**expected, "ranks": [here, elsewhere], "plan": plan}))
    signals, read_plan = job.signals(), job.plan()
    job.close()

    assert signals is not None
    assert {name: getattr(signals, name) for name in expected} == expected
    assert (signals.alignment_growth_ppb, signals.alignment_reason) == (0, "one clock")
    assert (signals.wait_p50_ns, signals.joined_ns) == ((4_000, 5), (job.joined_ns,))
    assert read_plan == replace(plan, reason="")
    assert expected.keys() | {
        "world_size",
        "alignment_growth_ppb",
        "alignment_reason",
        "alignment_reason_code",
        "wait_p50_ns",
        "joined_ns",
        "age_ns",
    } == {field.name for field in fields(Signals)}


async def test_a_new_process_does_not_use_the_signals_of_the_former_one(node: Node) -> None:
    """The segment of a restarted job stays the same file: until the hub has received the new process's marks, it holds nothing for it."""
    identifier = job_id(os.getuid(), "job", 0)
    former = Job("job", rank=0, world_size=2, runtime_dir=node.folder)
    former.meter.announce()
    await node.delivered()
    rank = job_state(identifier).ranks[0]
    known = [rank.model_copy(update={"joined_ns": former.joined_ns})]
    node.socket.publish(job_state(identifier).model_copy(update={"ranks": known}))
    again = Job("job", rank=0, world_size=2, runtime_dir=node.folder)
    signals = [former.signals(), again.signals()]
    with pytest.raises(AlignmentError):
        again.require_alignment(10**9, timeout_s=0)
    known = [rank.model_copy(update={"joined_ns": again.joined_ns})]
    node.socket.publish(job_state(identifier).model_copy(update={"ranks": known}))
    agreed = again.require_alignment(0, timeout_s=60)
    former.close()
    again.close()

    assert [signals is None for signals in signals] == [False, True]
    assert agreed.one_clock


async def test_other_nodes_jobs_get_no_segment(node: Node) -> None:
    """Only a job with ranks here is shown here."""
    node.socket.publish(job_state(job_id(SENDER, "job", 3)))

    assert list((node.folder / "jobs").iterdir()) == []


async def test_a_segment_that_cannot_be_written_is_reported_and_costs_no_other(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody put a file in place of the folder of the segments: the daemon names the job, and receives marks as before."""
    job = Job("job", rank=0, world_size=2, runtime_dir=node.folder)
    job.meter.announce()
    await node.delivered()
    (node.folder / "jobs").rmdir()
    (node.folder / "jobs").write_text("")
    identifier = job_id(os.getuid(), "job", 0)
    node.socket.publish(job_state(identifier))
    job.meter.announce()

    assert len(await node.delivered(2)) == 2
    warned = [text for record in caplog.records if "cannot write" in (text := record.getMessage())]
    path = node.folder / "jobs"
    assert warned == [f"job {identifier}: cannot write its segment: [Errno 17] File exists: {str(path)!r}"]


async def test_an_old_retained_state_is_not_shown_as_news(node: Node) -> None:
    """A state's age counts from when the hub published it, not from when it came here."""
    job = Job("job", rank=0, world_size=2, runtime_dir=node.folder)
    with job.meter.sync(1):
        pass
    await node.delivered()
    identifier = job_id(os.getuid(), "job", 0)
    node.socket.publish(job_state(identifier, SystemClocks().realtime_ns() - 31 * NS_PER_S, job.joined_ns))
    old = job.signals()
    node.socket.publish(job_state(identifier, joined_ns=job.joined_ns))
    new = job.signals()
    job.close()

    assert old is None
    assert new is not None


async def test_places_are_open_to_every_user_whatever_the_umask(folder: Path) -> None:
    """Any user may send to the socket and read the segments; none but the daemon's may write them."""
    before = os.umask(0o077)
    try:
        node = Node(folder)
        job = Job("job", runtime_dir=folder)
        with job.meter.sync(1):
            pass
        await node.delivered()
        identifier = job_id(os.getuid(), "job", 0)
        node.socket.publish(job_state(identifier))
        job.close()
        node.socket.close()
    finally:
        os.umask(before)

    assert read_mode(folder / SOCKET_NAME) == 0o666
    assert read_mode(folder / "jobs") == 0o755
    assert read_mode(segment_path(folder, identifier)) == 0o644


async def test_a_removed_link_is_made_again_for_ranks_that_run(node: Node) -> None:
    """A rank goes on as before: what it marks after that arrives, and its segment is where it looks."""
    job = Job("job", rank=0, world_size=1, node="pod", runtime_dir=node.folder)
    job.meter.announce()
    await node.delivered(1)
    link = node.folder / SOCKET_NAME
    assert node.socket.restore() is None
    link.unlink()
    shutil.rmtree(node.folder / "jobs")

    assert node.socket.restore() == str(link)
    job.meter.announce()
    await node.delivered(2)
    node.socket.publish(job_state(job_id(os.getuid(), "job", 0)))
    assert segment_path(node.folder, job_id(os.getuid(), "job", 0)).exists()
    assert stat.S_IMODE(link.stat().st_mode) == 0o666
    job.close()


async def test_the_segment_goes_a_minute_after_the_last_process(node: Node, rank: subprocess.Popen[str]) -> None:
    """While a rank lives it stays, however long it is silent; after its end it stays for the keeping time."""
    await node.delivered()
    path = segment_path(node.folder, job_id(SENDER, "job", 3))
    node.socket.publish(job_state(path.name))
    hours_later = SystemClocks().boottime_ns() + 10_000 * NS_PER_S
    node.socket.tick(hours_later)
    alive = path.exists()
    rank.communicate("\n")
    node.socket.tick(hours_later + REMOVED_AFTER_NS - 1)
    kept = path.exists()
    node.socket.tick(hours_later + REMOVED_AFTER_NS)

    assert (alive, kept, path.exists()) == (True, True, False)


async def test_a_process_that_may_not_be_signalled_lives(
    node: Node, rank: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon is another user than the job: a refusal of the kernel means that the process is there."""

    def refuse(pid: int, number: int) -> None:
        raise PermissionError(pid, number)

    await node.delivered()
    path = segment_path(node.folder, job_id(SENDER, "job", 3))
    node.socket.publish(job_state(path.name))
    with monkeypatch.context() as patched:
        patched.setattr("timesyncd.daemon.job_socket.os.kill", refuse)
        node.socket.tick(SystemClocks().boottime_ns() + REMOVED_AFTER_NS)

    assert path.exists()


async def test_a_restarted_daemon_takes_the_segments_over(node: Node, rank: subprocess.Popen[str]) -> None:
    """A rank that has its segment open reads what the next daemon writes into it; the sequence starts again."""
    (batch,) = await node.delivered()
    path = segment_path(node.folder, job_id(SENDER, "job", 3))
    node.socket.publish(job_state(path.name, joined_ns=batch.joined_ns).model_copy(update={"straggler_rank": 0}))
    inode = path.stat().st_ino
    again = Node(node.folder, incarnation=6)
    again.socket.publish(job_state(path.name, joined_ns=batch.joined_ns))
    output, _ = rank.communicate("\n")
    again.socket.close()

    assert path.stat().st_ino == inode
    assert json.loads(output)[0][0] == 1


async def test_a_former_daemons_segment_without_ranks_goes(node: Node, rank: subprocess.Popen[str]) -> None:
    """A file that was left behind and has no marks is removed after the keeping time."""
    await node.delivered()
    path = segment_path(node.folder, job_id(SENDER, "job", 3))
    node.socket.publish(job_state(path.name))
    again = Node(node.folder, incarnation=6)
    again.socket.tick(SystemClocks().boottime_ns() + REMOVED_AFTER_NS)
    again.socket.close()

    assert not path.exists()


async def test_noise_is_counted_and_reported_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Anybody may send anything: no exception, no flood of the log, and marks still arrive."""
    for noise in (b"", b"noise", b"TSJL", bytes(40_000)):
        node.send(noise)
    await until(lambda: node.socket.malformed == 4)
    job = Job("job", runtime_dir=node.folder)
    with job.meter.sync(1):
        pass
    await node.delivered()
    job.close()

    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert f"process {os.getpid()} of user {os.getuid()}" in warnings[0]


async def test_processes_without_end_write_few_lines(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """A user can start processes as fast as the machine allows, each with one mark: the log has room for a node's ranks."""
    caplog.set_level(logging.INFO)
    header = job_datagram.Header("job", 0, 0, 1, "node", 1, 1, 0, ClockStatus.UNKNOWN, None, None, None, None, 0)
    datagram = job_datagram.encode_header(header, 0)
    for number in range(5 * MAX_JOINS_LOGGED):
        node.socket._process(datagram, Peer(2**22 + number, SENDER), False)
        if number % 500 == 0:
            node.socket.tick(SystemClocks().boottime_ns())  # forgets those that ended

    assert len(node.batches) == 5 * MAX_JOINS_LOGGED
    assert len([record for record in caplog.records if "rank 0 on" in record.getMessage()]) <= MAX_JOINS_LOGGED


async def test_a_link_in_place_of_the_jobs_folder_is_not_followed(folder: Path) -> None:
    """Its target may be any folder, whose mode would change and whose files would be removed a minute later."""
    (target := folder / "others").mkdir(mode=0o700)
    (target / "file").touch()
    (folder / JOBS_NAME).symlink_to(target)

    with pytest.raises(ConfigError, match=r"jobs is a link; remove it"):
        Node(folder)
    assert (read_mode(target), [each.name for each in target.iterdir()]) == (0o700, ["file"])


async def test_a_file_that_is_no_segment_stays(node: Node) -> None:
    """What an operator leaves in the folder is no segment of a former daemon."""
    (node.folder / JOBS_NAME / "notes.txt").touch()
    again = Node(node.folder, incarnation=6)
    again.socket.tick(SystemClocks().boottime_ns() + REMOVED_AFTER_NS)
    again.socket.close()

    assert (node.folder / JOBS_NAME / "notes.txt").exists()


async def test_one_read_takes_so_many_marks(node: Node) -> None:
    """Large datagrams are as much work as many: the event loop has its turn between them, and then come the others."""
    header = job_datagram.Header("job", 0, 0, 1, "node", 1, 1, 0, ClockStatus.UNKNOWN, None, None, None, None, 0)
    marks = bytes(job_datagram.MAX_MARKS * job_datagram.MARK_SIZE)
    for _ in range(6):
        node.send(job_datagram.encode_header(header, job_datagram.MAX_MARKS) + marks)
    node.read()
    at_once = len(node.batches)
    await node.delivered(6)

    assert at_once == 4


async def test_a_flood_leaves_the_event_loop_most_of_its_time(node: Node) -> None:
    """After more full reads in a row than any burst needs, the socket is not read for a while, and then again."""
    header = job_datagram.Header("job", 0, 0, 1, "node", 1, 1, 0, ClockStatus.UNKNOWN, None, None, None, None, 0)
    datagram = job_datagram.encode_header(header, job_datagram.MAX_MARKS) + bytes(
        job_datagram.MAX_MARKS * job_datagram.MARK_SIZE
    )
    node.send(datagram)
    listens = []
    for _ in range(CALLS_OF_A_BURST + 1):
        for _ in range(4):  # as many as a call reads, so that one is always left
            node.send(datagram)
        listens.append(node.is_read())
        node.read()
    listens.append(node.is_read())
    await node.delivered(4 * (CALLS_OF_A_BURST + 1) + 1)

    assert listens == [True] * (CALLS_OF_A_BURST + 1) + [False]


async def test_passed_file_descriptors_are_dropped(node: Node) -> None:
    """A sender cannot fill the daemon's table of open files."""
    before = len(os.listdir("/proc/self/fd"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]).tobytes())]
        sender.sendmsg([b"noise"], rights, 0, str(node.folder / SOCKET_NAME))
    await until(lambda: node.socket.malformed == 1)

    assert len(os.listdir("/proc/self/fd")) == before


async def test_one_user_cannot_crowd_out_the_others(node: Node) -> None:
    """A user's jobs are counted; those beyond the limit are refused and logged, and known jobs go on."""
    jobs = [Job(f"job-{number}", runtime_dir=node.folder) for number in range(MAX_JOBS_OF_A_USER + 1)]
    for count, job in enumerate(jobs, 1):
        with job.meter.sync(1):
            pass
        await until(lambda count=count: len(node.batches) + node.socket.rejected == count)  # type: ignore[misc]
    for job in jobs:
        job.close()

    assert (len(node.batches), node.socket.rejected) == (MAX_JOBS_OF_A_USER, 1)


ASK = """
import os, socket, sys
if int(sys.argv[2]) != os.getuid():
    os.setuid(int(sys.argv[2]))
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(bytes.fromhex(sys.argv[3]), sys.argv[1])
"""


def ask(node: Node, uid: int, policy: str = "bsp", job: str = "0123456789abcdef") -> None:
    """As a process of this user."""
    command = [sys.executable, "-c", ASK, str(node.folder / SOCKET_NAME), str(uid), encode_request(job, policy).hex()]
    subprocess.run(command, check=True)


async def test_a_request_arrives_with_the_sender_that_the_kernel_names(node: Node) -> None:
    """The hub knows the job's user; only the daemon knows which user asks. What is written otherwise means the same."""
    ask(node, SENDER, " local_sgd( h=8 )")
    await until(lambda: len(node.requests) == 1)

    [asked] = node.requests
    assert (asked.node, asked.incarnation, asked.sequence) == ("node-a", 5, 1)
    assert (asked.uid, asked.job_id, asked.policy) == (SENDER, "0123456789abcdef", "local_sgd(h=8)")
    assert node.batches == []


async def test_what_is_no_policy_goes_no_further(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """It is noise like any: counted, and the next good request counts."""
    node.send(encode_request("0" * 16, "no_such(x=1)"))
    await until(lambda: node.socket.malformed == 1)
    node.send(encode_request("0" * 16, "bsp"))
    await until(lambda: len(node.requests) == 1)

    assert "'no_such(x=1)' is unknown" in caplog.text


async def test_each_user_may_ask_once_between_two_ticks(node: Node) -> None:
    """A request goes to all hubs: one user's flood leaves the way open for the others."""
    for _ in range(3):
        node.send(encode_request("0" * 16, "bsp"))
    await until(lambda: node.socket.rejected == 2)
    node.socket.tick(0)
    node.send(encode_request("0" * 16, "asp"))
    await until(lambda: len(node.requests) == 2)

    assert [(asked.sequence, asked.policy) for asked in node.requests] == [(1, "bsp"), (2, "asp")]


async def test_many_users_together_have_an_end(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who owns many uids is many users."""
    uids = iter(range(MAX_REQUESTS + 10))
    monkeypatch.setattr("timesyncd.daemon.job_socket._peer", lambda _: Peer(1, next(uids)))
    for _ in range(MAX_REQUESTS + 10):
        node.send(encode_request("0" * 16, "bsp"))
        node.read()

    assert (len(node.requests), node.socket.rejected) == (MAX_REQUESTS, 10)


async def test_a_folder_that_cannot_be_used_is_a_mistake_of_the_configuration(folder: Path) -> None:
    """The one line names the key and the path."""
    too_long = folder / ("x" * 120)
    too_long.mkdir()

    with pytest.raises(ConfigError, match=r"^node\.runtime_dir = '.*x': .*job\.sock: .*too long"):
        Node(too_long)
