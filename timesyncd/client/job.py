"""
A training job as one of its ranks sees it: who it is, its marks, and the signals and the plan that come back.

Waiting until a job's clocks agree well enough: what is known -> why not yet, and a loop around that.
"""

from __future__ import annotations

import atexit
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from timesyncd.bound import Interval
from timesyncd.client.clock import Clock
from timesyncd.client.meter import Meter, Recorder
from timesyncd.client.paths import record_dir
from timesyncd.client.paths import runtime_dir as find_runtime_dir
from timesyncd.client.waiting import timeout_ns
from timesyncd.clocks import NS_PER_S, SystemClocks, boot_id, real_minus_boot_ns, time_namespace
from timesyncd.errors import AlignmentError
from timesyncd.ipc.clock_segment import Epoch
from timesyncd.ipc.job_datagram import MAX_NAME, SOCKET_NAME, Header, job_id
from timesyncd.ipc.job_segment import JobReader, Plan, Signals, segment_path
from timesyncd.units import duration_text

#: A rank that has not marked yet says this often that it is there: the daemon, or the hub, may have begun anew.
_ANNOUNCE_EVERY_NS = NS_PER_S
_LOOK_EVERY_S = 0.05


def wait_for_alignment(job: Job, max_ns: int, timeout_s: float) -> Signals:
    """Raises AlignmentError and ValueError as `Job.require_alignment` says."""
    announce_at_ns = time.monotonic_ns()
    give_up_ns = announce_at_ns + timeout_ns(timeout_s)
    taken = False
    while True:
        now_ns = time.monotonic_ns()
        if now_ns >= announce_at_ns:
            taken = job.meter.announce()
            announce_at_ns = now_ns + _ANNOUNCE_EVERY_NS
        signals = job.signals()
        if signals is not None and not why_not(signals, job.joined_ns, max_ns):
            return signals
        if now_ns >= give_up_ns:
            raise AlignmentError(f"job {job.name!r}, after {timeout_s:.4g} s: {_reason(job, signals, max_ns, taken)}")
        time.sleep(min(_LOOK_EVERY_S, (give_up_ns - now_ns) / NS_PER_S))


def why_not(signals: Signals, joined_ns: int, max_ns: int) -> str:
    """Why these signals are not the agreement that the process which joined at `joined_ns` waits for; empty: they are."""
    if joined_ns not in signals.joined_ns:
        return "the hub has not heard this process yet"
    if signals.alignment_ns is None:
        return (
            f"how far the nodes' clocks are apart is unknown: {signals.alignment_reason or 'the hub does not say why'}"
        )
    if signals.alignment_ns > max_ns:
        apart = f"may be {duration_text(signals.alignment_ns)} apart, more than {duration_text(max_ns)}"
        return f"the nodes' clocks {apart} ({signals.alignment_reason})"
    return ""


def _reason(job: Job, signals: Signals | None, max_ns: int, taken: bool) -> str:
    if not taken:
        path = job.runtime_dir / SOCKET_NAME
        return f"no daemon takes marks at {path}: start timesyncd there, or name its folder by TIMESYNCD_RUNTIME_DIR"
    if signals is None:
        return "the daemon has nothing from a hub about this process: `timesyncd doctor` says what lies between them"
    why = why_not(signals, job.joined_ns, max_ns)
    return f"{why}; `timesyncd preflight --job {job.name}` tells every node's part"


_LARGEST = 2**32 - 1


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """A rank's place in its job; None = the launcher does not say."""

    name: str | None
    rank: int | None
    world_size: int | None
    attempt: int | None


def placement_from(environ: Mapping[str, str]) -> RankPlacement:
    """
    What torchrun, else Slurm, put into the environment; a number that is none counts as absent.

    A job without a name of its own (torchrun's run id defaults to "none") is called by its rendezvous address (a loopback one: and
    this host's name, since every host has it), one of Slurm's by its job and step.
    """

    def number(*names: str) -> int | None:
        found = (environ.get(name, "") for name in names)
        return next((int(text) for text in found if text.isdecimal() and int(text) <= _LARGEST), None)

    # Each of torchrun's agents counts its own restarts, so with several of them the ranks of one job would not find each other.
    agents_attempt = ("TORCHELASTIC_RESTART_COUNT",) if environ.get("GROUP_WORLD_SIZE") == "1" else ()
    run_id = environ.get("TORCHELASTIC_RUN_ID", "")
    address = _rendezvous(environ)
    # One job of torchrun's may be started by several steps of Slurm's.
    names = (run_id if run_id != "none" else "", address if run_id else "", _slurm_name(environ), address)
    return RankPlacement(
        name=next(filter(None, names), None),
        rank=number("RANK", "SLURM_PROCID"),
        world_size=number("WORLD_SIZE", "SLURM_NTASKS"),
        attempt=number(*agents_attempt, "SLURM_RESTART_COUNT"),
    )


def _rendezvous(environ: Mapping[str, str]) -> str:
    """Empty: none."""
    host, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    is_loopback = host in ("localhost", "::1") or host.startswith("127.")
    return f"{host}:{port}" + (f" on {socket.gethostname()}" if is_loopback else "") if host else ""


def _slurm_name(environ: Mapping[str, str]) -> str:
    """Job and step, since the steps of one allocation may run at the same time; empty: none of Slurm's."""
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "")
    return f"{job}.{step}" if job and step else job


class Job:
    """
    One rank's end of the job link. Opens no connection, waits for nothing, and works the same without a daemon.

    What is not given comes from torchrun's or Slurm's environment, else: rank 0 of 1, attempt 0, a name of this process
    alone. Raises ValueError for a rank, world size or attempt that cannot be. Call `close()`, or leave it to the
    interpreter's end.
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
            raise ValueError(f"rank {self.rank} of {self.world_size}, attempt {self.attempt}: no such place in a job")
        self.node = _clipped(node or socket.gethostname())
        self.joined_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self.runtime_dir = folder = find_runtime_dir(runtime_dir)
        self.clock = Clock(folder)
        self._epoch = Epoch(boot_id(), time_namespace())
        identity = job_id(os.getuid(), self.name, self.attempt)
        self._reader = JobReader(segment_path(folder, identity), self._epoch)
        marks = record_dir(record)
        self.meter = Meter(folder / SOCKET_NAME, self._header, Recorder(marks, self.rank, identity) if marks else None)
        atexit.register(self.close)

    def signals(self) -> Signals | None:
        """
        The job's signals as of now; None: no daemon here, nothing from the hub within 30 s, or it has not heard this process yet,
        so that what it says is of a former run.
        """
        found = self._read()
        return None if found is None else found[0]

    def plan(self) -> Plan:
        """How the barrier is to be run; the plain plan where there are no signals."""
        found = self._read()
        return Plan() if found is None else found[1]

    def require_alignment(self, max_ns: int, timeout_s: float = 30.0) -> Signals:
        """
        Wait until the hub says that no two clocks of this job's nodes differ by more than `max_ns`. The one call that waits for
        timesyncd; every rank of the job has to make it, or to mark steps, since the hub judges all of them together.

        Raises AlignmentError when that is not so within `timeout_s`, in one line: which nodes, why, what to do; ValueError for a
        negative `max_ns` and for a time that is no number.
        """
        if max_ns < 0:
            raise ValueError(f"max_ns = {max_ns}: at least 0 is wanted")
        return wait_for_alignment(self, max_ns, timeout_s)

    def close(self) -> None:
        """Send the last marks. Reading signals still works afterwards."""
        atexit.unregister(self.close)
        self.meter.close()

    def _read(self) -> tuple[Signals, Plan] | None:
        found = self._reader.read()
        return found if found is not None and self.joined_ns in found[0].joined_ns else None

    def _header(self, lost: int, own_overhead_ns: int) -> Header:
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
            gm_bound_ns=half_width_ns(gm),
            utc_bound_ns=half_width_ns(self.clock.now()),
            utc_seconds_removed=None if known is None else known.utc_seconds_removed,
            grandmaster_identity=None if known is None else known.grandmaster_identity,
            lost=lost,
            own_overhead_ns=own_overhead_ns,
            joined_ns=self.joined_ns,
        )


def half_width_ns(interval: Interval) -> int | None:
    """The bound on a clock's error that an interval stands for, rounded up; None: unknown."""
    if interval.earliest is None or interval.latest is None:
        return None
    return (interval.latest - interval.earliest + 1) // 2


def _clipped(name: str) -> str:
    """At most MAX_NAME octets, so that it fits a datagram; whole characters."""
    return name.encode(errors="replace")[:MAX_NAME].decode(errors="ignore")


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)
