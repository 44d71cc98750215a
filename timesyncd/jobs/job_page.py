"""A job's window as a hub tells it: what was joined of each step, page by page. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from timesyncd.jobs.arrivals import StepMark
from timesyncd.jobs.joining import Job
from timesyncd.jobs.recorded import RankRecord, Recording, Request
from timesyncd.jobs.recording import RecordingMessage
from timesyncd.jobs.window import StepRecord

#: About so many marks are on a page, so that making it does not hold up the clocks; a step with more stands alone.
MARKS_A_PAGE = 5_000


def window_page(job: Job, from_step: int, most_steps: int) -> RecordingMessage:
    """The closed steps from this key on, at most so many; a step that is still open, or full, is on no page."""
    still_open = {step for step, _ in job.pending}
    records: list[tuple[int, StepRecord]] = []
    size, next_step = 0, None
    for step, record in _closed(job, from_step, still_open):
        if records and (len(records) >= most_steps or size + record.size > MARKS_A_PAGE):
            next_step = step
            break
        records.append((step, record))
        size += record.size
    page = RecordingMessage.of(_recording(job, records))
    return page.model_copy(update={"next_step": next_step})


def _closed(job: Job, from_step: int, still_open: set[int]) -> Iterator[tuple[int, StepRecord]]:
    for step, record in job.steps.records_from(from_step):
        if step not in still_open and not record.is_full:
            yield step, record


def _recording(job: Job, records: list[tuple[int, StepRecord]]) -> Recording:
    steps: dict[int, list[StepMark]] = {}
    requests: dict[int, list[Request]] = {}
    for step, record in records:
        for rank, mark in record.marks.items():
            steps.setdefault(rank, []).append(mark)
        for rank, spans in record.requests.items():
            requests.setdefault(rank, []).extend(Request(step, *span) for span in spans)
    ranks = {
        number: RankRecord(rank.newest.node, rank.lost, rank.own_overhead_ns, rank.metered_ns)
        for number, rank in job.ranks.items()
    }
    return Recording(
        job=job.name,
        attempt=job.attempt,
        world_size=job.world_size,
        ranks=ranks,
        syncs=[sync for _, record in records for sync in record.in_order()],
        steps=steps,
        requests=requests,
    )
