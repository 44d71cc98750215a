"""The causes of exposed synchronization time: waiting for a rank, transfer, requests. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal, NamedTuple

from timesyncd.audit.measured import Measured
from timesyncd.jobs.arrivals import Arrival, Comparison
from timesyncd.jobs.exposed import Interval
from timesyncd.jobs.recording import Recording, positions, same_step

Cause = Literal["wait", "transfer", "undivided", "request"]


@dataclass(frozen=True, slots=True)
class OverheadSource:
    """
    One cause: the exposed time of all ranks in ns, and its share of all exposed time.

    `wait`: for `rank`, the last to arrive (None: inconclusive); `transfer`: after the last arrival; `undivided`: the
    clocks cannot separate the two; `request`: a push or pull of `rank`.
    """

    cause: Cause
    rank: int | None
    where: str
    exposed_ns: int
    share: float


def overhead_sources(now: Measured) -> list[OverheadSource]:
    """
    Every cause, the largest first; their sum is the exposed time of the measured steps.

    Time that belongs to several synchronizations or requests counts for the one that ends first, so none counts twice.
    """
    compared = {(sync.step, sync.sync): sync.comparison for sync in now.attribution.syncs}
    by_step = dict(same_step(now.recording.syncs))
    requests = _requests(now.recording)
    costs_ns: dict[_Key, int] = defaultdict(int)
    for cost in now.costs:
        step = by_step.get(cost.step, [])
        named = list(zip(step, positions(step), [compared.get((sync.step, sync.sync)) for sync in step], strict=True))
        for rank, (_, elapsed_ns) in cost.ranks.items():
            mark = now.recording.step_mark(rank, cost.step)
            begin_ns = mark.arrival_ns if mark is not None else step[0].arrivals[rank].arrival_ns
            parts = [_timed_cause(sync.arrivals[rank], name, rank, comparison) for sync, name, comparison in named]
            pushes_and_pulls = [
                _TimedCause(*span, ("request", rank, "its requests")) for span in requests.get((rank, cost.step), [])
            ]
            for source, cost_ns in _time_by_cause([*parts, *pushes_and_pulls], (begin_ns, begin_ns + elapsed_ns)):
                costs_ns[source] += cost_ns
    total_ns = sum(costs_ns.values())
    found = [
        OverheadSource(*source, cost_ns, cost_ns / total_ns) for source, cost_ns in costs_ns.items() if cost_ns > 0
    ]
    return sorted(found, key=lambda source: -source.exposed_ns)


_Key = tuple[Cause, int | None, str]


class _TimedCause(NamedTuple):
    """
    A rank's wait or request. Until `last_ns` its cause is `before` (None: there is one cause only), then `source`.
    """

    begin_ns: int
    end_ns: int
    source: _Key
    before: _Key | None = None
    last_ns: int = 0


def _timed_cause(arrival: Arrival, name: str, rank: int, comparison: Comparison | None) -> _TimedCause:
    if comparison is None:
        return _TimedCause(arrival.begin_ns, arrival.end_ns, ("undivided", None, name))
    last_ns = arrival.arrival_ns + comparison.waits_ns[rank]
    wait: _Key = ("wait", comparison.last_rank, name)
    return _TimedCause(arrival.begin_ns, arrival.end_ns, ("transfer", None, name), wait, last_ns)


def _requests(recording: Recording) -> dict[tuple[int, int], list[Interval]]:
    """By rank and step."""
    found: dict[tuple[int, int], list[Interval]] = defaultdict(list)
    for rank, requests in recording.requests.items():
        for request in requests:
            found[rank, request.step].append((request.begin_ns, request.end_ns))
    return found


def _time_by_cause(parts: Sequence[_TimedCause], within: Interval) -> Iterator[tuple[_Key, int]]:
    for part, begin_ns, end_ns in _intervals(parts, within):
        if part.before is not None:
            yield part.before, min(max(part.last_ns - begin_ns, 0), end_ns - begin_ns)
            begin_ns = min(max(part.last_ns, begin_ns), end_ns)
        yield part.source, end_ns - begin_ns


def _intervals(parts: Sequence[_TimedCause], within: Interval) -> Iterator[tuple[_TimedCause, int, int]]:
    """Disjoint intervals that cover the parts within `within`, each with the part that ends first."""
    at_ns, until_ns = within
    begun: list[tuple[int, int]] = []
    upcoming = sorted((part.begin_ns, number) for number, part in enumerate(parts))
    for next_ns, number in [*upcoming, (until_ns, -1)]:
        next_ns = min(next_ns, until_ns)
        while begun and at_ns < next_ns:
            end_ns, first = begun[0]
            if end_ns > at_ns:
                yield parts[first], at_ns, min(end_ns, next_ns)
                at_ns = min(end_ns, next_ns)
            if end_ns <= at_ns:
                heappop(begun)
        at_ns = max(at_ns, next_ns)
        if number >= 0:
            heappush(begun, (parts[number].end_ns, number))
