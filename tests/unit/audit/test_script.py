"""A script under `timesyncd run-audit`: its status, output, signals and interpreter stay its own."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from timesyncd.__main__ import main
from timesyncd.audit.script import CommandNotStarted, environment, run_script

PYTHON = sys.executable

#: Prints how many signals it received within 0.3 s of the first.
COUNTS = """
import signal, sys, time
received = []
for name in ("SIGINT", "SIGTERM", "SIGUSR1"):
    signal.signal(getattr(signal, name), lambda number, _: received.append(number))
print("ready", flush=True)
while not received:
    time.sleep(0.01)
time.sleep(0.3)
print("received", len(received), flush=True)
sys.exit(5)
"""


def under_audit(folder: Path, *command: str) -> list[str]:
    return [PYTHON, "-m", "timesyncd", "run-audit", "--out", str(folder / "out"), "--", *command]


@contextmanager
def started(command: list[str], **more: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **more)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import os; os.kill(os.getpid(), 15)", 143),
    ],
)
def test_the_status_is_the_script_s(body: str, status: int) -> None:
    """The exit status is returned; 128 + n if signal n ended it."""
    assert run_script([PYTHON, "-c", body], os.environ) == status


def test_a_command_that_cannot_start_has_the_shell_s_status(tmp_path: Path) -> None:
    """127 if the command does not exist, 126 if it may not be executed."""
    (tmp_path / "text").write_text("no program")
    with pytest.raises(CommandNotStarted, match="no-such-command: No such file") as missing:
        run_script(["no-such-command"], os.environ)
    with pytest.raises(CommandNotStarted, match="Permission denied") as refused:
        run_script([str(tmp_path / "text")], os.environ)

    assert (missing.value.status, refused.value.status) == (127, 126)


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command the exit status is 2, with an example."""
    assert main(["run-audit", "--"]) == 2
    assert "timesyncd run-audit -- torchrun train.py" in capsys.readouterr().err


def test_the_status_outlives_the_report(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """If no report can be written, the status is still the script's, and one line gives the reason."""
    (tmp_path / "out").write_text("in the way")

    status = main(["run-audit", "--out", str(tmp_path / "out"), "--", PYTHON, "-c", "raise SystemExit(3)"])

    assert status == 3
    assert capfd.readouterr().err.endswith("the script runs without an audit; name another folder with --out\n")


def test_output_and_input_pass_through(tmp_path: Path) -> None:
    """Every byte of input and output is the script's; the summary follows on stderr."""
    body = (
        "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1]); sys.stderr.buffer.write(b'\\xff own\\n')"
    )
    done = subprocess.run(
        under_audit(tmp_path, PYTHON, "-c", body), input=b"\x00ab\xfe", capture_output=True, timeout=120, check=False
    )

    assert (done.returncode, done.stdout) == (0, b"\xfeba\x00")
    assert done.stderr.startswith(b"\xff own\n")
    assert b"no rank was metered" in done.stderr


@pytest.mark.parametrize("whole_group", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_script_once(tmp_path: Path, number: signal.Signals, whole_group: bool) -> None:
    """A signal to run-audit or to its process group reaches the script once, and the script's status counts."""
    with started(under_audit(tmp_path, PYTHON, "-c", COUNTS), start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        if whole_group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)

        assert process.stdout.readline() == b"received 1\n"
        assert process.wait(60) == 5


def test_ctrl_c_at_a_terminal_reaches_the_script_once(tmp_path: Path) -> None:
    """The script is in the terminal's foreground: Ctrl-C reaches it alone, and it can read from the terminal."""
    terminal, other_end = pty.openpty()

    def in_front() -> None:
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    command = under_audit(tmp_path, PYTHON, "-c", "print(input(), flush=True)\n" + COUNTS)
    try:
        with started(command, stdin=other_end, start_new_session=True, preexec_fn=in_front) as process:
            assert process.stdout is not None
            os.write(terminal, b"typed\n")
            assert [process.stdout.readline() for _ in range(2)] == [b"typed\n", b"ready\n"]
            os.write(terminal, b"\x03")

            assert process.stdout.readline() == b"received 1\n"
            assert process.wait(60) == 5
    finally:
        os.close(terminal)
        os.close(other_end)


@contextmanager
def at_a_terminal(command: list[str], **more: object) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """The terminal's other end, and a foreground process whose input is not the terminal."""
    terminal, other_end = pty.openpty()

    def in_front() -> None:
        import fcntl
        import termios

        fcntl.ioctl(other_end, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the test runner may ignore it

    try:
        with started(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=in_front, **more) as process:
            yield terminal, process
    finally:
        os.close(terminal)
        os.close(other_end)


def test_ctrl_c_reaches_all_of_the_script_whatever_its_input_is(tmp_path: Path) -> None:
    """
    Ctrl-C ends the command that a shell script with other input waits for.

    The command prints "ready" first, since between its fork and its start a shell's child loses the signal.
    """
    sleeps = shlex.join([PYTHON, "-c", "import time; print('ready', flush=True); time.sleep(120)"])
    with at_a_terminal(under_audit(tmp_path, "bash", "-c", f"{sleeps}; exit 3")) as (terminal, process):
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        os.write(terminal, b"\x03")

        assert process.wait(60) == 130


def test_ctrl_z_stops_the_surrounding_script_too(tmp_path: Path) -> None:
    """A surrounding shell script stops with run-audit, and `fg` continues both."""
    inner = shlex.join(under_audit(tmp_path, "bash", "-c", "echo ready; until [ -e go ]; do sleep 0.1; done; echo on"))
    outer = f"bash -c {shlex.quote(inner + '; echo after $?')}; echo stopped; fg > /dev/null"
    with at_a_terminal(["bash", "--norc", "-ic", outer], cwd=tmp_path) as (terminal, process):
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        os.write(terminal, b"\x1a")
        assert process.stdout.readline() == b"stopped\n"
        (tmp_path / "go").touch()

        assert [process.stdout.readline() for _ in range(2)] == [b"on\n", b"after 0\n"]


def test_the_script_inherits_open_descriptors(tmp_path: Path) -> None:
    """A shell's `<(...)` is a descriptor that the script inherits."""
    command = f"{shlex.join(under_audit(tmp_path, 'cat'))} <(echo config)"
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=120, check=False)

    assert (done.returncode, done.stdout) == (0, b"config\n")


def test_a_script_ends_with_run_audit(tmp_path: Path) -> None:
    """If run-audit is killed, the script receives SIGTERM."""
    with started(under_audit(tmp_path, PYTHON, "-c", COUNTS)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.kill()

        assert process.stdout.readline() == b"received 1\n"


def test_then_is_called_once() -> None:
    """`then` is called after `after_s`, while the script continues to its own end."""
    done: list[float] = []

    status = run_script(
        [PYTHON, "-c", "import time; time.sleep(0.8); raise SystemExit(4)"],
        os.environ,
        after_s=0.2,
        then=lambda: done.append(time.monotonic()),
    )

    assert (status, len(done)) == (4, 1)


SEES = """
import sys
print(sorted(name for name in sys.modules if name.split(".")[0] in ("timesyncd", "torch", "ctypes", "socket")))
print([path for path in sys.path if "audit" in path])
print(sys.modules.get("sitecustomize"))
"""


def in_hook(tmp_path: Path, body: str, python: str = PYTHON, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs a script's interpreter in the environment of run-audit."""
    around = environment(os.environ | environ, tmp_path / "marks", "job")
    command = [python, "-c", body]
    return subprocess.run(command, env=around, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)


def test_an_interpreter_without_torch_is_unchanged(tmp_path: Path) -> None:
    """A process that never imports torch.distributed loads no module of timesyncd and has no path of it."""
    seen = in_hook(tmp_path, SEES)

    assert (seen.stdout.splitlines()[:2], seen.stderr) == (["[]", "[]"], "")
    assert not (tmp_path / "marks").exists()


def test_the_user_s_own_sitecustomize_runs(tmp_path: Path) -> None:
    """The user's sitecustomize is executed, and `sitecustomize` names it."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins; builtins.OWN = __file__\n")

    seen = in_hook(tmp_path, "import sitecustomize; print(OWN == sitecustomize.__file__, OWN)", PYTHONPATH=str(own))

    assert seen.stdout == f"True {own / 'sitecustomize.py'}\n"


def test_the_user_s_sitecustomize_fails_as_without_run_audit(tmp_path: Path) -> None:
    """Python reports its error and continues."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("raise ValueError('its own')\n")

    seen = in_hook(tmp_path, "print('goes on')", PYTHONPATH=str(own))

    assert (seen.returncode, seen.stdout) == (0, "goes on\n")
    assert "its own" in seen.stderr


#: The part of torch that the hook wraps, in which metering fails.
FAKE_TORCH = "def init_process_group(backend):\n    return f'made {backend}'\n"


def test_the_script_s_interpreter_need_not_have_timesyncd(tmp_path: Path) -> None:
    """An interpreter without timesyncd finds run-audit's, and a failure of metering is a note, not an error."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = str(tmp_path / "venv" / "bin" / "python")
    for package in ("torch", "torch/distributed"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / "torch" / "distributed" / "distributed_c10d.py").write_text(FAKE_TORCH)
    (tmp_path / "torch" / "distributed" / "__init__.py").write_text("from .distributed_c10d import *\n")
    body = """
import timesyncd.client, torch.distributed as dist
print(dist.init_process_group("gloo"), dist.init_process_group.__name__)
try:
    import pydantic
except ModuleNotFoundError:
    print("nothing else of ours")
"""

    seen = in_hook(tmp_path, body, python)
    notes = [note.read_text() for note in (tmp_path / "marks").glob("*.note")]

    assert (seen.stdout, seen.stderr) == ("made gloo init_process_group\nnothing else of ours\n", "")
    assert len(notes) == 1
    assert notes[0].startswith("not metered: ")
