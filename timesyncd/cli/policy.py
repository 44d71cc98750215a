"""Show the policy in a running job's plan; with POLICY, request that policy."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timesyncd.cli._common import add_config_argument, add_url_argument, is_missing, page_url
from timesyncd.client.api import get_json, list_items, unlike_timesyncd
from timesyncd.client.clock import find_runtime_dir
from timesyncd.client.preflight_check import DEFAULT_URL
from timesyncd.clocks import boot_id, time_namespace
from timesyncd.errors import ConfigError, Malformed, Refused, Unreachable
from timesyncd.ipc.clock_segment import Epoch
from timesyncd.ipc.job_datagram import SOCKET_NAME, encode_request, job_id
from timesyncd.ipc.job_segment import JobReader, segment_path
from timesyncd.training.policy.text import parse_policy

#: A request passes the daemon, the broker and the hub's next round; a lost one is sent again.
TIMEOUT_S = 10.0
RETRY_AFTER_S = 2.0
CHECK_INTERVAL_S = 0.2


EXAMPLES = (
    "timesyncd policy llama",
    "timesyncd policy llama 'local_sgd(h=8)'",
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="a running job, by its name or id")
    parser.add_argument(
        "policy",
        nargs="?",
        metavar="POLICY",
        help="the policy to request, such as 'local_sgd(h=8)' or 'bsp + topk(ratio=0.01)'",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    add_url_argument(parser)
    parser.add_argument(
        "--runtime-dir",
        type=Path,
        metavar="DIR",
        help="runtime folder (default: $TIMESYNCD_RUNTIME_DIR, else /run/timesyncd)",
    )
    add_config_argument(parser)


def run(args: Namespace) -> int:
    """
    0 if the plan has the policy, or none is given, else 1. Raises ConfigError for an invalid policy or an unknown job.
    """
    requested = None if args.policy is None else _parsed(args.policy)
    folder = find_runtime_dir(args.runtime_dir)
    job = find_job(args.job, args, folder)
    planned = job.read() if requested is None else _request(job, requested, folder / SOCKET_NAME)
    if planned is None:
        raise Unreachable(f"job {job.name!r}: no plan for 30 s: the job has ended, or no hub publishes")
    print(json.dumps(_fields(job, planned)) if args.json else _line(job, planned))
    return 0


def _parsed(text: str) -> str:
    """The policy in its normal form. Raises ConfigError."""
    try:
        return str(parse_policy(text))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _request(job: RunningJob, requested: str, path: Path) -> PlannedPolicy:
    """Requests the policy until the plan has it. Raises Refused, Unreachable."""
    if job.uid is not None and os.getuid() not in (0, job.uid):
        raise Refused(f"job {job.name!r} belongs to user {job.uid}: only that user and root may change its policy")
    before = planned = job.read()
    began_s = sent_s = time.monotonic()
    is_sent = False
    while planned is None or planned.policy != requested:
        if planned is not None and before is not None and planned.version != before.version:
            raise Refused(f"job {job.name!r}: another request changed its policy meanwhile, to {planned.policy}")
        now_s = time.monotonic()
        if now_s - began_s > TIMEOUT_S:
            raise Refused(_timeout_text(job, planned))
        if not is_sent or now_s - sent_s >= RETRY_AFTER_S:
            is_sent, sent_s = _sent(path, encode_request(job.id, requested)), now_s
        time.sleep(CHECK_INTERVAL_S)
        planned = job.read()
        before = before or planned
    return planned


def _timeout_text(job: RunningJob, planned: PlannedPolicy | None) -> str:
    failure = f"job {job.name!r}: its plan does not have this policy after {TIMEOUT_S:.0f} s"
    if planned is None:
        return f"{failure}: no plan for 30 s: the job has ended, or no hub publishes (see timesyncd status)"
    return f"{failure}: no hub accepted the request: the job belongs to another user, or the hub did not receive it; see the hub's log"


def _sent(path: Path, request: bytes) -> bool:
    """Sends the request; False: the daemon's queue is full. Raises Unreachable."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        try:
            sender.sendto(request, str(path))
        except BlockingIOError:
            return False
        except OSError as error:
            raise Unreachable(
                f"{path}: {error.strerror or error}: no daemon listens on this socket; check systemctl status timesyncd"
            ) from error
    return True


def _fields(job: RunningJob, planned: PlannedPolicy) -> dict[str, object]:
    return {
        "job": job.name,
        "job_id": job.id,
        "uid": job.uid,
        "policy": planned.policy,
        "policy_version": planned.version,
    }


def _line(job: RunningJob, planned: PlannedPolicy) -> str:
    policy = (
        f"{planned.policy} (change {planned.version})"
        if planned.policy
        else "no policy planned; the ranks follow their script"
    )
    name = "".join(each if each.isprintable() else "?" for each in job.name)
    return f"{name} {job.id}: {policy}"


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


@dataclass(frozen=True, slots=True)
class _PageJob:
    """A job as a daemon's page lists it."""

    id: str
    name: str
    uid: int
    attempt: int
    planned: PlannedPolicy

    @classmethod
    def of(cls, reply: Any, url: str) -> _PageJob:
        """Raises Unreachable for a reply of another form."""
        try:
            plan = PlannedPolicy(str(reply["plan"]["policy"]), int(reply["plan"]["policy_version"]))
            return cls(str(reply["job_id"]), str(reply["job"]), int(reply["uid"]), int(reply["attempt"]), plan)
        except (KeyError, TypeError, ValueError) as error:
            raise Unreachable(str(unlike_timesyncd(url, "jobs", "a job without its id, owner or plan"))) from error


def _on_page(wanted: str, url: str) -> RunningJob:
    """An id is tried first: it needs no permission to list jobs."""
    reply = _fetched(url, f"jobs/{wanted}") if re.fullmatch(_ID, wanted) else None
    job = _named(wanted, _jobs_on_page(url)) if reply is None else _PageJob.of(reply, url)
    return RunningJob(job.id, job.name, job.uid, lambda: _planned_on_page(url, job.id))


def _jobs_on_page(url: str) -> list[_PageJob]:
    try:
        found = list(list_items(lambda path: _fetched(url, path), url, "jobs"))
    except Malformed as error:
        raise Unreachable(str(error)) from error
    return [_PageJob.of(each, url) for each in found]


def _named(wanted: str, jobs: Sequence[_PageJob]) -> _PageJob:
    """The newest attempt of the jobs of this name; the user's own jobs take precedence over those of others."""
    named = [job for job in jobs if job.name == wanted]
    named = [job for job in named if job.uid == os.getuid()] or named
    if not named:
        known = ", ".join(sorted({repr(job.name) for job in jobs})) or "none"
        raise ConfigError(f"no job {wanted!r}; known jobs: {known}")
    if len({job.uid for job in named}) > 1:
        ids = ", ".join(f"{job.id} of user {job.uid}" for job in named)
        raise ConfigError(f"several jobs are named {wanted!r}: give one of the ids: {ids}")
    return max(named, key=lambda job: job.attempt)


def _planned_on_page(url: str, id: str) -> PlannedPolicy | None:
    reply = _fetched(url, f"jobs/{id}")
    return None if reply is None else _PageJob.of(reply, url).planned


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
    existing = [id for id in ids if os.path.exists(segment_path(folder, id))]
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
        return DEFAULT_URL if is_missing(args.config) else page_url(args)
    except ConfigError:
        return DEFAULT_URL
