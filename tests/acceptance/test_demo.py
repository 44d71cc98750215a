"""`timesyncd demo`: its last line, its substitutes for missing programs, its view, and its clean-up."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from timesyncd.simulation.bed import host

pytestmark = pytest.mark.integration

VARIABLE = "TIMESYNCD_DEMO_TEST"
DEMO = [sys.executable, "-m", "timesyncd", "demo"]

#: A demo that still runs then is killed: its own longest wait is 90 s.
LONGEST_S = 120.0

KEYS = [
    "page", "ptp", "nodes", "samples_stored", "gm_bound_ns", "contained", "contained_without_offset", "alignment_ns",
    "sync_overhead", "straggler_rank", "leftovers",
]  # fmt: skip

#: A user id that is not root, with no right that root would have; what belongs to us stays ours.
NOT_ROOT = ["unshare", "--user", "--map-user=65534", "--map-group=65534"]

STARTING, WAITING, LOOKING = "starting", "status page", "every node has a valid sample"


@dataclass(frozen=True, slots=True)
class Ended:
    """The status and output of a demo that has ended, and its leftovers."""

    status: int
    stdout: str
    stderr: str
    left_behind: list[str]

    @property
    def result(self) -> dict[str, Any]:
        """The one line on stdout."""
        assert self.stdout.count("\n") == 1, self.stdout + self.stderr
        line: dict[str, Any] = json.loads(self.stdout)
        return line


@dataclass(frozen=True, slots=True)
class Place:
    """Where a demo runs: `folder` has its temporary files, `marker` is in the environment of all its processes."""

    folder: Path
    marker: str

    @contextmanager
    def start(self, *command: str) -> Iterator[subprocess.Popen[str]]:
        """A process that is killed at the end if it still runs, with all its children."""
        environment = os.environ | {VARIABLE: self.marker, "TMPDIR": str(self.folder)}
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        ) as process:
            watchdog = threading.Timer(LONGEST_S, process.kill)
            watchdog.start()
            try:
                yield process
            finally:
                watchdog.cancel()
                process.kill()

    def end(self, process: subprocess.Popen[str], so_far: str = "") -> Ended:
        """Waits for the process; `so_far` is the stderr that was read before."""
        stdout, stderr = process.communicate()
        return Ended(process.returncode, stdout, so_far + stderr, self.left_behind())

    def run(self, *command: str) -> Ended:
        with self.start(*command) as process:
            return self.end(process)

    def left_behind(self) -> list[str]:
        """Temporary files, and processes by their command line. Namespaces without a process do not exist here."""
        left = [str(path) for path in self.folder.iterdir()]
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if f"{VARIABLE}={self.marker}".encode() in (process / "environ").read_bytes().split(b"\0"):
                    left.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:  # it ended meanwhile, or is another user's
                continue
        return left


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """A folder with a short path, because it has sockets."""
    folder = Path(tempfile.mkdtemp(prefix="demo-"))
    yield Place(folder, secrets.token_hex(8))
    shutil.rmtree(folder)


def until(stream: IO[str], *texts: str) -> str:
    """Reads lines without their colours until all the texts have appeared."""
    seen = ""
    for line in stream:
        seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line)
        if all(text in seen for text in texts):
            return seen
    raise AssertionError(f"it ended before it printed {texts}: {seen}")


def until_shown(stream: IO[str], *texts: str) -> str:
    """The same of a screen, which has no lines: it is read as it comes, and a cell that stays is not drawn again."""
    seen = ""
    while data := os.read(stream.fileno(), 65_536):
        seen += re.sub(r"\x1b\[[0-9;:?<>=]*[A-Za-z]", "", data.decode(errors="replace"))
        if all(text in seen for text in texts):
            return seen
    raise AssertionError(f"it ended before it showed {texts}: {seen[-2_000:]}")


def without(*programs: str) -> list[str]:
    """The prefix of a command that runs it without root and without these programs."""
    hide = [f"mount --bind /dev/null {host.find(program)}" for program in programs]
    inside = " && ".join([*hide, f'exec {shlex.join(NOT_ROOT)} "$@"'])
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inside, "sh"]


#: What to put before a command so that it runs where no network namespace can be made.
NO_NAMESPACES = [
    "unshare", "--user", "--map-root-user", "sh", "-c", 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"', "sh",
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(place: Place) -> Ended:
    """One run of the complete demo."""
    return place.run(*DEMO, "--seconds", "8", "--json")


def test_the_demo_ends_with_one_line_of_exactly_these_keys(whole: Ended) -> None:
    """stdout has one line of JSON; progress and the page's address are on stderr."""
    assert whole.status == 0
    assert list(whole.result) == KEYS
    assert f"status page: {whole.result['page']}\n" in whole.stderr


def test_the_whole_demo_is_two_nodes_with_real_ptp(whole: Ended) -> None:
    """If everything is installed, no part is simulated."""
    assert (whole.result["ptp"], whole.result["nodes"]) == ("real", 2)


def test_every_bound_contained_the_known_truth(whole: Ended) -> None:
    """The stored bounds contain the true offset, also without their |offset| term."""
    result = whole.result

    assert result["contained"] == 1.0
    assert result["contained_without_offset"] == 1.0
    assert result["samples_stored"] > 50
    assert result["gm_bound_ns"] > 300_000


def test_the_job_gets_both_signals_and_its_straggler_rank(whole: Ended) -> None:
    """The alignment is at least node-b's bound, and rank 1, which computes twice as long, is the straggler."""
    result = whole.result

    assert result["alignment_ns"] > 300_000
    assert 0 < result["sync_overhead"] < 1
    assert result["straggler_rank"] == 1


def test_the_whole_demo_leaves_nothing(whole: Ended) -> None:
    """No process, namespace or file remains, and the result states it."""
    assert whole.result["leftovers"] == []
    assert whole.left_behind == []


def test_without_namespaces_ptp_is_simulated(place: Place) -> None:
    """There are still two nodes, and the message names the simulation."""
    run = place.run(*NO_NAMESPACES, *DEMO, "--seconds", "8", "--json")

    assert (run.status, run.result["ptp"], run.result["nodes"]) == (0, "simulated", 2)
    assert (run.result["contained"], run.result["contained_without_offset"]) == (1.0, 1.0)
    assert run.result["alignment_ns"] > 300_000
    assert "no real PTP on this machine: ptp4l is simulated: test bed: unshare" in run.stderr
    assert run.left_behind == []


def test_with_nothing_installed_there_is_one_node(place: Place) -> None:
    """Without root the missing packages are named, and both ranks run on one node."""
    run = place.run(*without("ptp4l", "mosquitto"), *DEMO, "--seconds", "8", "--json")

    assert (run.status, run.result["ptp"], run.result["nodes"]) == (0, "simulated", 1)
    assert run.result["straggler_rank"] == 1
    assert "the demo runs one node with both ranks: mosquitto is not installed: Debian package mosquitto" in run.stderr
    assert "ptp4l is not installed: Debian package linuxptp" in run.stderr
    assert run.left_behind == []


@pytest.mark.parametrize(
    ("moment", "signals"),
    [
        (STARTING, [signal.SIGINT]),
        (STARTING, [signal.SIGTERM, signal.SIGTERM]),
        (WAITING, [signal.SIGTERM]),
        (WAITING, [signal.SIGINT, signal.SIGINT, signal.SIGHUP]),
    ],
)
def test_a_signal_before_the_first_sample_ends_it(place: Place, moment: str, signals: list[signal.Signals]) -> None:
    """Signals during the start end the demo in order, with exit status 130."""
    with place.start(*DEMO, "--json") as process:
        assert process.stderr
        printed = until(process.stderr, moment)
        for number in signals:
            process.send_signal(number)
        run = place.end(process, printed)

    assert (run.status, run.stdout) == (130, "")
    assert "Traceback" not in run.stderr
    assert run.left_behind == []


def test_without_root_a_hang_up_ends_it_with_the_result(place: Place) -> None:
    """Namespaces are made in a user namespace; ended after the first samples, the demo prints its result."""
    with place.start(*NOT_ROOT, *DEMO, "--json") as process:
        assert process.stderr
        printed = until(process.stderr, LOOKING)
        time.sleep(5)  # samples reach the store within a second
        process.send_signal(signal.SIGHUP)
        run = place.end(process, printed)

    assert (run.status, run.result["ptp"], run.result["nodes"]) == (0, "real", 2)
    assert run.result["contained"] == 1.0
    assert "Traceback" not in run.stderr
    assert run.left_behind == []


#: A terminal as wide as a newcomer's. No shell stays: dash would take the Ctrl-C too, and end with 130 of its own.
TERMINAL = f"stty cols 120 rows 44; exec {shlex.join(DEMO)}"
IN_TERMINAL = ["script", "--quiet", "--return", "--flush", "--command", TERMINAL, "/dev/null"]


@pytest.mark.parametrize("end", ["\x03", "q"])
def test_a_key_in_a_terminal_ends_the_view(place: Place, end: str) -> None:
    """
    `top` shows each bound beside its truth, what is simulated and what comes; its reader's last key ends all, and gives
    the terminal back.
    """
    with place.start(*IN_TERMINAL) as process:
        assert process.stdin and process.stdout
        shown = until_shown(
            process.stdout, "simulated: the grandmasters' GNSS", "node-b", "ns, inside the bound", " s: the antenna of gm-1 is cut",
        )  # fmt: skip
        process.stdin.write(end)
        process.stdin.flush()
        run = place.end(process)

    assert run.status == 0
    assert "http://127.0.0.1:" in shown
    assert "OUTSIDE" not in shown
    assert "leftovers: none" in run.stdout
    assert "\x1b[?1049l" in run.stdout
    assert run.left_behind == []


def test_a_lost_terminal_ends_the_demo(place: Place) -> None:
    """The terminal's program is killed while `top` draws: everything goes, and nothing waits for a screen that is gone."""
    with place.start(*IN_TERMINAL) as process:
        assert process.stdout
        until_shown(process.stdout, "simulated: the grandmasters' GNSS")
        process.kill()
        process.communicate()

    deadline = time.monotonic() + LONGEST_S
    while (left := place.left_behind()) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []


def test_a_pipe_gets_the_announcements_and_the_last_screen(place: Place) -> None:
    """Without a terminal there is no view to draw: the story is on stderr, and what was seen last on stdout."""
    run = place.run(*DEMO, "--seconds", "22")

    assert run.status == 0
    assert "in 5 s: the antenna of gm-1 is cut" in run.stderr
    assert "node-a" in run.stdout and "node-b" in run.stdout and "inside the bound" in run.stdout
    assert "OUTSIDE" not in run.stdout
    assert run.left_behind == []


def test_repeated_signals_do_not_change_the_end(place: Place) -> None:
    """SIGINT is repeated until the interpreter has ended."""
    with place.start(*DEMO, "--json") as process:
        assert process.stderr
        printed = until(process.stderr, LOOKING)
        time.sleep(2)  # samples reach the store within a second
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.005)
        run = place.end(process, printed)

    assert (run.status, run.result["nodes"], run.left_behind) == (0, 2, [])
    assert "Traceback" not in run.stderr
