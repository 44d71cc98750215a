"""Which policy the plan of a running job has for its ranks; with a policy: put that one there."""

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

#: A request's way is the daemon, the broker and the hub's next round. One that is lost is sent again.
TIMEOUT_S = 10.0
RETRY_AFTER_S = 2.0
CHECK_INTERVAL_S = 0.2


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="a job that runs, by its name or its id")
    parser.add_argument("policy", nargs="?", metavar="POLICY", help="as 'local_sgd(h=8)' or 'bsp + topk(ratio=0.01)'")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--url", help="the daemon's status page (default: from the configuration)")
    parser.add_argument("--runtime-dir", type=Path, help="default: $TIMESYNCD_RUNTIME_DIR, else /run/timesyncd")
    add_config_argument(parser)


def run(args: Namespace) -> int:
    """0 when the plan has the policy, else 1; 0 where none is given. ConfigError for what is no policy, or no job."""
    wanted = None if args.policy is None else _checked(args.policy)
    folder = runtime_dir(args.runtime_dir)
    job = find_job(args.job, args, folder)
    planned = job.read() if wanted is None else _put(job, wanted, folder / SOCKET_NAME)
    if planned is None:
        raise Unreachable(f"job {job.name!r}: nothing was heard of it for 30 s: it ended, or no hub speaks")
    print(json.dumps(_fields(job, planned)) if args.json else _line(job, planned))
    return 0


def _checked(text: str) -> str:
    """As it is written. Raises ConfigError."""
    try:
        return str(parse_policy(text))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _put(job: RunningJob, wanted: str, path: Path) -> PlannedPolicy:
    """Have it put into the plan, and see that it is there. Raises Refused, Unreachable."""
    if job.uid is not None and os.getuid() not in (0, job.uid):
        raise Refused(f"job {job.name!r} is user {job.uid}'s: that user may change its policy, and root")
    before = planned = job.read()
    began_s = sent_s = time.monotonic()
    is_sent = False
    while planned is None or planned.policy != wanted:
        if planned is not None and before is not None and planned.version != before.version:
            raise Refused(f"job {job.name!r}: somebody else changed its policy meanwhile, to {planned.policy}")
        now_s = time.monotonic()
        if now_s - began_s > TIMEOUT_S:
            raise Refused(_why_not(job, planned))
        if not is_sent or now_s - sent_s >= RETRY_AFTER_S:
            is_sent, sent_s = _sent(path, encode_request(job.id, wanted)), now_s
        time.sleep(CHECK_INTERVAL_S)
        planned = job.read()
        before = before or planned
    return planned


def _why_not(job: RunningJob, planned: PlannedPolicy | None) -> str:
    tried = f"job {job.name!r}: after {TIMEOUT_S:.0f} s its plan does not have this policy"
    if planned is None:
        return f"{tried}: nothing was heard of the job for 30 s: it ended, or no hub speaks (timesyncd status)"
    return f"{tried}: no hub took it: it is another user's job, or the way to the hub is closed; the hub's log says of what it refused"


def _sent(path: Path, request: bytes) -> bool:
    """False: the daemon has too much to read. Raises Unreachable."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        try:
            sender.sendto(request, str(path))
        except BlockingIOError:
            return False
        except OSError as error:
            raise Unreachable(
                f"{path}: {error.strerror or error}: no daemon listens there; is it running? systemctl status timesyncd"
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
    what = (
        f"{planned.policy} (change {planned.version})"
        if planned.policy
        else "none planned: its ranks go by their script"
    )
    name = "".join(each if each.isprintable() else "?" for each in job.name)
    return f"{name} {job.id}: {what}"
