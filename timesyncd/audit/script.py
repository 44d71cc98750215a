"""Runs somebody's training script with its ranks metered: its output, its input, its signals and its status are its own."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from types import FrameType

import timesyncd
from timesyncd.errors import TimesyncdError

#: What a supervisor or a person may send to us and means for the script.
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

_PR_SET_PDEATHSIG = 1
_LOOK_EVERY_S = 0.1


class CommandNotStarted(TimesyncdError):
    """The command is not there, or may not be run; `status` is what a shell would give."""

    def __init__(self, command: str, why: str, status: int) -> None:
        super().__init__(f"{command}: {why}")
        self.status = status


def environment(environ: Mapping[str, str], record: Path, job: str) -> dict[str, str]:
    """The script's environment: its interpreters, whichever they are, find our sitecustomize first, and record there."""
    hook = str(files("timesyncd.audit").joinpath("hook"))
    before = environ.get("PYTHONPATH")
    return {
        **environ,
        "PYTHONPATH": f"{hook}{os.pathsep}{before}" if before else hook,
        "TIMESYNCD_RECORD": str(record.absolute()),
        "TIMESYNCD_AUDIT_JOB": job,
        "TIMESYNCD_AUDIT_PACKAGE": str(Path(timesyncd.__file__).parent),
    }


def run_script(
    command: Sequence[str],
    environ: Mapping[str, str],
    after_s: float | None = None,
    then: Callable[[], None] = lambda: None,
) -> int:
    """
    The script's exit status, 128 + n where a signal n ended it. `then` is called once when `after_s` have passed and it still runs.

    It gets a process group of its own, and with it the terminal: a Ctrl-C reaches all its processes, wherever its input comes from, and a
    signal that is sent to us is passed on to it, once. What was opened for us, it has too. Raises NotStarted.
    """
    terminal = _terminal()

    def begin() -> None:
        _end_with_us()
        _give_terminal(terminal, os.getpgrp())

    try:
        child = subprocess.Popen(list(command), env=dict(environ), process_group=0, close_fds=False, preexec_fn=begin)  # noqa: PLW1509  no threads here
    except OSError as error:
        _leave_terminal(terminal)
        raise CommandNotStarted(
            command[0], error.strerror or str(error), 127 if isinstance(error, FileNotFoundError) else 126
        ) from None
    former = {number: signal.signal(number, _passing_on(child.pid)) for number in _PASSED_ON}
    try:
        return _waited(child, terminal, after_s, then)
    finally:
        _leave_terminal(terminal)
        for number, handler in former.items():
            signal.signal(number, handler)


def _end_with_us() -> None:
    """In the child: whoever kills us outright ends the script too."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _passing_on(pid: int) -> Callable[[int, FrameType | None], None]:
    def pass_on(number: int, _: FrameType | None) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    return pass_on


def _terminal() -> int | None:
    """The terminal that we run at, where we are in front of it."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError:
        return None
    if _front(terminal) == os.getpgrp():
        return terminal
    os.close(terminal)
    return None


def _front(terminal: int) -> int | None:
    """The process group that a key reaches; None: it was hung up."""
    try:
        return os.tcgetpgrp(terminal)
    except OSError:
        return None


def _leave_terminal(terminal: int | None) -> None:
    _give_terminal(terminal, os.getpgrp())
    if terminal is not None:
        os.close(terminal)


def _give_terminal(terminal: int | None, group: int) -> None:
    """Who is not in front may give it away only with SIGTTOU ignored."""
    if terminal is None:
        return
    former = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        os.tcsetpgrp(terminal, group)
    except OSError:
        pass  # it was hung up, or the group is gone
    finally:
        signal.signal(signal.SIGTTOU, former)


def _waited(
    child: subprocess.Popen[bytes], terminal: int | None, after_s: float | None, then: Callable[[], None]
) -> int:
    """Stops when a terminal's Ctrl-Z stops the script, with all that its shell started with us, and goes on with it."""
    until = None if after_s is None else time.monotonic() + after_s
    while True:
        pid, status = os.waitpid(child.pid, os.WUNTRACED | (os.WNOHANG if until is not None else 0))
        if pid == 0:
            if until is not None and time.monotonic() >= until:
                until = None
                then()
            else:
                time.sleep(_LOOK_EVERY_S)
        elif os.WIFSTOPPED(status):
            if terminal is not None:
                _give_terminal(terminal, os.getpgrp())
                os.killpg(0, signal.SIGTSTP)
                if _front(terminal) == os.getpgrp():  # and not continued behind it
                    _give_terminal(terminal, child.pid)
                os.killpg(child.pid, signal.SIGCONT)
        else:
            code = os.waitstatus_to_exitcode(status)
            child.returncode = code
            return 128 - code if code < 0 else code
