"""
A training job as one of its ranks uses it: its place in the job, its marks, and the signals and the plan that come back.

`Job.require_alignment` waits until the clocks of the job's nodes agree well enough.
"""

from __future__ import annotations

import atexit
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from timesyncd.bound import UNKNOWN_PAST_PPB, Interval
from timesyncd.client.clock import Clock, find_runtime_dir
from timesyncd.client.group_meter import GroupMeter
from timesyncd.client.meter import Meter
from timesyncd.client.recorder import Recorder, recording_name
from timesyncd.client.waiting import timeout_ns
from timesyncd.clocks import NS_PER_S, SystemClocks, boot_id, real_minus_boot_ns, time_namespace
from timesyncd.errors import AlignmentError
from timesyncd.ipc.clock_segment import Epoch
from timesyncd.ipc.group_marks import GROUP_SUFFIX
from timesyncd.ipc.job_datagram import MAX_NAME, SOCKET_NAME, Header, job_id
from timesyncd.ipc.job_segment import JobReader, Plan, Signals, segment_path
from timesyncd.ipc.network_record import NETWORK_SUFFIX
from timesyncd.ipc.wire_types import Code, CodedReason
from timesyncd.units import duration_text

if TYPE_CHECKING:
    from timesyncd.client.network import NetworkRecorder

#: A rank that waits announces itself this often: the daemon or the hub may have restarted.
_ANNOUNCE_INTERVAL_NS = NS_PER_S
_POLL_INTERVAL_S = 0.05


class AlignmentReason(Code):
    """Why the clocks of a job's nodes are not known to agree."""

    NO_DAEMON = "no_daemon"
    NO_SIGNALS = "no_signals"
    NOT_JOINED = "not_joined"
    ALIGNMENT_UNKNOWN = "alignment_unknown"
    TOO_FAR_APART = "too_far_apart"


def wait_for_alignment(job: Job, max_ns: int, timeout_s: float) -> Signals:
    """Raises AlignmentError and ValueError as `Job.require_alignment` does."""
    announce_at_ns = time.monotonic_ns()
    deadline_ns = announce_at_ns + timeout_ns(timeout_s)
    is_received = False
    while True:
        now_ns = time.monotonic_ns()
        if now_ns >= announce_at_ns:
            is_received = job.meter.announce()
            announce_at_ns = now_ns + _ANNOUNCE_INTERVAL_NS
        signals = job.signals()
        if signals is not None and why_not_aligned(signals, job.joined_ns, max_ns) is None:
            return signals
        if now_ns >= deadline_ns:
            why = _why_not(job, signals, max_ns, is_received)
            raise AlignmentError(f"job {job.name!r}, after {timeout_s:.4g} s: {why.text}", why.code)
        time.sleep(min(_POLL_INTERVAL_S, (deadline_ns - now_ns) / NS_PER_S))


def why_not_aligned(signals: Signals, joined_ns: int, max_ns: int) -> CodedReason[AlignmentReason] | None:
    """Why these signals do not show an alignment within `max_ns` to the process that joined at `joined_ns`; None: they do."""
    if joined_ns not in signals.joined_ns:
        return CodedReason(AlignmentReason.NOT_JOINED, "the hub has not received any mark of this process yet")
    if signals.alignment_ns is None:
        why = signals.alignment_reason or "the hub gives no reason"
        return CodedReason(AlignmentReason.ALIGNMENT_UNKNOWN, f"the alignment of the nodes' clocks is unknown: {why}")
    if signals.alignment_ns > max_ns:
        apart = f"may be {duration_text(signals.alignment_ns)} apart, more than {duration_text(max_ns)}"
        return CodedReason(AlignmentReason.TOO_FAR_APART, f"the nodes' clocks {apart} ({signals.alignment_reason})")
    return None


def _why_not(job: Job, signals: Signals | None, max_ns: int, is_received: bool) -> CodedReason[AlignmentReason]:
    if not is_received:
        path = job.runtime_dir / SOCKET_NAME
        text = f"no daemon receives marks at {path}: start timesyncd, or set TIMESYNCD_RUNTIME_DIR to its folder"
        return CodedReason(AlignmentReason.NO_DAEMON, text)
    if signals is None:
        text = "the daemon has no signals from a hub for this process: `timesyncd doctor` shows the cause"
        return CodedReason(AlignmentReason.NO_SIGNALS, text)
    why = why_not_aligned(signals, job.joined_ns, max_ns)
    assert why is not None, "the caller returned aligned signals"
    return CodedReason(why.code, f"{why.text}; `timesyncd preflight --job {job.name}` shows each node")


_LARGEST = 2**32 - 1


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """A rank's place in its job, as the launcher gives it; None: the launcher does not."""

    name: str | None
    rank: int | None
    world_size: int | None
    attempt: int | None


def placement_from(environ: Mapping[str, str]) -> RankPlacement:
    """
    The place that torchrun, else Slurm, put into the environment. A value that is not a number counts as absent.

    A torchrun job without a name of its own (the run id defaults to "none") is named by its rendezvous address; a loopback address is
    the same on every host, so the host name is added. A Slurm job is named by its job and step.
    """

    def number(*names: str) -> int | None:
        found = (environ.get(name, "") for name in names)
        return next((int(text) for text in found if text.isdecimal() and int(text) <= _LARGEST), None)

    # Each torchrun agent counts its own restarts, so with several agents the ranks of one job would differ in it.
    agents_attempt = ("TORCHELASTIC_RESTART_COUNT",) if environ.get("GROUP_WORLD_SIZE") == "1" else ()
    run_id = environ.get("TORCHELASTIC_RUN_ID", "")
    address = _rendezvous(environ)
    # Several Slurm steps may start one torchrun job.
    names = (run_id if run_id != "none" else "", address if run_id else "", _slurm_name(environ), address)
    return RankPlacement(
        name=next(filter(None, names), None),
        rank=number("RANK", "SLURM_PROCID"),
        world_size=number("WORLD_SIZE", "SLURM_NTASKS"),
        attempt=number(*agents_attempt, "SLURM_RESTART_COUNT"),
    )


def _rendezvous(environ: Mapping[str, str]) -> str:
    """Empty: there is none."""
    host, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    is_loopback = host in ("localhost", "::1") or host.startswith("127.")
    return f"{host}:{port}" + (f" on {socket.gethostname()}" if is_loopback else "") if host else ""


def _slurm_name(environ: Mapping[str, str]) -> str:
    """Job and step, since the steps of one allocation may run at the same time; empty: not a Slurm job."""
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "")
    return f"{job}.{step}" if job and step else job


class Job:
    """
    One rank's end of the job link. It opens no connection, never waits, and works the same without a daemon.

    What is not given comes from torchrun's or Slurm's environment, else it is rank 0 of 1, attempt 0, and a name of this process alone.
    Raises ValueError for an invalid rank, world size or attempt. Call `close()`; else it runs at the interpreter's exit.
    """

    def __init__(
        self,
        name: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        attempt: int | None = None,
        node: str | None = None,
        runtime_dir: Path | str | None = None,
        record: Path | str | None = None,
    ) -> None:
        found = placement_from(os.environ)
        self.name = _clipped(name or found.name or f"process-{os.getpid()}")
        self.rank = _first(rank, found.rank, 0)
        self.world_size = _first(world_size, found.world_size, 1)
        self.attempt = _first(attempt, found.attempt, 0)
        if not (0 <= self.rank < self.world_size <= _LARGEST and 0 <= self.attempt <= _LARGEST):
            raise ValueError(
                f"rank = {self.rank}, world_size = {self.world_size}, attempt = {self.attempt}: "
                f"give 0 <= rank < world_size, and numbers of at most {_LARGEST}"
            )
        self.node = _clipped(node or socket.gethostname())
        self.joined_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self.runtime_dir = folder = find_runtime_dir(runtime_dir)
        self.clock = Clock(folder)
        self._epoch = Epoch(boot_id(), time_namespace())
        identity = job_id(os.getuid(), self.name, self.attempt)
        self._reader = JobReader(segment_path(folder, identity), self._epoch)
        self._stamp_error_ns = self._group_stamp_error_ns = 0
        self._id = identity
        self._folder = marks = record_dir(record)
        self._group_meter: GroupMeter | None = None
        self._network = None if marks is None else _network_recorder(marks, self.rank, identity)
        self.meter = Meter(folder / SOCKET_NAME, self._header, Recorder(marks, self.rank, identity) if marks else None)
        self.meter.each_second = None if self._network is None else self._network.read_if_due
        atexit.register(self.close)

    def signals(self) -> Signals | None:
        """
        The job's signals as of now.

        None: there is no daemon here, nothing came from the hub within 30 s, or the hub has not received a mark of this process yet, so
        that its signals belong to an earlier run.
        """
        found = self._read()
        return None if found is None else found[0]

    def plan(self) -> Plan:
        """How the barrier runs; the plain plan while there are no signals."""
        found = self._read()
        return Plan() if found is None else found[1]

    def require_alignment(self, max_ns: int, timeout_s: float = 30.0) -> Signals:
        """
        Wait until the hub reports that no two clocks of this job's nodes differ by more than `max_ns`.

        This is the one call that waits for timesyncd. Every rank of the job makes it, or marks steps, since the hub needs all of them.
        Raises AlignmentError if that is not so within `timeout_s`; its text names the nodes, the reason and what to do, and its
        `reason_code` is an AlignmentReason. Raises ValueError for a negative `max_ns` or a NaN.
        """
        if max_ns < 0:
            raise ValueError(f"max_ns = {max_ns}: give at least 0")
        return wait_for_alignment(self, max_ns, timeout_s)

    def open_group_meter(self) -> GroupMeter | None:
        """What records the marks of groups of ranks, the same at each call; None: nothing is recorded."""
        if self._group_meter is None and self._folder is not None:
            recorder = Recorder(self._folder, self.rank, self._id, GROUP_SUFFIX)
            self._group_meter = GroupMeter(self._group_header, recorder)
        return self._group_meter

    def record_network(self) -> None:
        """Record the network's counters now, if anything is recorded: before the process closes its connections."""
        if self._network is not None:
            self._network.read()

    def close(self) -> None:
        """Send the last marks. Signals can still be read afterwards."""
        atexit.unregister(self.close)
        self.record_network()
        self.meter.close()
        if self._group_meter is not None:
            self._group_meter.close()

    def add_stamp_error(self, error_ns: int) -> None:
        """
        The marks from here on may be off by so much more than this rank's clock, because a device stamped them: the bounds in the next
        datagram are wider by it.
        """
        self._stamp_error_ns = max(self._stamp_error_ns, error_ns)
        self._group_stamp_error_ns = max(self._group_stamp_error_ns, error_ns)

    def _read(self) -> tuple[Signals, Plan] | None:
        found = self._reader.read()
        return found if found is not None and self.joined_ns in found[0].joined_ns else None

    def _header(self, lost: int, own_overhead_ns: int) -> Header:
        stamp_error_ns, self._stamp_error_ns = self._stamp_error_ns, 0
        return self._header_with(lost, own_overhead_ns, stamp_error_ns)

    def _group_header(self, lost: int) -> Header:
        stamp_error_ns, self._group_stamp_error_ns = self._group_stamp_error_ns, 0
        return self._header_with(lost, self.meter.own_overhead_ns, stamp_error_ns)

    def _header_with(self, lost: int, own_overhead_ns: int, stamp_error_ns: int) -> Header:
        gm, known = self.clock.gm_now(), self.clock.snapshot()
        return Header(
            job=self.name,
            attempt=self.attempt,
            rank=self.rank,
            world_size=self.world_size,
            node=self.node,
            boot_id=self._epoch.boot_id,
            time_namespace=self._epoch.time_namespace,
            real_minus_boot_ns=real_minus_boot_ns(SystemClocks()),
            status=gm.status,
            gm_bound_ns=_widened(half_width_ns(gm), stamp_error_ns),
            utc_bound_ns=_widened(half_width_ns(self.clock.now()), stamp_error_ns),
            utc_seconds_removed=None if known is None else known.utc_seconds_removed,
            grandmaster_identity=None if known is None else known.grandmaster_identity,
            lost=lost,
            own_overhead_ns=own_overhead_ns,
            joined_ns=self.joined_ns,
            past_growth_ppb=UNKNOWN_PAST_PPB if known is None else max(known.past_growth_ppb, known.gm_hard.growth_ppb),
        )


def _network_recorder(folder: Path, rank: int, identity: str) -> NetworkRecorder:
    """Imported only where a rank is recorded: others need none of it."""
    from timesyncd.client.network import NetworkRecorder

    return NetworkRecorder(folder / f"{recording_name(rank, identity)}{NETWORK_SUFFIX}")


def half_width_ns(interval: Interval) -> int | None:
    """Half of the interval's width, rounded up: the bound on the clock's error; None: unknown."""
    if interval.earliest is None or interval.latest is None:
        return None
    return (interval.latest - interval.earliest + 1) // 2


def _widened(bound_ns: int | None, by_ns: int) -> int | None:
    return None if bound_ns is None else bound_ns + by_ns


def _clipped(name: str) -> str:
    """At most MAX_NAME bytes, so that it fits a datagram; whole characters."""
    return name.encode(errors="replace")[:MAX_NAME].decode(errors="ignore")


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def record_dir(argument: Path | str | None = None) -> Path | None:
    """The argument, else TIMESYNCD_RECORD, else None: the marks are not recorded."""
    folder = argument or os.environ.get("TIMESYNCD_RECORD")
    return Path(folder) if folder else None
