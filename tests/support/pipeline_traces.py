"""The runs of a simulated job as traces: by clocks that are off, and as the files that profilers write."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline_job import Call, RankRun, SimulatedJob, run

from timesyncd.traces.operations import Communication, RankTrace, merged

#: Where the traces begin, and how far the clocks of two ranks are apart at most.
TRUE_NS = 1_790_000_000_000_000_000
OFF_NS = 40_000_000
BASE_NS = 1_789_000_000_000_000_000


def clock_offsets_ns(job: SimulatedJob) -> dict[int, int]:
    """How far each rank's clock is ahead of the true time: each rank is on a node of its own."""
    dice = random.Random(f"{job.seed} clocks")
    return {rank: dice.randrange(-OFF_NS // 2, OFF_NS // 2) for rank in range(job.world_size)}


def rank_traces(job: SimulatedJob, runs: Mapping[int, RankRun], ranks_per_node: int = 1) -> list[RankTrace]:
    """As a parser would give them."""
    found = []
    for rank, ahead_ns in clock_offsets_ns(job).items():
        shift = TRUE_NS + ahead_ns
        calls = runs[rank].calls
        found.append(
            RankTrace(
                name=f"rank{rank}.json",
                rank=rank,
                world_size=job.world_size,
                host=f"node-{rank // ranks_per_node}",
                communications=tuple(
                    Communication(
                        kind=call.kind,
                        group=f"{call.group[0]} {call.group[1]}",
                        ranks=call.group[1],
                        number=None,
                        begin_ns=call.begin_ns + shift,
                        end_ns=call.end_ns + shift,
                    )
                    for call in calls
                ),
                busy=merged([(begin + shift, end + shift) for begin, end in runs[rank].busy]),
                steps=job.steps,
            )
        )
    return found


#: The kernels of one pass, and the time between them.
_KERNEL_GAP_NS = 1_000


def kineto(job: SimulatedJob, runs: Mapping[int, RankRun], rank: int) -> dict[str, Any]:
    """One rank's trace as Kineto writes it on a GPU: kernels on streams, NCCL's with the arguments of their calls."""
    shift = TRUE_NS - BASE_NS + clock_offsets_ns(job)[rank]
    groups = {name: number for number, name in enumerate(_group_names(runs), start=1)}
    events: list[dict[str, Any]] = []

    def add(begin_ns: int, end_ns: int, **more: Any) -> None:
        span = {"ts": (begin_ns + shift) / 1000, "dur": (end_ns - begin_ns) / 1000}
        events.append({"ph": "X", "pid": 0, "tid": 7} | more | span)

    own = runs[rank]
    for number, (begin, end) in enumerate(zip(own.steps, [*own.steps[1:], own.end_ns], strict=True)):
        add(begin, end, cat="user_annotation", name=f"ProfilerStep#{number}", pid=4000 + rank, tid=1)
    for begin, end in own.busy:
        middle = (begin + end) // 2
        add(begin, middle, cat="kernel", name="ampere_sgemm_128x64_tn", args={"stream": 7})
        add(middle + _KERNEL_GAP_NS, end, cat="kernel", name="elementwise_kernel", args={"stream": 7})
    for call in own.calls:
        add(call.begin_ns, call.end_ns, cat="kernel", tid=20, **_nccl(call, groups))
    config = [
        {"pg_name": str(number), "pg_desc": name[0], "pg_size": len(name[1]), "ranks": list(name[1])}
        for name, number in groups.items()
        if rank in name[1]
    ]
    info = {"backend": "nccl", "rank": rank, "world_size": job.world_size, "pg_count": len(config), "pg_config": config}
    return {
        "schemaVersion": 1,
        "distributedInfo": info,
        "host_name": f"node-{rank}",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": events,
    }


def _group_names(runs: Mapping[int, RankRun]) -> list[tuple[str, tuple[int, ...]]]:
    return sorted({call.group for run in runs.values() for call in run.calls})


def _nccl(call: Call, groups: Mapping[tuple[str, tuple[int, ...]], int]) -> dict[str, Any]:
    args: dict[str, Any] = {
        "Collective name": {"all_reduce": "allreduce"}.get(call.kind, call.kind),
        "In msg nelems": 1024,
        "dtype": "BFloat16",
        "Group size": len(call.group[1]),
        "Process Group Name": str(groups[call.group]),
        "Process Group Description": call.group[0],
        "Process Group Ranks": str(list(call.group[1])),
    }
    if call.kind == "send":
        args["Dst Rank"] = call.group[1][1]
    elif call.kind == "recv":
        args["Src Rank"] = call.group[1][0]
    kernel = "SendRecv" if call.kind in ("send", "recv") else "AllReduce_Sum_bf16_RING_LL"
    return {"name": f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)", "args": args}


def write_kineto(job: SimulatedJob, folder: Path, *, packed: bool = False) -> list[Path]:
    """The traces of all ranks as files."""
    runs, found = run(job), []
    for rank in range(job.world_size):
        text = json.dumps(kineto(job, runs, rank))
        path = folder / f"rank{rank}.json{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(text.encode(), 1) if packed else text.encode())
        found.append(path)
    return found


def inspector_log(job: SimulatedJob, runs: Mapping[int, RankRun], rank: int, *, verbose: bool = True) -> str:
    """One rank's log of NCCL Inspector: its collectives, of which each communicator counts its own."""
    shift = TRUE_NS + clock_offsets_ns(job)[rank]
    counts: dict[tuple[str, tuple[int, ...]], int] = {}
    lines = []
    for call in runs[rank].calls:
        counts[call.group] = number = counts.get(call.group, 0) + 1
        begin_us, end_us = (call.begin_ns + shift) // 1000, (call.end_ns + shift) // 1000
        perf: dict[str, Any] = {
            "coll": "AllReduce",
            "coll_sn": number,
            "coll_msg_size_bytes": 2048,
            "coll_exec_time_us": end_us - begin_us,
            "coll_algobw_gbs": 1.5,
            "coll_busbw_gbs": 1.5,
        }
        if verbose:
            channel = {
                "channel_id": 0,
                "kernel_start_ts": begin_us,
                "kernel_stop_ts": end_us,
                "kernel_record_ts": end_us,
            }
            perf["event_trace_ts"] = {
                "coll_start_ts": begin_us,
                "coll_stop_ts": begin_us + 5,
                "kernel_events": [channel],
            }
        members = call.group[1]
        head = {"id": f"0x{abs(hash(call.group)):x}", "rank": members.index(rank), "n_ranks": len(members), "nnodes": 1}
        meta = {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": end_us + 300,
            "hostname": f"node-{rank}",
            "pid": 5000 + rank,
        }
        lines.append(json.dumps({"header": head, "metadata": meta, "coll_perf": perf}))
    return "\n".join(lines) + "\n"
