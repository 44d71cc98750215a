"""Logs of NCCL's Inspector: verbose ones become ranks' traces, others state what they lack, broken ones name the line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pipeline_job import SimulatedJob, run
from pipeline_traces import inspector_log

from timesyncd.errors import TraceError
from timesyncd.jobs.step_causes import CauseKind
from timesyncd.jobs.trace_joining import join
from timesyncd.jobs.what_if import WhatIf, analyse
from timesyncd.traces.nccl_inspector import InspectedCall, inspected_ranks, read_inspector_log
from timesyncd.traces.operations import RankTrace, UnusableTrace

JOB = SimulatedJob(dp=8, pp=1, tp=1, slow={5: 1.5}, steps=8)


def logs(job: SimulatedJob, *, verbose: bool = True) -> list[InspectedCall]:
    runs = run(job)
    return [
        call
        for rank in range(job.world_size)
        for call in read_inspector_log(inspector_log(job, runs, rank, verbose=verbose).encode(), f"{rank}.log")
    ]


def test_a_slow_rank_is_named_from_collectives_alone() -> None:
    """The kernels' times are enough in data parallelism."""
    traces = [each for each in inspected_ranks(logs(JOB), "logs") if isinstance(each, RankTrace)]

    found = analyse(join(traces).graph)

    assert isinstance(found, WhatIf)
    assert [(cause.kind, cause.rank) for cause in found.causes] == [(CauseKind.RANK, 5)]


def test_a_log_without_times_states_the_variable_to_set() -> None:
    """The durations alone do not show what happened between them."""
    found = inspected_ranks(logs(JOB, verbose=False), "logs")

    assert all(isinstance(each, UnusableTrace) and "NCCL_INSPECTOR_DUMP_VERBOSE=1" in each.reason for each in found)


def test_processes_without_a_common_communicator_have_no_rank() -> None:
    """The rank in a communicator of some ranks is no rank in the job."""
    job = SimulatedJob(dp=2, pp=1, tp=4)

    with pytest.raises(TraceError, match="no communicator holds all processes"):
        inspected_ranks(logs(job), "logs")


GOOD = json.loads(inspector_log(JOB, run(JOB), 0).splitlines()[0])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"header": {}}', "line 1: the object has no 'metadata'"),
        ("[1]", "line 1: the object has no 'header'"),
        (json.dumps(GOOD) + "\n" + json.dumps(GOOD | {"coll_perf": {"coll": "Dance"}}), "line 2: coll is 'Dance'"),
        (json.dumps(GOOD | {"header": {"rank": -1}}), "line 1: rank is '-1'"),
        (json.dumps(GOOD) + "\n{,}\n" + json.dumps(GOOD), "line 2: "),
        ("", "the file has no collective"),
    ],
)
def test_a_broken_log_names_the_line(text: str, problem: str) -> None:
    """The error names the file, the line and the value."""
    with pytest.raises(TraceError, match=f"^a.log: {problem}"):
        read_inspector_log(text.encode(), "a.log")


def test_a_log_that_is_still_written_is_read_to_its_last_whole_record() -> None:
    """The last line of a running job may be half a record."""
    text = json.dumps(GOOD) + "\n" + json.dumps(GOOD)[:40]

    assert len(read_inspector_log(text.encode(), "a.log")) == 1


class _CountedText(str):
    """Counts the characters that `count` looks at."""

    looked_at = 0

    def count(self, sub: str, *span: Any) -> int:
        start, end, _ = slice(*span).indices(len(self))
        type(self).looked_at += end - start
        return super().count(sub, *span)


class _CountedBytes(bytes):
    def decode(self, *_: Any) -> str:
        return _CountedText(super().decode())


def test_each_line_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of a long job has millions of records, so to find the number of a line never reads the file anew."""
    monkeypatch.setattr(_CountedText, "looked_at", 0)
    text = (json.dumps(GOOD) + "\n") * 200

    with pytest.raises(TraceError, match="line 201: "):
        read_inspector_log(_CountedBytes(text.encode() + b"{,}\n"), "a.log")

    assert 0 < _CountedText.looked_at <= 2 * (len(text) + 5)  # json counts the lines once more for its error
