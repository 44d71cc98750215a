"""
The past of a hub's fleet, racks and jobs: values every ten seconds, summed up to roll-ups of minutes and hours. Pure: time is an
argument.

A value that is unknown is left out, so a minute without any value is a gap and never a 0.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.messages.fleet import Rollup
from timesyncd.messages.jobs import JobState
from timesyncd.messages.overview import ChainGroup, Headline
from timesyncd.store.archive import MAX_KEY_CHARACTERS
from timesyncd.store.hub_sources import job_source, rack_source
from timesyncd.store.rollups import HOUR_S, MINUTE_S, summary

EVERY_NS = 10 * NS_PER_S

#: Of so many racks the past is kept; a fleet of 10,000 nodes has some 250.
MAX_RACKS = 1_000
#: Of so many jobs the past is kept; a fleet has some tens.
MAX_JOBS = 500

Quantities = Mapping[str, int | None]

_SPANS: tuple[Literal[60, 3600], ...] = (MINUTE_S, HOUR_S)
_JOB_TIMES = (
    "alignment_ns", "arrival_skew_p50_ns", "arrival_skew_p99_ns", "barrier_wait_p50_ns", "transfer_p50_ns", "clock_bound_ns",
)  # fmt: skip
_JOB_RATIOS = ("sync_overhead", "comm_compute")


def fleet_values(headline: Headline) -> Quantities:
    """What is kept of the fleet, by quantity."""
    return {
        "alignment_ns": headline.alignment_ns,
        "p50_bound_ns": headline.p50_bound_ns,
        "p99_bound_ns": headline.p99_bound_ns,
        "worst_bound_ns": headline.worst_bound_ns,
        "nodes": headline.nodes,
        "compared": headline.compared,
        "without_bound": headline.without_bound,
        "not_compared": headline.not_compared,
    }


def rack_series(chain: Iterable[ChainGroup]) -> dict[str, Quantities]:
    """The widest bound and the nodes without one of each place, by its source. A long place is no rack's."""
    racks: dict[str, list[ChainGroup]] = {}
    for group in chain:
        racks.setdefault(group.place, []).append(group)
    known = [place for place in sorted(racks) if len(rack_source(place)) <= MAX_KEY_CHARACTERS][:MAX_RACKS]
    return {rack_source(place): _rack_values(racks[place]) for place in known}


def _rack_values(groups: Sequence[ChainGroup]) -> Quantities:
    bounds_ns = [group.bound_ns for group in groups if group.bound_ns is not None]
    return {
        "widest_bound_ns": max(bounds_ns, default=None),
        "without_bound": sum(group.without_bound for group in groups),
    }


def job_series(jobs: Iterable[JobState]) -> dict[str, Quantities]:
    """The same of each job, by its source; ratios in billionths, as `*_ppb`."""
    return {job_source(job.job_id): _job_values(job) for job in list(jobs)[:MAX_JOBS]}


def _job_values(job: JobState) -> Quantities:
    ratios = {f"{name}_ppb": getattr(job, name) for name in _JOB_RATIOS}
    rounded = {name: None if ratio is None else round(ratio * 1e9) for name, ratio in ratios.items()}
    return {name: getattr(job, name) for name in _JOB_TIMES} | rounded


class HubHistory:
    """Values of the open minute and hour of each source. A restart loses them; what has ended is in the store."""

    def __init__(self) -> None:
        self._added_ns: int | None = None
        self._open: dict[tuple[str, int, int], dict[str, array[int]]] = {}

    def is_due(self, boottime_ns: int) -> bool:
        return self._added_ns is None or boottime_ns - self._added_ns >= EVERY_NS

    def add(self, now: Moment, values: Mapping[str, Quantities]) -> None:
        """The values of each source now; None: unknown."""
        self._added_ns = now.boottime_ns
        for source, quantities in values.items():
            known = [(name, value) for name, value in quantities.items() if value is not None]
            for span_s in _SPANS if known else ():
                begins_ns = now.realtime_ns // (span_s * NS_PER_S) * span_s * NS_PER_S
                of_span = self._open.setdefault((source, span_s, begins_ns), {})
                for name, value in known:
                    of_span.setdefault(name, array("q")).append(value)

    def ended(self, realtime_ns: int) -> Iterator[Rollup]:
        """The roll-ups of the minutes and hours that are over, each once."""
        for key in [key for key in self._open if key[2] + key[1] * NS_PER_S <= realtime_ns]:
            source, span_s, begins_ns = key
            quantities = {name: summary(values) for name, values in self._open.pop(key).items()}
            yield Rollup.model_validate(
                {"source": source, "span_s": span_s, "begins_realtime_ns": begins_ns, "quantities": quantities}
            )
