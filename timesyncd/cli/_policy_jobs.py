"""A running job and what its plan says of its policy: asked of the daemon's page, else read where its ranks read it."""

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

#: Without the page, so many attempts of a job are looked for.
MAX_ATTEMPTS = 100

_ID = r"[0-9a-f]{16}"


@dataclass(frozen=True, slots=True)
class PlannedPolicy:
    policy: str
    version: int


@dataclass(frozen=True, slots=True)
class RunningJob:
    """`uid` None: it is not known whose. `read`: what is planned now; None: nothing is said of the job any more."""

    id: str
    name: str
    uid: int | None
    read: Callable[[], PlannedPolicy | None]


def find_job(wanted: str, args: Namespace, folder: Path) -> RunningJob:
    """By name or id. Raises ConfigError where there is none, or several are called so."""
    url = args.url or _local_url(args)
    try:
        return _on_page(wanted, url)
    except Unreachable as error:
        if args.url is not None:
            raise
        found = _in_segments(wanted, folder)
        if found is None:
            unseen = f"no job {wanted!r} of yours has ranks on this node, and others cannot be seen"
            raise ConfigError(f"{unseen}: {error}") from error
        return found


def _on_page(wanted: str, url: str) -> RunningJob:
    """An id is itself, and may be asked for by whom may list no jobs."""
    job = _asked(url, f"jobs/{wanted}") if re.fullmatch(_ID, wanted) else None
    if job is None:
        job = _named(wanted, (_asked(url, "jobs?limit=1000") or {"items": []})["items"])
    id = job["job_id"]
    return RunningJob(id, job["job"], job["uid"], lambda: _planned_on_page(_asked(url, f"jobs/{id}")))


def _named(wanted: str, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """Of one's own jobs of a name rather than of others', and of these the last attempt."""
    named = [job for job in jobs if job["job"] == wanted]
    named = [job for job in named if job["uid"] == os.getuid()] or named
    if not named:
        known = ", ".join(sorted({repr(job["job"]) for job in jobs})) or "none"
        raise ConfigError(f"there is no job {wanted!r}; there are: {known}")
    if len({job["uid"] for job in named}) > 1:
        ids = ", ".join(f"{job['job_id']} of user {job['uid']}" for job in named)
        raise ConfigError(f"several jobs are called {wanted!r}: give the id of one: {ids}")
    return max(named, key=lambda job: int(job["attempt"]))


def _planned_on_page(job: dict[str, Any] | None) -> PlannedPolicy | None:
    return None if job is None else PlannedPolicy(job["plan"]["policy"], job["plan"]["policy_version"])


def _asked(url: str, what: str) -> Any:
    """None: there is no such thing. Raises Unreachable, also where it does not let one see."""
    try:
        status, told = get_json(f"{url.rstrip('/')}/api/v1/{what}", os.environ.get("TIMESYNCD_TOKEN"), REPLY_TIMEOUT_S)
    except Malformed as error:
        raise Unreachable(str(error)) from error
    if status == 404:
        return None
    if status != 200:
        said = told.get("error") if isinstance(told, dict) else None
        raise Unreachable(f"{url}: {said or f'it answers with status {status}'}")
    return told


def _in_segments(wanted: str, folder: Path) -> RunningJob | None:
    ids = [job_id(os.getuid(), wanted, attempt) for attempt in range(MAX_ATTEMPTS)]
    if re.fullmatch(_ID, wanted):
        ids.append(wanted)
    there = [id for id in ids if segment_path(folder, id).exists()]
    if not there:
        return None
    reader = JobReader(segment_path(folder, there[-1]), Epoch(boot_id(), time_namespace()))
    return RunningJob(there[-1], wanted, None, lambda: _planned_in(reader))


def _planned_in(reader: JobReader) -> PlannedPolicy | None:
    found = reader.read()
    return None if found is None else PlannedPolicy(found[1].policy, found[1].policy_version)


def _local_url(args: Namespace) -> str:
    """Of this machine's daemon; its usual address where the configuration is not there, or says of none."""
    try:
        return page_url(args) if args.config.exists() else DEFAULT_URL
    except ConfigError:
        return DEFAULT_URL
