"""
Reads the timelines of pipeline-parallel jobs that Lin et al. publish with "Understanding Stragglers in Large Model
Training Using What-if Analysis" (OSDI 2025): one Chrome trace with all workers, whose events are passes and transfers
(github.com/ByteDance-Seed/StragglerAnalysis, analyzer/to_timeline.py).

A process is a data-parallel rank, a thread one stream of a stage. A transfer's time is without the wait before it; a
worker that has nothing else to do waits for it, so it begins with the end of what the worker did before.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from timesyncd.errors import TraceError
from timesyncd.traces.operations import RECV, SEND, Communication, RankTrace, merged
from timesyncd.traces.reader import EVENTS, event_span

_THREAD = re.compile(r"PP rank (\d+), TP rank (\d+), \S+")
_MESSAGES = {
    "forward-send": (SEND, 1),
    "forward-recv": (RECV, -1),
    "backward-send": (SEND, -1),
    "backward-recv": (RECV, 1),
}
_DATA = {
    "params-all-gather": "all_gather",
    "grads-reduce-scatter": "reduce_scatter",
    "separate-grads-all-reduce": "all_reduce",
}
_EMBEDDING = "embedding-grads-all-reduce"
#: All workers begin these together, so each waits for the last one.
_GLOBAL = ("layernorm-grads-all-reduce", "optimizer-clip-main-grad")

#: The steps are recorded apart from one another, so no rank begins one before all have ended the last.
_STEP_END = "end of the step"

#: What is neither this nor a communication of several workers is left out: a worker may wait in it.
_COMPUTING = ("forward-compute", "backward-compute", "optimizer")

#: The recorded times of events that follow one another overlap by so much.
_OVERLAP_NS = 1_000_000

#: An event's kind that marks such a timeline.
MARK = "forward-compute"

_Worker = tuple[int, int, int]
"""Data-parallel rank, stage, tensor-parallel rank."""


@dataclass(frozen=True, slots=True)
class _Event:
    kind: str
    step: int
    begin_ns: int
    end_ns: int


def read_pipeline_timeline(entries: Iterable[tuple[str, Any]], name: str) -> list[RankTrace]:
    """One trace for each worker, in the order of stages. Raises TraceError."""
    threads: dict[tuple[Any, Any], _Worker] = {}
    events: dict[tuple[Any, Any], list[_Event]] = defaultdict(list)
    for key, event in entries:
        if key != EVENTS:
            continue
        at = (event.get("pid"), event.get("tid"))
        args = event.get("args") if isinstance(event.get("args"), dict) else {}
        if event.get("name") == "thread_name" and (found := _THREAD.fullmatch(str(args.get("name")))):
            threads[at] = (_data_rank(event, name), int(found[1]), int(found[2]))
        elif (span := event_span(event, 0, name)) is not None and event.get("ph") == "X":
            step = args.get("step")
            if type(step) is not int:
                raise TraceError(f"{name}: an event {str(event.get('name'))[:40]!r} has no step in its args")
            events[at].append(_Event(str(event.get("name")), step, *span))
    by_worker: dict[_Worker, list[_Event]] = defaultdict(list)
    for at, each in events.items():
        if at not in threads:
            raise TraceError(
                f"{name}: thread {at[1]!r} of process {at[0]!r} has no name 'PP rank N, TP rank N, STREAM'"
            )
        by_worker[threads[at]] += each
    return _traces(by_worker, name)


def _data_rank(event: Mapping[str, Any], name: str) -> int:
    if type(event.get("pid")) is not int:
        raise TraceError(f"{name}: the process {str(event.get('pid'))[:40]!r} is no data-parallel rank")
    return int(event["pid"])


def _traces(by_worker: Mapping[_Worker, list[_Event]], name: str) -> list[RankTrace]:
    """The steps are moved together: between two recorded ones others may have run."""
    ranks = {
        worker: rank
        for rank, worker in enumerate(sorted(by_worker, key=lambda worker: (worker[1], worker[0], worker[2])))
    }
    spans: dict[int, tuple[int, int]] = {}
    for each in by_worker.values():
        for event in each:
            begin, end = spans.get(event.step, (event.begin_ns, event.end_ns))
            spans[event.step] = min(begin, event.begin_ns), max(end, event.end_ns)
    moves, at_ns = {}, 0
    for step in sorted(spans):
        moves[step] = at_ns - spans[step][0]
        at_ns += spans[step][1] - spans[step][0]
    found = []
    for worker, rank in ranks.items():
        calls, busy = _worker(worker, by_worker[worker], ranks, {step: (moves[step], *spans[step]) for step in moves})
        found.append(
            RankTrace(name, rank, len(ranks), f"worker {worker}", tuple(calls), merged(busy), len(spans), 1_000_000)
        )
    return found


def _worker(
    worker: _Worker, events: list[_Event], ranks: Mapping[_Worker, int], steps: Mapping[int, tuple[int, int, int]]
) -> tuple[list[Communication], list[tuple[int, int]]]:
    calls, busy = [], []
    ended: dict[int, list[int]] = defaultdict(list)
    closing = [_Event(_STEP_END, step, end_ns, end_ns) for step, (_, _, end_ns) in steps.items()]
    for event in sorted([*events, *closing], key=lambda event: (event.begin_ns, event.end_ns, event.kind == _STEP_END)):
        move_ns, first_ns, _ = steps[event.step]
        ends = _ends(worker, event.kind, ranks)
        if ends is not None:
            before = [end for end in ended[event.step] if end <= event.begin_ns + _OVERLAP_NS]
            since_ns = min(event.begin_ns, max(before, default=first_ns))
            calls.append(Communication(ends[0], event.kind, ends[1], None, since_ns + move_ns, event.end_ns + move_ns))
        elif event.kind in _COMPUTING and event.end_ns > event.begin_ns:
            busy.append((event.begin_ns + move_ns, event.end_ns + move_ns))
        else:
            continue
        ended[event.step] = [*ended[event.step][-8:], event.end_ns]
    return sorted(calls, key=lambda call: call.begin_ns), busy


def _ends(worker: _Worker, kind: str, ranks: Mapping[_Worker, int]) -> tuple[str, tuple[int, ...]] | None:
    """The communication and its ranks. None: the worker computes, or communicates with no other worker here."""
    data, stage, part = worker
    if kind in _MESSAGES:
        way, distance = _MESSAGES[kind]
        peer = ranks.get((data, stage + distance, part))
        if peer is None:
            return None
        return way, (ranks[worker], peer) if way == SEND else (peer, ranks[worker])
    stages = {each[1] for each in ranks}
    if kind in _DATA:
        members = tuple(rank for each, rank in ranks.items() if each[1:] == (stage, part))
    elif kind in (*_GLOBAL, _STEP_END):
        members = tuple(ranks.values())
    elif kind == _EMBEDDING and stage in (min(stages), max(stages)):
        members = tuple(sorted(ranks[data, each, part] for each in {min(stages), max(stages)}))
    else:
        return None
    return (
        (_DATA.get(kind, "barrier" if kind == _STEP_END else "all_reduce"), tuple(sorted(members)))
        if len(members) > 1
        else None
    )
