"""
The daemon's end of the job link: receives the ranks' marks as datagrams, publishes each job's signals in a segment.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import socket
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from timesyncd.clocks import NS_PER_S, SystemClocks, boot_id, time_namespace
from timesyncd.config import validation_text
from timesyncd.errors import ConfigError, Malformed
from timesyncd.ipc.clock_segment import Epoch
from timesyncd.ipc.job_datagram import SOCKET_NAME, Datagram, Header, decode, decode_request, is_request, job_id
from timesyncd.ipc.job_segment import JOBS_NAME, MAX_RANKS, JobWriter, Signals, segment_path
from timesyncd.ipc.seqlock import inode_of
from timesyncd.messages.jobs import JobState, MarkBatch, PolicyRequest

log = logging.getLogger(__name__)

#: A job's segment is removed this long after the end of its last process.
REMOVED_AFTER_NS = 60 * NS_PER_S

#: Every process on the node may send, so the memory for senders is bounded.
MAX_JOBS = 256
MAX_JOBS_OF_A_USER = 64
MAX_PIDS_OF_A_JOB = 1024
#: Ranks whose joining is logged in ten seconds.
MAX_JOINS_LOGGED = 200

#: Between two ticks a user has one policy request, and all users together so many: each is a message to all hubs.
MAX_REQUESTS = 64

#: Reading a request takes as long as reading so many marks.
_MARKS_A_REQUEST = 20

_WARN_EVERY_NS = 10 * NS_PER_S
_MAX_DATAGRAM = 32 * 1024

#: One call of the event loop reads about so much; a mark takes about 10 us.
_MAX_DATAGRAMS_A_CALL = 64
_MAX_MARKS_A_CALL = 2_000
#: After so many calls in a row that left some unread it is a flood: what the kernel queues is read in fewer. Then each call is
#: followed by a pause of so many times its length, so that a flood takes a fifth of the event loop.
CALLS_OF_A_BURST, _PAUSE_FACTOR = 10, 4.0

#: As `job_id` makes it: the name of a job's segment.
_JOB_ID = re.compile("[0-9a-f]{16}")

#: struct ucred: pid, uid, gid.
_CREDENTIALS = struct.Struct("iII")


@dataclass(frozen=True, slots=True)
class Peer:
    """The sender by the kernel's credentials. pid 0: a process outside this process namespace."""

    pid: int
    uid: int

    def __str__(self) -> str:
        return f"process {self.pid} of user {self.uid}"


@dataclass(slots=True)
class LocalJob:
    """
    A job with ranks on this node. `alive_ns` is CLOCK_BOOTTIME when one of its processes last existed. `uid` None: its
    segment is of an earlier daemon, and no rank has sent since.
    """

    alive_ns: int
    uid: int | None = None
    pids: set[int] = field(default_factory=set)
    writer: JobWriter | None = None


class JobSocket:
    """
    `deliver` is called with every batch and request, in the event loop; `sequence` counts batches, and requests, within
    this `incarnation`. `malformed` counts undecodable datagrams, `rejected` those above the limits of jobs and
    requests.
    """

    def __init__(
        self,
        runtime_dir: Path,
        node: str,
        incarnation: int,
        deliver: Callable[[MarkBatch | PolicyRequest], None],
    ) -> None:
        self.malformed = 0
        self.rejected = 0
        self._folder = runtime_dir
        self._node = node
        self._incarnation = incarnation
        self._deliver = deliver
        self._clocks = SystemClocks()
        self._epoch = Epoch(boot_id(), time_namespace())
        self._sequence = 0
        self._requests = 0
        self._requesters: set[int] = set()
        self._jobs: dict[str, LocalJob] = {}
        self._warned_ns: int | None = None
        self._joins = 0
        self._joins_since_ns = 0
        self._full_calls = 0
        self._socket: socket.socket | None = None
        self._inode: tuple[int, int] | None = None

    @property
    def job_ids(self) -> frozenset[str]:
        """The jobs with ranks on this node, and those whose segments are still here."""
        return frozenset(self._jobs)

    @property
    def delivered(self) -> int:
        """How many datagrams of ranks were delivered."""
        return self._sequence

    def open(self) -> None:
        """Listen, in the running event loop. Raises ConfigError when the runtime folder does not allow it."""
        path = self._folder / SOCKET_NAME
        try:
            self._jobs = self._earlier_jobs() | self._jobs
            listening = _bound_socket(path)
        except OSError as error:
            problem = f"the daemon cannot listen on {path}: {error.strerror or error}"
            allowed = "name a folder that the daemon may write to"
            raise ConfigError(f"node.runtime_dir = '{self._folder}': {problem}; {allowed}") from error
        self._stop_listening()
        self._socket, self._inode = listening, inode_of(path)
        asyncio.get_running_loop().add_reader(listening, self._read, listening)

    def restore(self) -> str | None:
        """Listen again where the socket was removed or replaced; returns its path. Raises ConfigError, and can be tried again."""
        path = self._folder / SOCKET_NAME
        if inode_of(path) == self._inode:
            return None
        self.open()
        return f"{path}"

    def close(self) -> None:
        """The segments remain, ageing, for the ranks; the next daemon takes them over."""
        self._stop_listening()
        for job in self._jobs.values():
            if job.writer is not None:
                job.writer.close()

    def _stop_listening(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()

    def publish(self, state: JobState) -> None:
        """Write a job's state to its segment; nothing if it has no ranks on this node."""
        job = self._jobs.get(state.job_id)
        if job is None:
            return
        try:
            if job.writer is not None and not job.writer.is_in_place:
                job.writer.close()
                job.writer = None
            if job.writer is None:
                self._segments_folder()
                job.writer = JobWriter(segment_path(self._folder, state.job_id), self._epoch)
            job.writer.write(self._as_of_ns(state), signals_of(state, self._node), state.plan)
        except (OSError, struct.error) as error:
            self._warn("job %s: cannot write its segment: %s", state.job_id, error)

    def tick(self, now_boottime_ns: int) -> None:
        """
        To be called every second or so: the segment of a job whose processes all ended is removed after
        REMOVED_AFTER_NS.
        """
        self._requesters.clear()
        for identifier, job in list(self._jobs.items()):
            job.pids = {pid for pid in job.pids if _is_alive(pid)}
            if job.pids:
                job.alive_ns = now_boottime_ns
            elif now_boottime_ns - job.alive_ns >= REMOVED_AFTER_NS:
                self._remove(identifier)

    def _earlier_jobs(self) -> dict[str, LocalJob]:
        """
        Segments of an earlier daemon keep their inode, so ranks that have them open continue to read. Another file is left
        as it is: a segment without ranks is removed later.
        """
        names = [path.name for path in self._segments_folder().iterdir()]
        now_ns = self._clocks.boottime_ns()
        return {name: LocalJob(now_ns) for name in names if _JOB_ID.fullmatch(name)}

    def _segments_folder(self) -> Path:
        """Raises OSError, also for a link: its target may be any folder."""
        folder = self._folder / JOBS_NAME
        folder.mkdir(mode=0o755, exist_ok=True)
        if folder.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, f"{folder} is a link; remove it")
        folder.chmod(0o755)
        return folder

    def _remove(self, identifier: str) -> None:
        job = self._jobs.pop(identifier)
        if job.writer is not None:
            job.writer.close()
        segment_path(self._folder, identifier).unlink(missing_ok=True)

    def _read(self, listening: socket.socket) -> None:
        """A few at once, so that a flood of datagrams, or of marks, leaves the event loop time for the clocks."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        self._full_calls = 0 if self._read_some(listening) else self._full_calls + 1
        if self._full_calls > CALLS_OF_A_BURST:
            loop.remove_reader(listening)
            loop.call_later((loop.time() - began_s) * _PAUSE_FACTOR, self._read_again, listening)

    def _read_again(self, listening: socket.socket) -> None:
        if listening is self._socket and listening.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listening, self._read, listening)

    def _read_some(self, listening: socket.socket) -> bool:
        """Whether none is left."""
        marks = 0
        for _ in range(_MAX_DATAGRAMS_A_CALL):
            if marks >= _MAX_MARKS_A_CALL:
                return False
            try:
                # Room for the credentials only: the kernel drops passed file descriptors.
                data, ancillary, flags, _ = listening.recvmsg(_MAX_DATAGRAM, socket.CMSG_SPACE(_CREDENTIALS.size))
            except BlockingIOError:
                return True
            marks += self._process(data, _peer(ancillary), bool(flags & socket.MSG_TRUNC))
        return False

    def _process(self, data: bytes, peer: Peer | None, truncated: bool) -> int:
        """Returns the number of marks in the datagram, or an equivalent amount of work."""
        try:
            if peer is None or truncated:
                raise Malformed(f"the datagram is longer than {_MAX_DATAGRAM} bytes, or has no credentials")
            if is_request(data):
                self._request_policy(*decode_request(data), peer)
                return _MARKS_A_REQUEST
            datagram = decode(data)
        except Malformed as error:
            self.malformed += 1
            self._warn("job link: malformed datagram from %s: %s (%d so far)", peer, error, self.malformed)
            return 0
        if self._register(datagram.header, peer):
            self._sequence += 1
            self._deliver(self._batch(datagram, peer))
        return len(datagram.marks)

    def _request_policy(self, job: str, policy: str, peer: Peer) -> None:
        """Deliver a user's policy request. The hub checks whose the job is. Raises Malformed."""
        try:
            request = PolicyRequest(
                node=self._node,
                incarnation=self._incarnation,
                sequence=self._requests + 1,
                uid=peer.uid,
                job_id=job,
                policy=policy,
            )
        except ValidationError as error:
            raise Malformed(f"request: {validation_text(error, with_value=False)}") from error
        if peer.uid in self._requesters or len(self._requesters) >= MAX_REQUESTS:
            self.rejected += 1
            return
        self._requesters.add(peer.uid)
        self._requests += 1
        self._deliver(request)

    def _register(self, header: Header, peer: Peer) -> bool:
        """Register the process as a rank of the job. False: there are too many jobs already."""
        identifier = job_id(peer.uid, header.job, header.attempt)
        job = self._jobs.get(identifier)
        if job is None or job.uid is None:
            if self._is_full(peer.uid):
                self.rejected += 1
                self._warn("job link: %s exceeds the limit of jobs on this node: job %r is rejected", peer, header.job)
                return False
            job = self._jobs[identifier] = LocalJob(0, peer.uid, writer=job.writer if job else None)
        job.alive_ns = self._clocks.boottime_ns()
        if peer.pid and peer.pid not in job.pids and len(job.pids) < MAX_PIDS_OF_A_JOB:
            job.pids.add(peer.pid)
            self._log_joined(header, peer)
        return True

    def _log_joined(self, header: Header, peer: Peer) -> None:
        """A line for each rank, but of so many in ten seconds alone: any user can start processes without end."""
        now_ns = self._clocks.boottime_ns()
        if now_ns - self._joins_since_ns >= _WARN_EVERY_NS:
            if self._joins > MAX_JOINS_LOGGED:
                log.info("job link: %d more ranks joined", self._joins - MAX_JOINS_LOGGED)
            self._joins_since_ns, self._joins = now_ns, 0
        self._joins += 1
        if self._joins <= MAX_JOINS_LOGGED:
            log.info(
                "job %r, attempt %d: rank %d on %r is %s", header.job, header.attempt, header.rank, header.node, peer
            )

    def _is_full(self, uid: int) -> bool:
        known = [job.uid for job in self._jobs.values() if job.uid is not None]
        return len(known) >= MAX_JOBS or known.count(uid) >= MAX_JOBS_OF_A_USER

    def _batch(self, datagram: Datagram, peer: Peer) -> MarkBatch:
        return MarkBatch.of(
            datagram.header,
            datagram.marks,
            node=self._node,
            incarnation=self._incarnation,
            sequence=self._sequence,
            uid=peer.uid,
            pid=peer.pid,
        )

    def _as_of_ns(self, state: JobState) -> int:
        """
        A retained copy may be old when it is received: its age by CLOCK_REALTIME counts, and can only make it older.
        """
        age_ns = self._clocks.realtime_ns() - state.published_realtime_ns
        return self._clocks.boottime_ns() - max(0, age_ns)

    def _warn(self, text: str, *arguments: object) -> None:
        """Every process may send anything, so at most one line in ten seconds is logged."""
        now_ns = self._clocks.boottime_ns()
        if self._warned_ns is None or now_ns - self._warned_ns >= _WARN_EVERY_NS:
            self._warned_ns = now_ns
            log.warning(text, *arguments)


def signals_of(state: JobState, node: str) -> Signals:
    """The part of a job's state that its ranks on this node read."""
    waits = {rank.rank: rank.wait_p50_ns for rank in state.ranks}
    return Signals(
        world_size=state.world_size,
        steps_complete=state.steps_complete,
        steps_incomplete=state.steps_incomplete,
        run=state.run,
        step=state.step,
        sync_overhead=state.sync_overhead,
        sync_overhead_step=state.sync_overhead_step,
        sync_overhead_epoch=state.sync_overhead_epoch,
        arrival_skew_ns=state.arrival_skew_ns,
        arrival_skew_p50_ns=state.arrival_skew_p50_ns,
        arrival_skew_p99_ns=state.arrival_skew_p99_ns,
        arrival_skew_error_ns=state.arrival_skew_error_ns,
        last_rank=state.last_rank,
        straggler_rank=state.straggler_rank,
        comm_compute=state.comm_compute,
        staleness_p50=state.staleness_p50,
        staleness_max=state.staleness_max,
        update_latency_p50_ns=state.update_latency_p50_ns,
        alignment_ns=state.alignment_ns,
        alignment_growth_ppb=state.alignment_growth_ppb,
        alignment_reason=state.alignment_reason,
        alignment_reason_code=state.alignment_reason_code,
        trusted=state.trusted,
        method=state.method,
        wait_p50_ns=tuple(waits.get(rank) for rank in range(min(state.world_size, MAX_RANKS))),
        joined_ns=tuple(rank.joined_ns for rank in state.ranks if rank.node == node and rank.joined_ns is not None),
    )


def _bound_socket(path: Path) -> socket.socket:
    """A socket newly bound to this path, writable for all users, that receives the senders' credentials."""
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        listening.bind(str(path))
        path.chmod(0o666)
    except OSError:
        listening.close()
        raise
    return listening


def _peer(ancillary: Iterable[tuple[int, int, bytes]]) -> Peer | None:
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) >= _CREDENTIALS.size:
            pid, uid, _ = _CREDENTIALS.unpack_from(data)
            return Peer(pid, uid)
    return None


def _is_alive(pid: int) -> bool:
    """By signal 0, which also works where /proc hides other users' processes."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
