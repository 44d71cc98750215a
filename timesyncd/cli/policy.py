"""Show the policy in a running job's plan; with POLICY, request that policy."""

from __future__ import annotations

import json
import os
import socket
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from timesyncd.cli._common import add_config_argument
from timesyncd.cli._policy_jobs import PlannedPolicy, RunningJob, find_job
from timesyncd.client.paths import runtime_dir
from timesyncd.errors import ConfigError, Refused, Unreachable
from timesyncd.ipc.job_datagram import SOCKET_NAME, encode_request
from timesyncd.training.policy.text import parse_policy

#: A request passes the daemon, the broker and the hub's next round; a lost one is sent again.
TIMEOUT_S = 10.0
RETRY_AFTER_S = 2.0
CHECK_INTERVAL_S = 0.2


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="a running job, by its name or id")
    parser.add_argument(
        "policy",
        nargs="?",
        metavar="POLICY",
        help="the policy to request, such as 'local_sgd(h=8)' or 'bsp + topk(ratio=0.01)'",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--url", help="the daemon's status page (default: from the configuration)")
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
    folder = runtime_dir(args.runtime_dir)
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
