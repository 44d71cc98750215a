"""The lateness of all ranks in the newest steps, in one compact message."""

from __future__ import annotations

import base64
from array import array

import pytest

from timesyncd.ipc.job_datagram import Kind, Mark
from timesyncd.jobs.joining import JobRun, Jobs
from timesyncd.jobs.lateness_matrix import UNKNOWN, lateness_matrix
from timesyncd.messages.jobs import MarkBatch
from timesyncd.messages.series import LatenessMatrix

AT_NS = 1_700_000_000_000_000_000
LATE_NS = 5_000_000


def batch(rank: int, steps: range, late_ns: int = LATE_NS, gm_bound_ns: int | None = 5_000) -> MarkBatch:
    """Of each step one collective, at which each rank but the first is late."""
    marks = [
        Mark(kind=int(Kind.ALL_REDUCE), step=step, sync=0, arrival_ns=at_ns, begin_ns=at_ns,
             end_ns=AT_NS + step * 50_000_000 + 3 * late_ns, bytes=8)
        for step in steps
        for at_ns in [AT_NS + step * 50_000_000 + rank * late_ns]
    ]  # fmt: skip
    return MarkBatch(
        node=f"node-{rank}", incarnation=1, sequence=1, uid=0, pid=100 + rank, job="train", attempt=0, rank=rank, world_size=2,
        boot_id=f"{rank:032x}", time_namespace=1, real_minus_boot_ns=AT_NS - 10**12, gm_bound_ns=gm_bound_ns, utc_bound_ns=None,
        status="SYNCHRONIZED", grandmaster_identity="gm", utc_seconds_removed=37, lost=0, marks=marks,
    )  # fmt: skip


def job_of(*batches: MarkBatch) -> JobRun:
    jobs = Jobs(window_steps=1_000)
    for each in batches:
        jobs.accept(each, 10**9)
    jobs.advance(10**9)
    (found,) = jobs
    return found


def rows(matrix: LatenessMatrix) -> list[list[int]]:
    """The matrix as a reader decodes it."""
    values = array("i", base64.b64decode(matrix.lateness))
    count = len(matrix.ranks)
    return [list(values[at : at + count]) for at in range(0, len(values), count)]


def test_each_closed_step_has_a_row() -> None:
    """A step that waits for a rank is left out; the oldest step comes first."""
    matrix = lateness_matrix(job_of(batch(0, range(21)), batch(1, range(20))), 500, AT_NS + 10**10)

    assert (matrix.steps, matrix.ranks, matrix.nodes) == (list(range(20)), [0, 1], ["node-0", "node-1"])
    assert rows(matrix) == [[0, LATE_NS]] * 20
    assert all(error_ns is not None and error_ns >= 10_000 for error_ns in matrix.error_ns)
    assert matrix.begins_ms[1] == (AT_NS + 50_000_000) // 10**6
    assert matrix.lag_ns == 10**10 - 19 * 50_000_000


def test_the_newest_steps_are_kept() -> None:
    """A limit drops the oldest."""
    assert lateness_matrix(job_of(batch(0, range(20)), batch(1, range(20))), 3, AT_NS).steps == [17, 18, 19]


def test_clocks_that_do_not_compare_give_no_lateness() -> None:
    """Unknown is unknown, and never 0."""
    matrix = lateness_matrix(job_of(batch(0, range(2)), batch(1, range(2), gm_bound_ns=None)), 500, AT_NS)

    assert rows(matrix) == [[UNKNOWN, UNKNOWN]] * 2
    assert matrix.error_ns == [None, None]


@pytest.mark.parametrize("late_ns", [2**31 - 1, 2**31, 7 * 10**9])
def test_a_lateness_beyond_32_bits_has_a_larger_unit(late_ns: int) -> None:
    """A rank that is seconds late is still shown so."""
    matrix = lateness_matrix(job_of(batch(0, range(1), late_ns), batch(1, range(1), late_ns)), 500, AT_NS)
    (late,) = rows(matrix)

    assert abs(late[1] * matrix.unit_ns - late_ns) < matrix.unit_ns
