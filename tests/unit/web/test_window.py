"""A job's window over HTTP: page by page, bounded, whole when put together, and readable again as a recording."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from fake_view import FakeView

from timesyncd import config
from timesyncd.ipc.job_datagram import Kind, Mark
from timesyncd.jobs import state, window
from timesyncd.jobs.joining import JobRun, Jobs
from timesyncd.jobs.recording import RecordingMessage
from timesyncd.jobs.state import window_page
from timesyncd.messages.jobs import MarkBatch
from timesyncd.web.app import WebServer, serve

AT_NS = 1_700_000_000_000_000_000
JOB = "0f3a9c51d2b4e687"


def batch(rank: int, steps: range, sequence: int = 1) -> MarkBatch:
    """Of each step one collective, at which rank 1 is 5 ms late, the step itself, and a request."""
    marks = []
    for step in steps:
        at_ns = AT_NS + step * 50_000_000 + rank * 5_000_000
        times = {
            "step": step,
            "sync": 0,
            "arrival_ns": at_ns,
            "begin_ns": at_ns,
            "end_ns": at_ns + 9_000_000,
            "bytes": 8,
        }
        marks += [Mark(kind=int(kind), **times) for kind in (Kind.ALL_REDUCE, Kind.STEP, Kind.PULL)]
    return MarkBatch(
        node=f"node-{rank}", incarnation=1, sequence=sequence, uid=0, pid=100 + rank, job="train", attempt=0, rank=rank, world_size=2,
        boot_id=f"{rank:032x}", time_namespace=1, real_minus_boot_ns=AT_NS - 10**12, gm_bound_ns=5_000, utc_bound_ns=None,
        status="SYNCHRONIZED", grandmaster_identity="gm", utc_seconds_removed=37, lost=3, marks=marks,
    )  # fmt: skip


@pytest.fixture
def job() -> JobRun:
    """Twenty steps of two ranks, and a twenty-first of which rank 1 is still awaited."""
    jobs = Jobs(window_steps=1_000)
    jobs.accept(batch(0, range(21)), 10**9)
    jobs.accept(batch(1, range(20)), 10**9)
    jobs.advance(10**9)
    (found,) = jobs
    return found


def pages(job: JobRun, most_steps: int) -> list[RecordingMessage]:
    found = [window_page(job, 0, most_steps)]
    while (step := found[-1].next_step) is not None:
        found.append(window_page(job, step, most_steps))
    return found


@pytest.mark.parametrize("most_steps", [1, 7, 20, 1_000])
def test_pages_make_the_window(job: JobRun, most_steps: int) -> None:
    """Each closed step is on one page, in order; the one that is open is on none."""
    found = pages(job, most_steps)

    assert [sync.step for page in found for sync in page.syncs] == list(range(20))
    assert sorted({mark.step for page in found for mark in page.steps}) == list(range(20))
    assert max(len(page.syncs) for page in found) == min(most_steps, 20)
    assert {(rank.node, rank.marks_lost) for page in found for rank in page.ranks} == {("node-0", 3), ("node-1", 3)}


def test_a_page_is_a_recording(job: JobRun) -> None:
    """What an audit reads: the same arrivals as the hub's, the steps, and the requests."""
    recording = RecordingMessage.model_validate_json(window_page(job, 0, 100).model_dump_json()).recording()

    assert list(recording.syncs) == job.window
    assert [len(recording.steps[rank]) for rank in (0, 1)] == [20, 20]
    assert [len(recording.requests[rank]) for rank in (0, 1)] == [20, 20]


def test_a_page_does_not_grow_with_the_job(job: JobRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends at its limit of marks; a step above the limit has a page of its own, and an extreme one is omitted."""
    size = job.steps.size // 20
    monkeypatch.setattr(state, "MARKS_A_PAGE", 3 * size + 1)
    assert len(window_page(job, 0, 100).syncs) == 3
    monkeypatch.setattr(state, "MARKS_A_PAGE", 1)
    assert len(window_page(job, 0, 100).syncs) == 1
    monkeypatch.setattr(window, "MAX_STEP_MARKS", 1)
    assert (window_page(job, 0, 100).syncs, window_page(job, 0, 100).next_step) == ([], None)


@pytest.fixture
async def server() -> AsyncIterator[WebServer]:
    server = await serve(config.WebSettings(port=0), FakeView(), None)
    yield server
    await server.close()


async def answer(server: WebServer, path: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}api/v1/jobs/{path}") as response:
        return response.status, await response.json()


async def test_the_window_is_served(server: WebServer) -> None:
    """From the step that the page before names."""
    status, first = await answer(server, f"{JOB}/window?limit=1")
    _, second = await answer(server, f"{JOB}/window?limit=1&from_step={first['next_step']}")

    assert (status, first["job"], first["next_step"], second["next_step"]) == (200, "llama-pretrain", 1200, None)
    assert [page["syncs"][0]["step"] for page in (first, second)] == [1199, 1200]


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("0000000000000000/window", 404, f"unknown job '0000000000000000'; the known jobs are: {JOB}"),
        (f"{JOB}/window?from_step=-1", 400, "from_step = '-1': expected a step's key, a whole number"),
        (f"{JOB}/window?from_step=9223372036854775808", 400, "from_step = '9223372036854775808': "),
        (f"{JOB}/window?limit=1001", 400, "limit = '1001': "),
        (f"{JOB}/window?cursor=x", 400, "cursor = 'x': unknown parameter; allowed here: from_step, limit"),
    ],
)
async def test_what_is_no_question_is_refused(server: WebServer, path: str, status: int, error: str) -> None:
    """With one line that names the value and what is allowed."""
    found, body = await answer(server, path)

    assert found == status
    assert body["error"].startswith(error)
