"""
A training step of a job as a span with its synchronizations. Pure.

Ranks stamp with clocks that differ. What compares two ranks is an attribute only where the clocks allow it, with its
error beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from timesyncd.ipc.job_datagram import kind_text, split_step
from timesyncd.jobs.arrivals import Sync
from timesyncd.jobs.recording import Recording, RecordingMessage
from timesyncd.messages.jobs import JobState

#: A step with more synchronizations is cut; the attribute `timesyncd.syncs` has their true number.
MAX_SYNCS = 128

Attributes = dict[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class Span:
    """Begin and end are CLOCK_REALTIME in ns: the first rank's begin and the last rank's end, each by its own clock."""

    name: str
    begin_ns: int
    end_ns: int
    attributes: Attributes
    children: list[Span] = field(default_factory=list)


class NewestSteps:
    """
    The newest whole step of each job of this hub, each once. Asked at an interval, it is a sample of the steps.

    `window` gives the marks of a job from a step on, at most so many steps, as the HTTP API does.
    """

    def __init__(
        self, jobs: Callable[[], Iterable[JobState]], window: Callable[[str, int, int], RecordingMessage | None]
    ) -> None:
        self._jobs = jobs
        self._window = window
        self._given: dict[str, tuple[int, int | None]] = {}

    def __call__(self) -> list[Span]:
        jobs = {job.job_id: job for job in self._jobs()}
        newest = {job_id: (job.run, job.step) for job_id, job in jobs.items()}
        fresh = [job_id for job_id, step in newest.items() if step[1] is not None and self._given.get(job_id) != step]
        self._given = newest
        spans = (self._span(job_id, newest[job_id][1]) for job_id in fresh)
        return [span for span in spans if span is not None]

    def _span(self, job_id: str, step: int | None) -> Span | None:
        page = None if step is None else self._window(job_id, step, 1)
        return None if page is None or step is None else step_span(page.recording(), step)


def step_span(recording: Recording, key: int) -> Span | None:
    """The step with this key, as all its ranks marked it; None: nothing of it is in the recording."""
    syncs = [sync for sync in recording.syncs if sync.step == key and sync.arrivals]
    by_rank = {rank: mark for rank, marks in recording.steps.items() for mark in marks if mark.step == key}
    marks = by_rank.values()
    children = [_sync_span(sync) for sync in syncs[:MAX_SYNCS]]
    begins = [mark.arrival_ns for mark in marks] + [child.begin_ns for child in children]
    if not begins:
        return None
    epoch, step = split_step(key)
    attributes: Attributes = {
        "timesyncd.job": recording.job,
        "timesyncd.attempt": recording.attempt,
        "timesyncd.epoch": epoch,
        "timesyncd.step": step,
        "timesyncd.world_size": recording.world_size,
        "timesyncd.ranks": len({rank for sync in syncs for rank in sync.arrivals} | by_rank.keys()),
        "timesyncd.syncs": len(syncs),
    }
    ends = [mark.end_ns for mark in marks] + [child.end_ns for child in children]
    return Span("training step", min(begins), max(ends), attributes, children)


def _sync_span(sync: Sync) -> Span:
    """From the first arrival to the last end."""
    arrivals = sync.arrivals.values()
    attributes: Attributes = {
        "timesyncd.sync": sync.sync,
        "timesyncd.kind": kind_text(sync.kind),
        "timesyncd.ranks": len(sync.arrivals),
        "timesyncd.bytes": max(arrival.bytes for arrival in arrivals),
        "timesyncd.clocks_compare": sync.comparison is not None,
    }
    if sync.comparison is not None:
        attributes["timesyncd.arrival_skew_ns"] = sync.comparison.skew_ns
        attributes["timesyncd.arrival_skew_error_ns"] = sync.comparison.error_ns
        if sync.comparison.last_rank is not None:
            attributes["timesyncd.last_rank"] = sync.comparison.last_rank
    begin_ns = min(arrival.arrival_ns for arrival in arrivals)
    end_ns = max(max(arrival.end_ns for arrival in arrivals), begin_ns)
    return Span(kind_text(sync.kind), begin_ns, end_ns, attributes)
