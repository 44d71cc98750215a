"""Runs a training script with metered ranks. Output, input, signals and exit status stay the script's own."""

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

#: Signals that are forwarded to the script.
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

_PR_SET_PDEATHSIG = 1
_CHECK_INTERVAL_S = 0.1


class CommandNotStarted(TimesyncdError):
    """
    The command does not exist or may not be executed; `status` is the exit status that a shell would give (127, 126).
    """

    def __init__(self, command: str, why: str, status: int) -> None:
        super().__init__(f"{command}: {why}")
        self.status = status


def environment(environ: Mapping[str, str], record: Path, job: str) -> dict[str, str]:
    """
    The script's environment, in which every Python interpreter finds the hook's sitecustomize first and records to
    `record`.
    """
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
    The script's exit status, 128 + n if signal n ended it. `then` is called once if the script still runs after
    `after_s`.

    The script gets a process group of its own in the terminal's foreground: Ctrl-C reaches all its processes, whatever
    its input is, and a signal to this process is forwarded once. It inherits open file descriptors. Raises
    CommandNotStarted.
    """
    terminal = _terminal()

    def begin() -> None:
        _end_with_parent()
        _give_terminal(terminal, os.getpgrp())

    try:
        child = subprocess.Popen(list(command), env=dict(environ), process_group=0, close_fds=False, preexec_fn=begin)  # noqa: PLW1509  no threads here
    except OSError as error:
        _take_back_terminal(terminal)
        raise CommandNotStarted(
            command[0], error.strerror or str(error), 127 if isinstance(error, FileNotFoundError) else 126
        ) from None
    former = {number: signal.signal(number, _forwarder(child.pid)) for number in _FORWARDED}
    try:
        return _wait(child, terminal, after_s, then)
    finally:
        _take_back_terminal(terminal)
        for number, handler in former.items():
            signal.signal(number, handler)


def _end_with_parent() -> None:
    """In the child: SIGTERM ends the script when this process dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _forwarder(pid: int) -> Callable[[int, FrameType | None], None]:
    def forward(number: int, _: FrameType | None) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    return forward


def _terminal() -> int | None:
    """The controlling terminal, if this process is in its foreground."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError:
        return None
    if _foreground_group(terminal) == os.getpgrp():
        return terminal
    os.close(terminal)
    return None


def _foreground_group(terminal: int) -> int | None:
    """The foreground process group; None: the terminal was hung up."""
    try:
        return os.tcgetpgrp(terminal)
    except OSError:
        return None


def _take_back_terminal(terminal: int | None) -> None:
    _give_terminal(terminal, os.getpgrp())
    if terminal is not None:
        os.close(terminal)


def _give_terminal(terminal: int | None, group: int) -> None:
    """Puts `group` into the foreground. A background process may do that only with SIGTTOU ignored."""
    if terminal is None:
        return
    former = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        os.tcsetpgrp(terminal, group)
    except OSError:
        pass  # the terminal was hung up, or the group has ended
    finally:
        signal.signal(signal.SIGTTOU, former)


def _wait(child: subprocess.Popen[bytes], terminal: int | None, after_s: float | None, then: Callable[[], None]) -> int:
    """Waits for the script. Ctrl-Z stops this process and its group with the script, and `fg` continues both."""
    until = None if after_s is None else time.monotonic() + after_s
    while True:
        pid, status = os.waitpid(child.pid, os.WUNTRACED | (os.WNOHANG if until is not None else 0))
        if pid == 0:
            if until is not None and time.monotonic() >= until:
                until = None
                then()
            else:
                time.sleep(_CHECK_INTERVAL_S)
        elif os.WIFSTOPPED(status):
            if terminal is not None:
                _give_terminal(terminal, os.getpgrp())
                os.killpg(0, signal.SIGTSTP)
                if _foreground_group(terminal) == os.getpgrp():  # continued in the foreground
                    _give_terminal(terminal, child.pid)
                os.killpg(child.pid, signal.SIGCONT)
        else:
            code = os.waitstatus_to_exitcode(status)
            child.returncode = code
            return 128 - code if code < 0 else code
