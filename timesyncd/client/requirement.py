"""Waiting until a job's clocks agree well enough: what is known -> why not yet, and a loop around that."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from timesyncd.client.waiting import timeout_ns
from timesyncd.clocks import NS_PER_S
from timesyncd.errors import AlignmentError
from timesyncd.ipc.job_datagram import SOCKET_NAME, Signals
from timesyncd.units import duration_text

if TYPE_CHECKING:
    from timesyncd.client.job import Job

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
