"""Say what could be changed about a training job, and what each change would save, with its error."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from timesyncd.cli._common import add_config_argument, add_url_argument, job_url
from timesyncd.cli._log_output import print_error, print_lines
from timesyncd.cli._parser import FileName
from timesyncd.errors import Refused, TraceError

if TYPE_CHECKING:
    from timesyncd.audit.report import AdviceReport, JobAdvice
    from timesyncd.jobs.recording import Recording


EXAMPLES = ("timesyncd advise llama", "timesyncd advise timesyncd-audit --json")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "job",
        type=FileName,
        metavar="JOB|RECORDING",
        help="a running job, by its name or id; or a folder of ranks' recordings or of an audit, or its recording.json",
    )
    parser.add_argument("--json", action="store_true", help="print the advice as JSON")
    add_url_argument(parser)
    add_config_argument(parser)


def run(args: Namespace) -> int:
    """0: there is advice with a price; 1: none has one; 2: an unknown job or recording."""
    from timesyncd.audit.build import advice_for
    from timesyncd.audit.measured import measured

    try:
        recording = _recording(args)
    except (TraceError, Refused) as error:
        print_error(f"timesyncd: {error}")
        return 2
    found = advice_for(measured(recording))
    if args.json:
        print(found.model_dump_json(indent=2))
    else:
        print_lines(lines(found))
    return 0 if any(one.gain is not None for one in found.advice) else 1


def _recording(args: Namespace) -> Recording:
    """What exists as a file or a folder is a recording, and so is what ends as a folder's path does."""
    from timesyncd.jobs.recording_files import load, recording_of

    is_path = args.job.endswith(os.sep) or os.path.exists(args.job)
    return load(Path(args.job)) if is_path else recording_of(job_url(args), args.job)


def lines(found: JobAdvice) -> list[str]:
    """For a terminal: the changes by their gain, then those without a price and why."""
    from timesyncd.audit.headline import short_duration

    took = "" if found.step_ns is None else f" of {short_duration(found.step_ns.value)}"
    text = [f"Advice for {found.job}, by {found.steps} step{'' if found.steps == 1 else 's'}{took}:"]
    if not found.advice:
        return [*text, "  Unknown: the steps cannot be replayed: timesyncd audit states why in its notes."]
    for number, one in enumerate((one for one in found.advice if one.gain is not None), 1):
        text += _priced_lines(number, one)
    unknown = [f"  - {one.title}: {one.reason}." for one in found.advice if one.gain is None]
    return [*text, *(["Without a price:", *unknown] if unknown else [])]


def _priced_lines(number: int, one: AdviceReport) -> list[str]:
    from timesyncd.audit.headline import percent, short_duration

    assert one.gain is not None and one.gain.low is not None and one.gain.high is not None
    span = f"95 %: {percent(one.gain.low)} to {percent(one.gain.high)}"
    saved = short_duration(one.step_saved_ns or 0)
    found = [f"  {number}. {one.title}: saves {percent(one.gain.value)} of the time ({span}), {saved} of a step."]
    if one.shares is not None:
        shares = ", ".join(f"rank {rank} {percent(share)}" for rank, share in enumerate(one.shares))
        found.append(f"     Shares: {shares}.")
    return [*found, f"     How: {one.action}.", f"     Assumption: {one.assumption}"]
