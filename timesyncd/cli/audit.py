"""Report what synchronization costs a job, its causes, and the gain of each remedy (report.html, report.json)."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from timesyncd.cli._common import add_config_argument, add_url_argument, audit_extra_is_missing, job_url
from timesyncd.cli._log_output import print_error, print_lines
from timesyncd.errors import Refused, TraceError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from timesyncd.jobs.recording import Recording


EXAMPLES = (
    "timesyncd audit --job llama",
    "timesyncd audit --record timesyncd-audit --before last-week --out report",
)


def add_arguments(parser: ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--job", metavar="JOB", help="a running job, by its name or id")
    which.add_argument(
        "--record",
        type=Path,
        metavar="PATH",
        help="a folder of ranks' recordings or of an audit, or its recording.json",
    )
    which.add_argument(
        "--from",
        dest="traces",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="traces of all ranks, also gzip: torch.profiler (Kineto), NCCL Inspector, torch's flight recorder, or a "
        "recording of run-audit; reports "
        "which rank, stage or sequences make a step longer, and what it would take without them",
    )
    parser.add_argument("--before", type=Path, metavar="PATH", help="as --record, of before a change, to compare with")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("timesyncd-audit"),
        metavar="DIR",
        help="folder for the report (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print report.json instead of its summary")
    add_url_argument(parser)
    add_config_argument(parser)


def run(args: Namespace) -> int:
    """0; 2 without the audit extra, or for an unknown job or recording. Raises TimesyncdError for other failures."""
    if audit_extra_is_missing("audit"):
        return 2
    if args.traces is not None:
        return _run_from(args)
    from timesyncd.audit.html import summary, write, write_whole
    from timesyncd.jobs.recording import RecordingMessage
    from timesyncd.jobs.recording_files import DOCUMENT

    try:
        recording, before = _recordings(args)
    except (TraceError, Refused) as error:
        print_error(f"timesyncd: {error}")
        return 2
    if args.job is not None:
        write_whole(args.out / DOCUMENT, RecordingMessage.of(recording).model_dump_json())
    found = write(recording, args.out, before)
    _print(found, summary(found, args.out), args)
    return 0


def _run_from(args: Namespace) -> int:
    """0: the report is written, also where it states why nothing is named; 2: a file cannot be read."""
    from timesyncd.audit.blame import blame_lines, blame_report
    from timesyncd.audit.blame_page import write_blame
    from timesyncd.audit.trace_files import read_traces

    if args.before is not None:
        print("timesyncd: --before compares recordings; it is not possible with --from", file=sys.stderr)
        return 2
    traces, errors = read_traces(args.traces)
    for error in errors:
        print_error(f"timesyncd: {error}")
    if errors:
        return 2
    found = blame_report([str(path) for path in args.traces], traces)
    write_blame(found, args.out)
    lines = [*blame_lines(found), f"Report: {args.out / 'report.html'}"]
    _print(found, lines, args)
    return 0


def _print(found: BaseModel, lines: list[str], args: Namespace) -> None:
    if args.json:
        print(found.model_dump_json(indent=2))
    else:
        print_lines(lines)


def _recordings(args: Namespace) -> tuple[Recording, Recording | None]:
    from timesyncd.jobs.recording_files import load, recording_of

    before = None if args.before is None else load(args.before)
    return load(args.record) if args.job is None else recording_of(job_url(args), args.job), before
