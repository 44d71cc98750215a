"""The wheel, built once: what is in it, and what it does installed alone and with the daemon's dependencies."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from timesyncd.__main__ import COMMANDS

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
Output = subprocess.CompletedProcess[str]

#: What a command needs on its line to get as far as its work.
ARGUMENTS = {
    "postmortem": ["--from", "2h"],
    "history": ["ptp", "--store", "/nonexistent"],
    "demo": ["--seconds", "1"],
    "probe": ["192.0.2.1"],
    "record": ["192.0.2.1", "/nonexistent"],
    "profile-from-mib": ["/nonexistent"],
    "export": ["ptp", "--store", "/nonexistent", "-o", "/nonexistent/x"],
    "stability": ["ptp", "--store", "/nonexistent"],
    "store": ["backup", "/nonexistent/x", "--store", "/nonexistent"],
    "audit": ["--record", "/nonexistent"],
    "advise": ["/nonexistent"],
    "roadmap": ["job", "--url", "http://127.0.0.1:9/"],
    "broker-config": ["n1", "--out", "/nonexistent"],
    "run-audit": ["--", "true"],
    "kubernetes-controller": ["--max-bound", "1us", "--url", "127.0.0.1:9"],
    "preflight": ["--nodes", "a", "--max-alignment", "1us", "--timeout", "0s", "--url", "http://127.0.0.1:9/"],
}


#: What works without any extra, and what needs another one than the daemon's, with what is to be installed.
ALONE = ("now", "wait", "policy", "preflight", "replay", "merge-traces")
EXTRA = {
    "profile-from-mib": ("the mib extra", "daemon,mib"),
    "audit": ("the audit extra", "audit"),
    "roadmap": ("the audit extra", "audit"),
    "top": ("the tui extra", "tui"),
    "run-audit": ("the audit extra", "audit"),
    "demo": (r"the package \w+", "daemon,demo"),
    "simulate": (r"the package \w+", "daemon,demo"),
}


def tree() -> list[Path]:
    """The project's own files, without links and without what is built."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    paths = [Path(name) for name in listed.split("\0") if name]
    return [path for path in paths if (ROOT / path).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, as from an unpacked source."""
    return built_wheel(tmp_path_factory)


def built_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for path in tree():
        (copy / path.parent).mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, copy / path)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", out, "."],
        cwd=copy,
        check=True,
        env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000"},
    )
    [built] = out.iterdir()
    return built


def installed(folder: Path, wheel: Path) -> Path:
    """A virtual environment that has the wheel and nothing else; its bin/."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet", "--no-index", wheel],
        check=True,
    )
    return folder / "bin"


@pytest.fixture(scope="module")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`pip install timesyncd`."""
    return installed(tmp_path_factory.mktemp("alone"), wheel)


@pytest.fixture(scope="module")
def with_daemon(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`pip install timesyncd[daemon]`; the dependencies are those that run this test, by path instead of by download."""
    folder = tmp_path_factory.mktemp("daemon")
    commands = installed(folder, wheel)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return commands


def run(commands: Path, *command: str | Path) -> Output:
    """From / and with nothing of this test's environment, so that only what is installed is found."""
    environment = {"PATH": os.defpath}
    arguments = [commands / command[0], *command[1:]]
    return subprocess.run(arguments, check=False, cwd="/", env=environment, capture_output=True, text=True)


def test_the_wheel_holds_the_tree_and_nothing_else(wheel: Path) -> None:
    """Every file of the package, of drivers/ and of schemas/ is below `timesyncd`; nothing lands beside it.

    The page's bundle, which git ignores, is there too.
    """
    places = {
        "timesyncd": Path("timesyncd"),
        "drivers": Path("timesyncd/drivers"),
        "schemas": Path("timesyncd/schemas"),
    }
    wanted = {
        str(places[path.parts[0]].joinpath(*path.parts[1:]))
        for path in tree()
        if path.parts[0] in places and path.parts[1:]
    }
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}

    bundle = {name for name in held if name.startswith("timesyncd/web/bundle/")}

    assert held - bundle == wanted
    assert {name.rpartition(".")[2] for name in bundle} == {"html", "js", "css", "txt"}
    assert {"timesyncd/py.typed", "timesyncd/schemas/SHM.md", "timesyncd/web/bundle/index.html"} < held


def test_two_builds_are_the_same_octets(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """With SOURCE_DATE_EPOCH, from another folder and at another time."""
    assert built_wheel(tmp_path_factory).read_bytes() == wheel.read_bytes()


def test_alone_it_prints_the_time_or_the_reason(alone: Path, tmp_path: Path) -> None:
    """`now` needs no dependency; without a daemon it exits 1 with the reason."""
    done = run(alone, "timesyncd", "now", "--json", "--runtime-dir", tmp_path)
    answer = json.loads(done.stdout)

    assert (done.returncode, done.stderr) == (1, "")
    assert answer["gm"]["status"] == "UNKNOWN"
    assert answer["gm"]["reason"].startswith("no clock segment")


def test_the_client_imports_the_standard_library_alone(alone: Path) -> None:
    """A training job gains no dependency: all that the client brings in is its own or Python's."""
    code = "import sys; had = set(sys.modules); import timesyncd.client; print(*{name.split('.')[0] for name in set(sys.modules) - had})"
    done = run(alone, "python", "-I", "-c", code)
    foreign = set(done.stdout.split()) - set(sys.stdlib_module_names) - {"timesyncd"}

    assert (done.returncode, done.stderr) == (0, "")
    assert {name for name in foreign if not name.startswith("_")} == set()


def test_alone_it_asks_a_hub(alone: Path) -> None:
    """`preflight` needs no dependency: an init container has the client alone."""
    done = run(alone, "timesyncd", "preflight", *ARGUMENTS["preflight"])

    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("FAIL: http://127.0.0.1:9/: timesyncd cannot be reached: Connection refused; ")


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ALONE])
def test_what_needs_the_extra_names_it(alone: Path, command: str) -> None:
    """Every other command exits 2 with the one line that helps."""
    done = run(alone, "timesyncd", command, *ARGUMENTS.get(command, []))

    missing, extras = EXTRA.get(command, (r"the package \w+", "daemon"))
    line = rf"timesyncd {command}: {missing} is missing: in timesyncd's source folder, pip install '\.\[{extras}\]'\n"
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(line, done.stderr)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_needs_no_extra(alone: Path, command: str) -> None:
    """What a command does can be read before anything is installed for it."""
    done = run(alone, "timesyncd", command, "--help")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: timesyncd {command}")


def test_the_store_is_made_by_the_wheel_alone(with_daemon: Path, tmp_path: Path) -> None:
    """The migrations are in the wheel and are found from any folder."""
    done = run(with_daemon, "python", "-m", "timesyncd.store.migrate", tmp_path / "history.sqlite")
    with closing(sqlite3.connect(tmp_path / "history.sqlite")) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert {"clock_sample", "grandmaster_sample", "alembic_version"} <= tables


def test_the_drivers_are_found_by_their_entry_points(with_daemon: Path) -> None:
    """`timesyncd drivers` lists them all, from the wheel's own metadata and with its own profiles."""
    place = run(with_daemon, "python", "-c", "import timesyncd; print(timesyncd.__file__)").stdout
    done = run(with_daemon, "timesyncd", "drivers")
    names = [line.split(":")[0] for line in done.stdout.splitlines() if not line.startswith(" ")]

    assert place.startswith(str(with_daemon.parent))
    assert (done.returncode, names) == (
        0,
        ["chrony", "clockbound", "kernel", "phc", "phc2sys", "ptp4l", "timeprovider"],
    )
