"""timesyncd itself on the row's release: its Python and its systemd, with the wheel as a user installs it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytest_plugins = ["matrix_fixtures"]

Fact = Callable[[str, object], None]

PROJECT = Path(__file__).parents[2]
ENVIRON = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONPATH": "/opt/timesyncd:/opt/packages",
    "PYTHONPYCACHEPREFIX": "/opt/bytecode",  # the checkout stays as it is, and hundreds of processes compile nothing again
    "HYPOTHESIS_STORAGE_DIRECTORY": "/opt/hypothesis",  # rows that run beside this one write theirs
    "HOME": "/root",
    "LANG": "C.UTF-8",
}


def in_the_release(*command: str, folder: str = "/", limit_s: float = 600) -> subprocess.CompletedProcess[str]:
    """Run with the release's own programs and libraries alone."""
    inside = ["/usr/sbin/chroot", "/mnt", "sh", "-c", 'cd "$0" && exec "$@"', folder, *command]
    return subprocess.run(inside, env=ENVIRON, capture_output=True, text=True, check=False, timeout=limit_s)


def test_the_release(record_property: Fact) -> None:
    """Its own Python runs the installed package, and not the checkout."""
    done = in_the_release(
        "python3", "-P", "-c", "import sys, timesyncd; print(sys.version.split()[0], timesyncd.__file__)"
    )
    version, place = done.stdout.split()
    systemd = in_the_release("systemctl", "--version").stdout.split()[1]

    assert place == "/opt/timesyncd/timesyncd/__init__.py", done.stderr
    record_property("Python", version)
    record_property("systemd", systemd)


def test_the_command(record_property: Fact) -> None:
    """`timesyncd --version` names the distribution's version."""
    done = in_the_release("python3", "-P", "-m", "timesyncd", "--version")

    assert (done.returncode, done.stderr) == (0, "")
    record_property("`--version`", done.stdout.strip())


def test_the_demo(record_property: Fact) -> None:
    """The whole system runs there, and its node is synchronized."""
    done = in_the_release("python3", "-P", "-m", "timesyncd", "demo", "--seconds", "20", "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    measured = json.loads(done.stdout.splitlines()[-1])

    assert (measured["ptp"], measured["contained"], measured["leftovers"]) == ("real", 1.0, [])
    record_property("`demo`", f"every truth inside, bound {measured['gm_bound_ns'] / 1e3:.0f} us")


@pytest.mark.parametrize("unit", ["timesyncd.service", "timesyncd-traps.socket", "timesyncd-syslog.socket"])
def test_its_units_verify(unit: str, tmp_path: Path, record_property: Fact) -> None:
    """The release's systemd accepts them beside its own; the manual's page that they name is not installed there."""
    folder = Path("usr/lib/systemd/system")
    shutil.copytree("/mnt" / folder, tmp_path / folder, symlinks=True)
    for ours in (PROJECT / "systemd").glob("timesyncd*.s*"):
        shutil.copy(ours, tmp_path / folder)
    program = tmp_path / "opt/timesyncd/bin/timesyncd"
    program.parent.mkdir(parents=True)
    shutil.copy("/mnt/usr/bin/true", program)
    done = in_the_release("systemd-analyze", "verify", "--man=no", f"--root={tmp_path}", unit)

    assert (done.returncode, done.stderr) == (0, "")
    record_property("units", "verified")


PACKAGES = ("drivers", "ipc", "store", "test_main.py", "cli/test_replay.py")

#: These need torch, which is no dependency of the daemon.
NEED_TORCH = ("tests/unit/client/torch", "tests/unit/ipc/test_kinds.py")


@pytest.mark.parametrize("package", PACKAGES)
def test_its_unit_tests(package: str, record_property: Fact) -> None:
    """The package's own unit tests pass on that Python."""
    left_out = [f"--ignore={path}" for path in NEED_TORCH]
    done = in_the_release(
        "python3", "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *left_out, f"tests/unit/{package}",
        folder=str(PROJECT),
    )  # fmt: skip
    passed = re.search(r"^(\d+) passed in", done.stdout, re.MULTILINE)

    assert done.returncode == 0 and passed is not None, done.stdout[-30_000:] + done.stderr[-1_000:]
    record_property(f"unit/{package}", f"{passed[1]} passed")
