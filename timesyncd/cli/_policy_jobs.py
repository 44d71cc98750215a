"""A running job and the policy in its plan: from the daemon's page, else from the job segment that its ranks read."""

from __future__ import annotations

import os
import re
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timesyncd.cli._common import page_url
from timesyncd.client.api import get_json
from timesyncd.client.preflight_check import DEFAULT_URL
from timesyncd.clocks import boot_id, time_namespace
from timesyncd.errors import ConfigError, Malformed, Unreachable
from timesyncd.ipc.clock_segment import Epoch
from timesyncd.ipc.job_datagram import job_id
from timesyncd.ipc.job_segment import JobReader, segment_path

REPLY_TIMEOUT_S = 5.0

#: Without the page, attempts of a job are searched up to this number.
MAX_ATTEMPTS = 100

_ID = r"[0-9a-f]{16}"


@dataclass(frozen=True, slots=True)
class PlannedPolicy:
    """The policy in a job's plan; `version` counts its changes."""

    policy: str
    version: int


@dataclass(frozen=True, slots=True)
class RunningJob:
    """`uid` None: the owner is unknown. `read` returns the current policy; None: there is no plan any more."""

    id: str
    name: str
    uid: int | None
    read: Callable[[], PlannedPolicy | None]


def find_job(wanted: str, args: Namespace, folder: Path) -> RunningJob:
    """A running job by its name or id. Raises ConfigError if there is none, or if the name is ambiguous."""
    url = args.url or _local_url(args)
    try:
        return _on_page(wanted, url)
    except Unreachable as error:
        if args.url is not None:
            raise
        found = _in_segments(wanted, folder)
        if found is None:
            missing = f"no job {wanted!r} of this user has ranks on this node, and other jobs need the daemon's page"
            raise ConfigError(f"{missing}: {error}") from error
        return found


def _on_page(wanted: str, url: str) -> RunningJob:
    """An id is tried first: it needs no permission to list jobs."""
    job = _fetched(url, f"jobs/{wanted}") if re.fullmatch(_ID, wanted) else None
    if job is None:
        job = _named(wanted, (_fetched(url, "jobs?limit=1000") or {"items": []})["items"])
    id = job["job_id"]
    return RunningJob(id, job["job"], job["uid"], lambda: _planned_on_page(_fetched(url, f"jobs/{id}")))


def _named(wanted: str, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """The newest attempt of the jobs of this name; the user's own jobs take precedence over those of others."""
    named = [job for job in jobs if job["job"] == wanted]
    named = [job for job in named if job["uid"] == os.getuid()] or named
    if not named:
        known = ", ".join(sorted({repr(job["job"]) for job in jobs})) or "none"
        raise ConfigError(f"no job {wanted!r}; known jobs: {known}")
    if len({job["uid"] for job in named}) > 1:
        ids = ", ".join(f"{job['job_id']} of user {job['uid']}" for job in named)
        raise ConfigError(f"several jobs are named {wanted!r}: give one of the ids: {ids}")
    return max(named, key=lambda job: int(job["attempt"]))


def _planned_on_page(job: dict[str, Any] | None) -> PlannedPolicy | None:
    return None if job is None else PlannedPolicy(job["plan"]["policy"], job["plan"]["policy_version"])


def _fetched(url: str, what: str) -> Any:
    """The reply; None: not found. Raises Unreachable, also if the daemon denies access."""
    try:
        status, reply = get_json(f"{url.rstrip('/')}/api/v1/{what}", os.environ.get("TIMESYNCD_TOKEN"), REPLY_TIMEOUT_S)
    except Malformed as error:
        raise Unreachable(str(error)) from error
    if status == 404:
        return None
    if status != 200:
        error_text = reply.get("error") if isinstance(reply, dict) else None
        raise Unreachable(f"{url}: {error_text or f'HTTP status {status}'}")
    return reply


def _in_segments(wanted: str, folder: Path) -> RunningJob | None:
    ids = [job_id(os.getuid(), wanted, attempt) for attempt in range(MAX_ATTEMPTS)]
    if re.fullmatch(_ID, wanted):
        ids.append(wanted)
    existing = [id for id in ids if segment_path(folder, id).exists()]
    if not existing:
        return None
    reader = JobReader(segment_path(folder, existing[-1]), Epoch(boot_id(), time_namespace()))
    return RunningJob(existing[-1], wanted, None, lambda: _planned_in(reader))


def _planned_in(reader: JobReader) -> PlannedPolicy | None:
    found = reader.read()
    return None if found is None else PlannedPolicy(found[1].policy, found[1].policy_version)


def _local_url(args: Namespace) -> str:
    """The URL of this machine's daemon by the configuration, else its default one."""
    try:
        return page_url(args) if args.config.exists() else DEFAULT_URL
    except ConfigError:
        return DEFAULT_URL
