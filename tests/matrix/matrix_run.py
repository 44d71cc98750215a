"""
Tests the drivers against each version of linuxptp and chrony that Debian has, and timesyncd itself on each release.

    PYTHONPATH=deploy python tests/matrix/matrix_run.py

Prints one table a program, in Markdown: a row a version, a column a fact that was measured. Exit status 1: a test failed. 2: it cannot
run here; one line names what is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from debian_roots import Chroot, NeedNotMet, check_needs, default_cache, made, run

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
ROW_LIMIT_S = 1_500

#: What is installed beside timesyncd, and the tags of the wheels that each release takes.
EXTRAS = ("audit", "daemon", "demo", "mib", "parquet", "postgresql")
FOR_TESTS = ("hypothesis", "pytest", "pytest-asyncio", "pytest-socket", "pytest-timeout", "pyyaml", "trustme")
WHEEL_PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64", "manylinux_2_34_x86_64")

#: The column of the project's own tests on real parts, which run on the version that Debian 12 has in `make test`.
OWN_TESTS = "integration tests"


@dataclass(frozen=True)
class Program:
    """What is tested of a package: the programs that its row replaces, the tests that make facts, and the project's own."""

    package: str
    title: str
    replaced: tuple[str, ...]
    facts: str
    own_tests: tuple[str, ...]


LINUXPTP = Program(
    "linuxptp",
    "linuxptp",
    ("ptp4l", "pmc"),
    "test_linuxptp.py",
    ("test_ptp4l_real.py", "test_ptp4l_events_real.py", "test_simulated_ptp4l_pmc.py", "test_unprivileged.py"),
)
CHRONY = Program("chrony", "chrony", ("chronyd", "chronyc"), "test_chrony.py", ("test_chrony_real.py",))
TIMESYNCD = Program(
    "python3",
    "Python",
    ("ptp4l", "pmc", "systemd-analyze", "systemd-sysusers", "systemd-tmpfiles"),
    "test_timesyncd.py",
    tuple(
        f"test_systemd.py::{name}"
        for name in (
            "test_the_sockets_verify",
            "test_the_drop_ins_verify",
            "test_the_exposure_is_low",
            "test_user_and_folders_are_made",
            "test_the_group_reaches_ptp4l_without_root",
        )
    ),
)


@dataclass
class Row:
    """One version of one program, and what was measured."""

    program: Program
    chroot: Chroot
    facts: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    output: str = ""

    @property
    def name(self) -> str:
        return f"{self.program.package} {self.chroot.suite.name}"


def main() -> int:
    started = time.monotonic()
    try:
        check_needs()
        chroots = made(default_cache())
        with tempfile.TemporaryDirectory(prefix="matrix-wheel-") as folder:
            wheel = built_wheel(Path(folder))
            for chroot in chroots:
                if has(chroot, TIMESYNCD):
                    install(chroot, wheel)
    except NeedNotMet as error:
        print(f"matrix: {error}", file=sys.stderr)
        return 2
    rows = measured(chroots)
    for program in (LINUXPTP, CHRONY, TIMESYNCD):
        print("\n" + table([row for row in rows if row.program is program]))
    failed = [f"{row.name}: {each}" for row in rows for each in row.failed]
    print(
        f"\nmatrix: {len(rows)} rows in {time.monotonic() - started:.0f} s, {len(failed)} failed", *failed, sep="\n  "
    )
    return 1 if failed else 0


def measured(chroots: Sequence[Chroot]) -> list[Row]:
    """
    The programs that mostly wait first and all at once; then timesyncd itself, whose unit tests compute, so a row for
    two cores. Prints each row's summary as pytest does, at the begin of a line; of a row that failed, all that pytest printed.
    """
    rows: list[Row] = []
    for programs, at_once in (((LINUXPTP, CHRONY), len(chroots) * 2), ((TIMESYNCD,), (os.cpu_count() or 1) // 2)):
        batch = [Row(program, chroot) for program in programs for chroot in chroots if has(chroot, program)]
        with ThreadPoolExecutor(max(1, at_once)) as pool:
            for row in pool.map(measure, batch):
                text = row.output.strip() or row.failed[-1]
                print(f"matrix: {row.name}\n{text if row.failed else text.splitlines()[-1]}", flush=True)
        rows += batch
    return rows


def has(chroot: Chroot, program: Program) -> bool:
    """Of a backports chroot, only what is from there is another version than the release's."""
    return program.package in chroot.versions


def measure(row: Row) -> Row:
    """Run the row's tests in namespaces of its own, and fill it."""
    with tempfile.TemporaryDirectory(prefix="matrix-") as short:
        folder = Path(short)
        folder.chmod(0o755)
        (folder / "bin").mkdir()
        report = folder / "report.xml"
        tests: list[str | Path] = [
            HERE / row.program.facts,
            *(f"tests/integration/{name}" for name in row.program.own_tests),
        ]
        command: list[str | Path] = [
            "sh", HERE / "row.sh", row.chroot.folder, folder / "bin", *row.program.replaced, "--",
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit1", f"--basetemp={folder / 'tests'}", f"--junit-xml={report}",
            *tests,
        ]  # fmt: skip
        environ = os.environ | {"TIMESYNCD_MATRIX_SUITE": row.chroot.suite.name}
        try:
            done = subprocess.run(
                command, cwd=PROJECT, env=environ, capture_output=True, text=True, check=False, timeout=ROW_LIMIT_S
            )
            row.output = done.stdout + done.stderr
        except subprocess.TimeoutExpired as error:
            row.failed.append(f"not done after {error.timeout:.0f} s")
            return row
        if not report.exists():
            row.failed.append("pytest did not run")
            return row
        facts, failed = read_report(report.read_text())
        row.facts.update(facts)
        row.failed += failed or ([f"pytest ended with {done.returncode}"] if done.returncode else [])
    return row


def read_report(text: str) -> tuple[dict[str, str], list[str]]:
    """The facts of a row, and the tests that did not pass."""
    facts: dict[str, str] = {}
    failed: list[str] = []
    own = 0
    for case in ElementTree.fromstring(text).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        if any(case.find(kind) is not None for kind in ("failure", "error", "skipped")):
            failed.append(name)
        elif "matrix" not in name:
            own += 1
        facts |= {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")}
    return facts | {OWN_TESTS: f"{own} passed"}, failed


def table(rows: Sequence[Row]) -> str:
    """A table in Markdown; a fact that no test measured is a question mark."""
    columns = list(dict.fromkeys(name for row in rows for name in row.facts))
    head = ["version", "Debian", *columns]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        own = [f"{row.program.title} {row.chroot.upstream(row.program.package)}", row.chroot.suite.title]
        lines.append(own + [row.facts.get(name, "?") for name in columns])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def install(chroot: Chroot, wheel: Path) -> None:
    """timesyncd as a user installs it, and what its tests need, into /opt of the chroot. Raises NeedNotMet."""
    version = ".".join(chroot.upstream("python3").split(".")[:2])
    packages = chroot.folder / "opt/packages"
    stamp, wanted = packages / "stamp", f"{version} {EXTRAS} {FOR_TESTS} {(PROJECT / 'pyproject.toml').read_text()}"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(packages, ignore_errors=True)
        requirement = f"{wheel}[{','.join(EXTRAS)}]"
        run(*pip_install(version, packages), requirement, *FOR_TESTS)
        stamp.write_text(wanted)
    own = chroot.folder / "opt/timesyncd"
    shutil.rmtree(own, ignore_errors=True)
    run(*pip_install(version, own), "--no-deps", wheel)


def pip_install(version: str, target: Path) -> list[str | Path]:
    """This machine's pip, with its settings, for another Python; no source is built for that."""
    platforms = [f"--platform={each}" for each in WHEEL_PLATFORMS]
    return [
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action=ignore",
        "--only-binary=:all:", f"--python-version={version}", *platforms, "--target", target,
    ]  # fmt: skip


def built_wheel(folder: Path) -> Path:
    """The project's wheel, of the files as they are. Raises NeedNotMet."""
    source = folder / "source"
    source.mkdir()
    for name in ("timesyncd", "drivers", "schemas", "page"):
        shutil.copytree(
            PROJECT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("node_modules", "__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, source)
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "-w",
        folder,
        source,
    )
    return next(folder.glob("*.whl"))


if __name__ == "__main__":
    sys.exit(main())
