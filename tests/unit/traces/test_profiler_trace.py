"""A rank's profiler trace as communications and computing: Kineto's form of several versions, and what it lacks."""

from __future__ import annotations

from typing import Any

import pytest

from timesyncd.errors import TraceError
from timesyncd.traces.operations import EndKind, RankTrace, UnusableTrace
from timesyncd.traces.profiler_trace import read_profiler_trace
from timesyncd.traces.reader import EVENTS

INFO = {
    "backend": "nccl",
    "rank": 1,
    "world_size": 4,
    "pg_config": [
        {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1, 2, 3]},
        {"pg_name": "3", "pg_desc": "mesh_tp", "ranks": [0, 1]},
    ],
}
BASE_NS = 1_789_000_000_000_000_000


def read(*events: dict[str, Any], info: object = INFO, name: str = "rank1.json") -> RankTrace | UnusableTrace:
    head = [("distributedInfo", info), ("host_name", "node-a"), ("baseTimeNanoseconds", BASE_NS)]
    return read_profiler_trace([*head, *((EVENTS, event) for event in events)], name)


def kernel(name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args}


ALL_REDUCE = {
    "Collective name": "allreduce",
    "Process Group Name": "3",
    "Process Group Description": "mesh_tp",
    "Process Group Ranks": "[0, 1]",
    "Group size": 2,
    "In msg nelems": 100,
    "dtype": "BFloat16",
    "Seq": 17,
}


def test_kernels_are_computing_and_communications() -> None:
    """NCCL's kernels have their group, ranks, number and bytes; all others are computing."""
    found = read(
        kernel("sgemm", 1000.0, 10.5),
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(args)", 1010.5, 20.0, **ALL_REDUCE),
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "ts": 990.0, "dur": 50.0, "pid": 9, "tid": 9},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 990.0, "dur": 500.0, "pid": 9, "tid": 9},
    )

    assert isinstance(found, RankTrace)
    assert (found.rank, found.world_size, found.host, found.steps) == (1, 4, "node-a", 1)
    assert found.busy == ((BASE_NS + 1_000_000, BASE_NS + 1_010_500),)
    (call,) = found.communications
    assert (call.kind, call.group, call.ranks, call.number, call.bytes) == ("all_reduce", "3 mesh_tp", (0, 1), 17, 200)
    assert (call.begin_ns - BASE_NS, call.end_ns - BASE_NS) == (1_010_500, 1_030_500)


def test_an_old_kernel_takes_its_arguments_from_the_call() -> None:
    """Before 2.4 only record_param_comms has them; both share the external id."""
    call = {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "ts": 1.0, "dur": 1.0, "pid": 9, "tid": 9}
    found = read(
        call | {"args": ALL_REDUCE | {"External id": 5}},
        kernel("ncclKernel_AllReduce_RING_LL_Sum_float(args)", 10.0, 5.0, **{"External id": 5}),
    )

    assert isinstance(found, RankTrace)
    assert found.communications[0].ranks == (0, 1)


def test_shortened_ranks_come_from_the_list_of_groups() -> None:
    """Kineto shortens long lists of ranks by dots; the header has all of them."""
    args = ALL_REDUCE | {"Process Group Name": "0", "Process Group Ranks": "[0, 1, ...]"}
    found = read(kernel("ncclDevKernel_AllReduce(args)", 1.0, 1.0, **args))

    assert isinstance(found, RankTrace)
    assert found.communications[0].ranks == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("side", "peer", "ends"), [("send", {"Dst Rank": 3}, (1, 3)), ("recv", {"Src Rank": "0"}, (0, 1))]
)
def test_a_message_has_its_ends(side: str, peer: dict[str, Any], ends: tuple[int, int]) -> None:
    """The peer's rank counts in the whole job; some versions write it as text."""
    found = read(kernel("ncclDevKernel_SendRecv(args)", 1.0, 1.0, **{"Collective name": side} | peer))

    assert isinstance(found, RankTrace)
    assert (found.communications[0].kind, found.communications[0].ranks) == (side, ends)


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ({}, "has no collective name and no source or destination rank"),
        ({"Collective name": "send"}, "a send has no Dst Rank"),
        ({"Collective name": "allreduce", "Process Group Name": "9"}, "ranks of process group '9' are not recorded"),
    ],
)
def test_a_kernel_without_its_group_or_peer_makes_the_trace_unusable(args: dict[str, Any], reason: str) -> None:
    """A guess would accuse a wrong rank."""
    found = read(kernel("ncclDevKernel_SendRecv(args)", 1.0, 1.0, **args))

    assert isinstance(found, UnusableTrace)
    assert reason in found.reason


def host(name: str, ts: float, dur: float, category: str = "user_annotation") -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 9, "tid": 2, "ts": ts, "dur": dur, "args": {}}


def test_gloo_on_the_host() -> None:
    """Without kernels torch's operators are computing, and gloo's annotations are the collectives."""
    info = INFO | {"pg_config": INFO["pg_config"][:1]}  # type: ignore[index]
    found = read(host("aten::mm", 1.0, 5.0, "cpu_op"), host("gloo:all_reduce", 6.0, 4.0) | {"tid": 7}, info=info)

    assert isinstance(found, RankTrace)
    assert [(each.kind, each.lane, each.begin_ns - BASE_NS, each.end) for each in found.unplaced] == [
        ("all_reduce", 7, 6_000, EndKind.OWN)
    ]
    assert [each.ranks for each in found.groups] == [(0, 1, 2, 3)]
    assert found.busy == ((BASE_NS + 1_000, BASE_NS + 6_000),)


def test_an_operator_in_which_the_rank_waits_is_not_computing() -> None:
    """A hook of the backward pass calls a collective and waits; of an operator around it only what is inside counts."""
    found = read(
        host("autograd::engine::evaluate_function: AddmmBackward0", 1.0, 50.0, "cpu_op"),
        host("aten::mm", 2.0, 3.0, "cpu_op"),
        host("c10d::_allgather_base_", 10.0, 30.0, "cpu_op"),
        host("_c10d_functional::wait_tensor", 41.0, 5.0, "cpu_op"),
        host("MyFunctionBackward", 60.0, 5.0, "cpu_op"),
        host("gloo:all_gather", 11.0, 20.0) | {"tid": 7},
        host("aten::copy_", 12.0, 1.0, "cpu_op") | {"tid": 7},
    )

    assert isinstance(found, RankTrace)
    assert found.busy == ((BASE_NS + 2_000, BASE_NS + 5_000), (BASE_NS + 60_000, BASE_NS + 65_000))


def test_a_message_of_a_host_begins_at_its_call_and_ends_when_it_was_seen() -> None:
    """An operator calls itself below autograd; the peer is a rank of the group."""
    inputs = {"args": {"Concrete Inputs": ["", "", "1", "0"], "Input Dims": [[[4, 64]], [], [], []]}}
    found = read(
        host("c10d::send", 1.0, 5.0, "cpu_op") | inputs,
        host("c10d::send", 2.0, 3.0, "cpu_op") | inputs,
        host("gloo:send", 4.5, 40.0),
    )

    assert isinstance(found, RankTrace)
    (call,) = found.unplaced
    assert (call.kind, call.peer, call.begin_ns - BASE_NS, call.end_ns - BASE_NS, call.end) == (
        "send",
        1,
        2_000,
        44_500,
        EndKind.SEEN,
    )


def test_a_barrier_of_gloo_has_no_end() -> None:
    """Gloo does not annotate it, so only its call is known."""
    found = read(host("c10d::barrier", 3.0, 2.0, "cpu_op"), host("gloo:all_reduce", 6.0, 4.0))

    assert isinstance(found, RankTrace)
    assert [(each.kind, each.end) for each in found.unplaced] == [
        ("barrier", EndKind.NONE),
        ("all_reduce", EndKind.OWN),
    ]


def test_the_rank_comes_from_the_name_if_the_trace_has_none() -> None:
    """Profiled before init_process_group, a trace has no distributedInfo."""
    found = read(kernel("sgemm", 1.0, 1.0), info=None, name="out/run2_rank-7.pt.trace.json.gz")

    assert isinstance(found, UnusableTrace)
    assert (found.rank, found.reason) == (7, "the trace has no collective and no message between ranks")
    with pytest.raises(TraceError, match=r"^t\.json: the trace has no distributedInfo with its rank"):
        read(kernel("sgemm", 1.0, 1.0), info=None, name="t.json")


@pytest.mark.parametrize("info", [[], "x", {"rank": True, "world_size": [], "pg_config": {"a": 1}}, {"pg_config": [1]}])
def test_a_header_of_another_form_is_ignored(info: object) -> None:
    """What is not as documented counts as absent."""
    assert read(kernel("sgemm", 1.0, 1.0), info=info).rank == 1


def test_a_time_that_is_none_names_the_file() -> None:
    """Times beyond the range of ns are one error."""
    with pytest.raises(TraceError, match=r"^rank1\.json: an event's dur"):
        read(kernel("sgemm", 1.0, float("inf")))


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (kernel("sgemm", 1.0, -5.5), "begins at 1.0 and takes -5.5 us"),
        (kernel("sgemm", 1.0, 9e15), "which is no time of one profile"),
        (kernel("sgemm", 9e15, 1.0), "which is no time of one profile"),
    ],
)
def test_a_time_of_no_profile_names_the_event(event: dict[str, Any], problem: str) -> None:
    """A negative duration and a century are damage."""
    with pytest.raises(TraceError, match=f"^rank1.json: an event 'sgemm' .*{problem}"):
        read(event)


@pytest.mark.parametrize("base", [-1, 2**62, "9" * 30, 1.5, None, []])
def test_a_base_that_is_no_time_names_the_value(base: object) -> None:
    """All times of the trace count from it."""
    head = [("distributedInfo", INFO), ("baseTimeNanoseconds", base)]
    event = kernel("ncclDevKernel_AllReduce(args)", 1.0, 1.0, **ALL_REDUCE)

    with pytest.raises(TraceError, match="baseTimeNanoseconds is"):
        read_profiler_trace([*head, (EVENTS, event)], "rank1.json")


def test_a_size_that_no_job_has_is_ignored() -> None:
    """A damaged world_size must not make the audit list quintillions of absent ranks."""
    found = read(kernel("sgemm", 1.0, 1.0), info=INFO | {"world_size": 10**18})

    assert found.world_size is None
