"""Run an unmodified training script with metered ranks, and report what synchronization costs (report.html, report.json)."""

from __future__ import annotations

import argparse
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from pathlib import Path

from timesyncd.cli._common import audit_extra_is_missing, is_missing
from timesyncd.cli._log_output import print_error
from timesyncd.cli._parser import FileName
from timesyncd.client.files import read_file
from timesyncd.errors import TimesyncdError, TraceError
from timesyncd.units import printable

EXAMPLES = (
    "timesyncd run-audit -- torchrun --nproc-per-node 4 train.py",
    "timesyncd run-audit --out audit --seconds 300 -- python train.py",
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("timesyncd-audit"),
        metavar="DIR",
        help="folder for the report (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        metavar="N",
        help="also write a report after N seconds, while the script continues",
    )
    parser.add_argument(
        "script",
        nargs=argparse.REMAINDER,
        type=FileName,
        metavar="-- COMMAND",
        help="for example torchrun train.py, or python train.py",
    )


def run(args: Namespace) -> int:
    """
    The script's exit status (128 + n: signal n ended it), even without a report; 2: usage error; 126, 127: not started.
    """
    command = args.script[1:] if args.script[:1] == ["--"] else args.script
    if not command:
        print(
            "timesyncd run-audit: no command given; example: timesyncd run-audit -- torchrun train.py", file=sys.stderr
        )
        return 2
    if audit_extra_is_missing("run-audit"):
        return 2
    from timesyncd.audit.script import CommandNotStarted, environment, run_script

    marks = args.out / f"marks-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
    environ = environment(os.environ, marks, _name(command))
    is_new = is_missing(args.out)
    can_record = _created(marks)
    try:
        if not can_record:
            return run_script(command, os.environ)
        status = run_script(command, environ, args.seconds, lambda: _report(marks, args.out))
    except CommandNotStarted as error:
        print_error(f"timesyncd: {error}")
        return error.status
    finally:
        _remove_empty(marks, *([args.out] if is_new else []))
    _report(marks, args.out)
    return status


def _created(marks: Path) -> bool:
    """Whether ranks can record to this folder; if not, prints why. The script runs in both cases."""
    try:
        marks.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(
            f"timesyncd run-audit: cannot create {marks}: {error.strerror}; the script runs without an audit; name another folder with --out",
            file=sys.stderr,
            flush=True,
        )
        return False
    return True


def _remove_empty(*folders: Path) -> None:
    for folder in folders:
        with suppress(OSError):  # it has content
            folder.rmdir()


def _report(marks: Path, out: Path) -> None:
    """Writes the report, and its summary to stderr, after the script's own output."""
    try:
        lines = _written(marks, out)
    except TimesyncdError as error:
        lines = [f"no report: {_failure_reason(marks, error)}"]
    except Exception as error:  # noqa: BLE001  a bug here must not change the script's status
        lines = [f"no report, because of a bug in timesyncd: {type(error).__name__}: {error}"]
    print("\n".join(printable(f"timesyncd: {line}") for line in lines), file=sys.stderr, flush=True)


def _written(marks: Path, out: Path) -> list[str]:
    """
    Writes the report, and returns its summary. The modules that draw it take most of a second to load, so they are not
    loaded where no rank was metered. Raises TimesyncdError.
    """
    if not list(marks.glob("*.marks")):
        raise TraceError(
            "no rank was metered: no process recorded an update of parameters in a process group of torch.distributed"
        )
    from timesyncd.audit.html import summary, write
    from timesyncd.jobs.recording_files import load

    return summary(write(load(marks), out), out)


def _failure_reason(marks: Path, error: TimesyncdError) -> str:
    for note in sorted(marks.glob("*.note")):
        with suppress(OSError):
            for line in read_file(note).decode(errors="replace").splitlines()[:1]:
                return f"{note.name}: {line}"
    return str(error)


def _name(command: list[str]) -> str:
    """The name of the job: that of its script."""
    script = next((Path(word).stem for word in command if word.endswith(".py")), Path(command[0]).name)
    return script or "script"


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds
