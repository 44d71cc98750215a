"""
Traces that torch 2.13's profiler recorded of gloo meshes of 2 x 2 ranks, eight steps each, on a busy machine with two
cores. One rank takes 1.6 times as long to compute. Only what the audit reads is kept: communications, and when
operators ran.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from timesyncd.audit.blame import blame_report
from timesyncd.audit.trace_files import read_traces
from timesyncd.jobs.group_placing import placed
from timesyncd.traces.operations import RankTrace

RECORDINGS = Path(__file__).parents[2] / "recordings" / "traces"


@pytest.mark.parametrize(
    ("name", "rank"),
    [("pipeline-rank1", 1), ("hsdp-rank1", 1), ("tensor-rank3", 3)],
    ids=["1f1b-fsdp", "hsdp", "fsdp-tensor-parallel"],
)
def test_the_slow_rank_of_a_recorded_mesh_is_named(name: str, rank: int) -> None:
    """It alone is named, and the replay takes as long as recorded."""
    traces, errors = read_traces([RECORDINGS / name])

    found = blame_report([name], traces)

    assert not errors
    assert found.steps == 8
    assert found.replay_misfit is not None and found.replay_misfit < 1e-3
    assert [(cause.kind, cause.rank, cause.verdict) for cause in found.causes] == [("rank", rank, "named")]
    assert found.causes[0].excess == pytest.approx(0.6, abs=0.15)  # other programs slowed all ranks


def test_collectives_of_both_dimensions_get_their_groups() -> None:
    """Kineto records none: both threads of each group are found, and a message's peer is a rank of the job."""
    traces, _ = read_traces([RECORDINGS / "hsdp-rank1"])
    groups = {
        (call.kind, call.group, call.ranks)
        for trace in placed([each for each in traces if isinstance(each, RankTrace)])
        if isinstance(trace, RankTrace) and trace.rank == 0
        for call in trace.communications
    }
    assert groups == {
        ("all_gather", "3 mesh_shard", (0, 1)),
        ("all_reduce", "3 mesh_shard", (0, 1)),
        ("all_reduce", "1 mesh_replicate", (0, 2)),
    }

    traces, _ = read_traces([RECORDINGS / "pipeline-rank1"])
    peers = {
        (call.kind, call.ranks)
        for trace in placed([each for each in traces if isinstance(each, RankTrace)])
        if isinstance(trace, RankTrace) and trace.rank == 2
        for call in trace.communications
        if call.group == "messages"
    }
    assert peers == {("send", (2, 3)), ("recv", (3, 2))}
