"""Each rank's lateness in each of a job's newest steps, as one compact message. Pure."""

from __future__ import annotations

import base64
import sys
from array import array

from timesyncd.jobs.arrivals import Comparison, Sync
from timesyncd.jobs.joining import JobRun
from timesyncd.jobs.window import StepRecord
from timesyncd.messages.series import LatenessMatrix

#: In place of an unknown lateness.
UNKNOWN = -(2**31)
_LARGEST = 2**31 - 1
NS_PER_MS = 1_000_000


def lateness_matrix(job: JobRun, most_steps: int, now_realtime_ns: int) -> LatenessMatrix:
    """The newest closed steps, at most `most_steps`, the oldest first. A step that is still open is left out."""
    still_open = {step for step, _ in job.pending}
    closed = [(step, record) for step, record in job.steps.records_from(0) if step not in still_open]
    records = closed[-most_steps:]
    ranks = sorted(job.ranks)
    compared = [_widest(record) for _, record in records]
    largest = max((_largest(each.comparison) for each in compared if each is not None and each.comparison), default=0)
    unit_ns = largest // _LARGEST + 1
    values = array("i")
    for sync in compared:
        late = {} if sync is None or sync.comparison is None else sync.comparison.lateness_ns
        values.extend([late[rank] // unit_ns if rank in late else UNKNOWN for rank in ranks])
    if sys.byteorder == "big":
        values.byteswap()
    begins_ns = [_first_arrival_ns(record) for _, record in records]
    newest_ns = next((ns for ns in reversed(begins_ns) if ns is not None), None)
    return LatenessMatrix(
        as_of_realtime_ns=now_realtime_ns,
        lag_ns=None if newest_ns is None else max(0, now_realtime_ns - newest_ns),
        job_id=job.id,
        job=job.name,
        ranks=ranks,
        nodes=[job.ranks[rank].newest.node for rank in ranks],
        steps=[step for step, _ in records],
        begins_ms=[None if ns is None else ns // NS_PER_MS for ns in begins_ns],
        error_ns=[None if sync is None or sync.comparison is None else sync.comparison.error_ns for sync in compared],
        unit_ns=unit_ns,
        lateness=base64.b64encode(values.tobytes()).decode(),
    )


def _widest(record: StepRecord) -> Sync | None:
    """The step's synchronization with the largest skew; None: none of them compares."""
    compared = [sync for sync in record.syncs.values() if sync.comparison is not None]
    return max(compared, key=lambda sync: sync.comparison.skew_ns if sync.comparison else 0, default=None)


def _largest(comparison: Comparison) -> int:
    return max(map(abs, comparison.lateness_ns.values()), default=0)


def _first_arrival_ns(record: StepRecord) -> int | None:
    arrivals = (each.arrival_ns for sync in record.syncs.values() for each in sync.arrivals.values())
    return min(arrivals, default=None)
