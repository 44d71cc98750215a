"""
Reads dumps of torch's flight recorder, as pickles and as JSON (torch/csrc/distributed/c10d/FlightRecorder.hpp, dump
versions 2.x).

A pickle can run any code when Python loads it. Here a reader of plain data reads it, which rejects one that refers to a
class or function.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from timesyncd.errors import Malformed, TraceError
from timesyncd.traces.operations import (
    MAX_RANKS,
    RECV,
    SEND,
    Communication,
    RankTrace,
    UnusableTrace,
    communication_kind,
)
from timesyncd.traces.plain_pickle import load_plain

_RANK_IN_NAME = re.compile(r"(\d+)(?:\.\w+)*$")
_MESSAGE = re.compile(r"(?P<kind>send|recv)\s+(?P<from>\d+)(?P<way><-|->)(?P<to>\d+)")

#: The watchdog of NCCL looks so often whether a collective has ended.
_WATCHDOG_NS = 100_000_000

NO_TIMES = (
    "the flight recorder has no times at which collectives ended: it shows in which order each rank called them; with "
    "NCCL set TORCH_NCCL_ENABLE_TIMING=1"
)


def load_dump(data: bytes, name: str) -> dict[str, Any]:
    """The dump as plain data, of a pickle or JSON. Raises TraceError."""
    try:
        value = load_plain(data) if data[:1] in (b"\x80", b"(") else json.loads(data)
    except (Malformed, RecursionError, ValueError) as error:
        raise TraceError(
            f"{name}: the flight recorder's dump cannot be read: {str(error)[:120] or type(error).__name__}"
        ) from error
    if not isinstance(value, dict) or not isinstance(value.get("entries"), list):
        raise TraceError(f"{name}: the file is no dump of the flight recorder: it must be a dict with a list 'entries'")
    return value


def read_flight_recorder(data: bytes, name: str) -> RankTrace | UnusableTrace:
    """One rank's dump; its rank is the number at the end of the file's name, as torch names dumps. Raises TraceError."""
    dump = load_dump(data, name)
    found = _RANK_IN_NAME.search(name.rsplit("/", 1)[-1])
    if found is None:
        raise TraceError(
            f"{name}: a dump does not contain its rank: name the file as torch does, with the rank at its end"
        )
    rank = int(found[1][-9:])
    groups = _groups(dump)
    entries = [_entry(each, number, name) for number, each in enumerate(dump["entries"])]
    world = groups.get("0", groups.get("", ()))
    progress = _progress(entries)
    if not entries:
        return UnusableTrace(name, rank, len(world) or None, "the flight recorder has no entries")
    if not any(_end_ns(entry) for entry in entries):
        return UnusableTrace(name, rank, len(world) or None, NO_TIMES, progress)
    calls = []
    for entry in entries:
        call = _communication(entry, rank, groups)
        if isinstance(call, str):
            return UnusableTrace(name, rank, len(world) or None, call, progress)
        if call is not None:
            calls.append(call)
    return RankTrace(
        name,
        rank,
        len(world) or None,
        "",
        tuple(sorted(calls, key=lambda call: call.begin_ns)),
        None,
        None,
        _WATCHDOG_NS,
        progress,
    )


def _groups(dump: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    config = dump.get("pg_config")
    found = {}
    for name, each in config.items() if isinstance(config, dict) else ():
        ranks = each.get("ranks") if isinstance(each, dict) else None
        numbers = re.findall(r"\d+", ranks) if isinstance(ranks, str) else ranks
        if (
            isinstance(numbers, list)
            and numbers
            and all(_text(each).isdecimal() and int(each) < MAX_RANKS for each in numbers)
        ):
            found[str(name)] = tuple(sorted({int(each) for each in numbers}))
    return found


def _entry(value: object, number: int, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("profiling_name"), str):
        raise TraceError(f"{name}: entry {number} has no profiling_name; it must be an entry of the flight recorder")
    created = value.get("time_created_ns")
    if type(created) is not int or not 0 < created < 2**63:
        raise TraceError(
            f"{name}: entry {number}: time_created_ns is {_text(created)[:40]!r}; it must be ns since 1970"
        )
    return value


def _end_ns(entry: Mapping[str, Any]) -> int | None:
    end = entry.get("time_discovered_completed_ns")
    return end if type(end) is int and 0 < end < 2**63 else None


def _group_name(entry: Mapping[str, Any]) -> str:
    group = entry.get("process_group")
    return _text(group[0] if isinstance(group, tuple | list) and group else entry.get("pg_id", ""))


def _text(value: object) -> str:
    """Of a container its kind alone: one of a pickle may hold another one a million times over."""
    return f"a {type(value).__name__}" if isinstance(value, dict | list | tuple) else str(value)


def _communication(
    entry: Mapping[str, Any], rank: int, groups: Mapping[str, tuple[int, ...]]
) -> Communication | str | None:
    """None: it has not ended. A text: why it cannot be used."""
    end = _end_ns(entry)
    begin = entry["time_created_ns"]
    if end is None or end < begin:
        return None
    title = entry["profiling_name"].partition(":")[2] or entry["profiling_name"]
    group = _group_name(entry)
    members = groups.get(group)
    if message := _MESSAGE.fullmatch(title.strip()):
        near, far = int(message["from"]), int(message["to"])
        if max(near, far) >= MAX_RANKS:
            return f"the ranks of {entry['profiling_name'][:40]!r} are none"
        sender, receiver = (near, far) if message["way"] == "->" else (far, near)
        if members is not None and max(sender, receiver) < len(members):
            sender, receiver = members[sender], members[receiver]
        return Communication(message["kind"], "messages", (sender, receiver), None, begin, end)
    kind = communication_kind(title)
    if kind is None:
        return f"the operation {entry['profiling_name'][:40]!r} is not known"
    if kind in (SEND, RECV):
        return f"the peer of {entry['profiling_name'][:40]!r} is not recorded"
    if members is None:
        return f"the ranks of process group {group!r} are not recorded (pg_config)"
    number = entry.get("collective_seq_id")
    return Communication(kind, group, members, number if type(number) is int else None, begin, end)


def _progress(entries: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, int, str], ...]:
    """By group the last collective, which shows which rank did not call the next one."""
    last: dict[str, tuple[str, int, str]] = {}
    for entry in entries:
        number = entry.get("collective_seq_id")
        if type(number) is int and not entry.get("is_p2p"):
            group = _group_name(entry)
            title = entry["profiling_name"]
            last[group] = max(last.get(group, (group, -1, "")), (group, number, title.partition(":")[2] or title))
    return tuple(sorted(last.values()))
