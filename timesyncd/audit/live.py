"""Fetches the recording of a running job from a daemon's hub."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError

from timesyncd.client.api import get_json
from timesyncd.config import validation_text
from timesyncd.errors import Malformed, Refused
from timesyncd.jobs.recording import Recording, RecordingMessage

_TIMEOUT_S = 30.0


def recording_of(url: str, wanted: str) -> Recording:
    """
    The recording of a job by its id or name; of several with one name, the newest. Raises Unreachable, Refused,
    Malformed.
    """
    page = url.rstrip("/")
    try:
        return RecordingMessage.model_validate(_window(page, _id_of(page, wanted))).recording()
    except (ValueError, KeyError, TypeError) as error:
        why = validation_text(error) if isinstance(error, ValidationError) else str(error).splitlines()[0]
        raise Malformed(f"{page}/: invalid recording of job {wanted!r}: {why}") from error


def _id_of(page: str, wanted: str) -> str:
    jobs = _jobs(page)
    named = [job for job in jobs if wanted in (job["job_id"], job["job"])]
    if not named:
        known = ", ".join(sorted({str(job["job"]) for job in jobs})) or "none"
        raise Refused(f"{page}/: no job {wanted!r}; known jobs: {known}")
    newest = max(named, key=lambda job: (job["job_id"] == wanted, job["published_realtime_ns"]))
    return str(newest["job_id"])


def _window(page: str, job_id: str) -> dict[str, Any]:
    """All pages of the job's window as one message."""
    path = f"jobs/{quote(job_id)}/window?limit=1000"
    whole: dict[str, Any] = _fetched(page, path)
    step = whole.get("next_step")
    while step is not None:
        more = _fetched(page, f"{path}&from_step={step}")
        for what in ("syncs", "steps", "requests"):
            whole[what] += more[what]
        step = more.get("next_step")
    return whole


def _jobs(page: str) -> list[dict[str, Any]]:
    answer = _fetched(page, "jobs?limit=1000")
    jobs = list(answer["items"])
    while answer["next"] is not None:
        answer = _fetched(page, f"jobs?limit=1000&cursor={answer['next']}")
        jobs += answer["items"]
    return jobs


def _fetched(page: str, what: str) -> Any:
    status, reply = get_json(f"{page}/api/v1/{what}", os.environ.get("TIMESYNCD_TOKEN"), _TIMEOUT_S)
    if status == 200:
        return reply
    error = reply.get("error") if isinstance(reply, dict) else None
    advice = "; set TIMESYNCD_TOKEN to a token of the role reader" if status == 401 else ""
    raise Refused(f"{page}/: {error or f'HTTP status {status}'}{advice}")
