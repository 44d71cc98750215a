"""
Reads the logs of NCCL's Inspector plugin: one JSON object for each collective of a communicator
(github.com/NVIDIA/nccl, ext-profiler/inspector/README.md, output format v4.0).

Only its verbose form has times (`event_trace_ts`, microseconds since 1970): those of the kernels' channels, else of the
call on the host.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from timesyncd.errors import TraceError
from timesyncd.traces.operations import MAX_RANKS, Communication, RankTrace, UnusableTrace, communication_kind

_US = 1_000
_MAX_US = 2**63 // _US

_NOT_TIMED = (
    "NCCL Inspector recorded durations without the times at which they began: set NCCL_INSPECTOR_DUMP_VERBOSE=1"
)


@dataclass(frozen=True, slots=True)
class InspectedCall:
    """
    One collective of one process. `rank`: in the communicator `communicator`, which has `size` ranks. `begin_ns` None:
    not recorded.
    """

    process: tuple[str, int]
    communicator: str
    rank: int
    size: int
    kind: str
    number: int
    bytes: int | None
    duration_ns: int
    begin_ns: int | None
    end_ns: int | None


def read_inspector_log(data: bytes, name: str) -> list[InspectedCall]:
    """The collectives of one file, objects one after another. Raises TraceError that names the line."""
    text = data.decode("utf-8", "replace")
    decoder, at, line, counted = json.JSONDecoder(), 0, 1, 0
    found: list[InspectedCall] = []
    while at < len(text):
        if text[at] in " \t\r\n,":
            at += 1
            continue
        line, counted = line + text.count("\n", counted, at), at
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            if found and text.find("\n", at) == -1:
                break  # the last line of a log that is still written
            raise TraceError(f"{name}: line {line}: {str(error).partition(':')[0]}") from error
        for each in value if isinstance(value, list) else [value]:
            found.append(_call(each, f"{name}: line {line}"))
    if not found:
        raise TraceError(f"{name}: the file has no collective")
    return found


def _call(value: object, where: str) -> InspectedCall:
    head, meta, perf = (_object(value, key, where) for key in ("header", "metadata", "coll_perf"))
    kind = communication_kind(str(perf.get("coll", "")))
    if kind is None:
        raise TraceError(f"{where}: coll is {str(perf.get('coll'))[:40]!r}, which is not a known collective")
    span = _span(perf, where)
    return InspectedCall(
        process=(str(meta.get("hostname", "")), _number(meta, "pid", where)),
        communicator=str(head.get("id", "")),
        rank=_number(head, "rank", where),
        size=_ranks(head, where),
        kind=kind,
        number=_number(perf, "coll_sn", where),
        bytes=_number(perf, "coll_msg_size_bytes", where) if "coll_msg_size_bytes" in perf else None,
        duration_ns=_number(perf, "coll_exec_time_us", where) * _US,
        begin_ns=None if span is None else span[0],
        end_ns=None if span is None else span[1],
    )


def _object(value: object, key: str, where: str) -> Mapping[str, Any]:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, dict):
        raise TraceError(f"{where}: the object has no {key!r}; it must be a record of NCCL Inspector")
    return found


def _number(value: Mapping[str, Any], key: str, where: str) -> int:
    found = value.get(key)
    if isinstance(found, float) and found.is_integer():
        found = int(found)
    if type(found) is not int or not 0 <= found < _MAX_US:
        raise TraceError(f"{where}: {key} is {str(found)[:40]!r}; it must be a whole number from 0, below 2^63 ns")
    return found


def _ranks(head: Mapping[str, Any], where: str) -> int:
    found = _number(head, "n_ranks", where)
    if not 0 < found <= MAX_RANKS:
        raise TraceError(f"{where}: n_ranks is {found}; it must be from 1 to {MAX_RANKS}")
    return found


def _span(perf: Mapping[str, Any], where: str) -> tuple[int, int] | None:
    times = perf.get("event_trace_ts")
    if not isinstance(times, dict):
        return None
    kernels = times.get("kernel_events")
    spans = [
        (_number(each, "kernel_start_ts", where), _number(each, "kernel_stop_ts", where))
        for each in (kernels if isinstance(kernels, list) else ())
        if isinstance(each, dict) and each.get("kernel_start_ts") and each.get("kernel_stop_ts")
    ]
    if not spans:
        spans = [(_number(times, "coll_start_ts", where), _number(times, "coll_stop_ts", where))]
    begin, end = min(begin for begin, _ in spans) * _US, max(end for _, end in spans) * _US
    return (begin, end) if 0 < begin <= end else None


def inspected_ranks(calls: Sequence[InspectedCall], name: str) -> list[RankTrace | UnusableTrace]:
    """
    One trace for each process of all files. A process has the rank of the largest communicator; the others are known by
    the processes that share their id. Raises TraceError where no communicator holds all processes.
    """
    by_process: dict[tuple[str, int], list[InspectedCall]] = defaultdict(list)
    for call in calls:
        by_process[call.process].append(call)
    size = max(call.size for call in calls)
    world = {call.communicator for call in calls if call.size == size}
    rank_of: dict[tuple[str, int], int] = {}
    for process, own in by_process.items():
        ranks = {call.rank for call in own if call.communicator in world}
        if len(ranks) != 1 or ranks & set(rank_of.values()):
            raise TraceError(
                f"{name}: no communicator holds all processes, so the rank of process {process[1]} on {process[0]} in the job is not recorded"
            )
        rank_of[process] = ranks.pop()
    members: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for call in calls:
        members[call.communicator, call.size][call.rank] = rank_of[call.process]
    return [_rank_trace(name, own, rank_of[process], size, members) for process, own in sorted(by_process.items())]


def _rank_trace(
    name: str,
    own: Sequence[InspectedCall],
    rank: int,
    size: int,
    members: Mapping[tuple[str, int], Mapping[int, int]],
) -> RankTrace | UnusableTrace:
    label = f"{name}: process {own[0].process[1]} on {own[0].process[0]}"
    if any(call.begin_ns is None for call in own):
        return UnusableTrace(label, rank, size, _NOT_TIMED)
    calls = []
    for call in own:
        group = members[call.communicator, call.size]
        if len(group) < call.size:
            return UnusableTrace(
                label,
                rank,
                size,
                f"{call.size - len(group)} of {call.size} ranks of communicator {call.communicator} have no log",
            )
        if (
            call.begin_ns is not None
            and call.end_ns is not None
            and call.size > 1
            and call.kind not in ("send", "recv")
        ):
            calls.append(
                Communication(
                    call.kind,
                    call.communicator,
                    tuple(sorted(group.values())),
                    None,
                    call.begin_ns,
                    call.end_ns,
                    call.bytes,
                )
            )
    if any(call.kind in ("send", "recv") for call in own):
        return UnusableTrace(label, rank, size, "NCCL Inspector does not record the peers of sends and receives")
    return RankTrace(
        label, rank, size, own[0].process[0], tuple(sorted(calls, key=lambda call: call.begin_ns)), None, None, _US
    )
