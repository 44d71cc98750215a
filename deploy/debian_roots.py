"""
Debian's releases as chroots in a cache, with the programs that the matrix tests, from the mirror that this machine's own apt uses.

A chroot is made again when the archive has another version of one of its programs.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
COMMAND_LIMIT_S = 600

#: The programs that timesyncd reads.
PROGRAMS = ("linuxptp", "chrony")

#: What timesyncd itself depends on: `systemd` for its unit, the rest for `timesyncd demo`.
ITS_OWN = ("python3", "systemd")
_BESIDE = ("python3-venv", "iproute2", "util-linux", "procps", "mosquitto")


class NeedNotMet(Exception):
    """This machine lacks something that the matrix needs; the text is one line with what, and how to get it."""


@dataclass(frozen=True)
class Suite:
    """A suite of Debian's archive; backports are installed on the release that they are for."""

    name: str
    release: str
    title: str

    @property
    def is_backports(self) -> bool:
        return self.name != self.release


SUITES = (
    Suite("bookworm", "bookworm", "12"),
    Suite("bookworm-backports", "bookworm", "12 backports"),
    Suite("trixie", "trixie", "13"),
    Suite("trixie-backports", "trixie", "13 backports"),
    Suite("sid", "sid", "sid"),
)


@dataclass(frozen=True)
class Chroot:
    """A suite's chroot; `programs` are those of PROGRAMS that the suite itself has, with the upstream version."""

    suite: Suite
    folder: Path
    versions: Mapping[str, str]

    @property
    def programs(self) -> list[str]:
        return [name for name in PROGRAMS if name in self.versions]

    def upstream(self, package: str) -> str:
        return upstream_version(self.versions[package])


def upstream_version(debian_version: str) -> str:
    """Without epoch and Debian's revision: 4.6.1 of 4.6.1-3+deb13u2."""
    return debian_version.rpartition(":")[2].rpartition("-")[0] or debian_version


def default_cache() -> Path:
    """$TIMESYNCD_MATRIX_CACHE, else ~/.cache/timesyncd-matrix."""
    return Path(os.environ.get("TIMESYNCD_MATRIX_CACHE") or Path.home() / ".cache" / "timesyncd-matrix")


def check_needs() -> None:
    """Raises NeedNotMet."""
    if os.geteuid() != 0:
        raise NeedNotMet("the matrix needs root (mmdebstrap, chroot, namespaces): run it as root")
    for program in ("mmdebstrap", "apt-get", "unshare", "ip"):
        if shutil.which(program) is None:
            raise NeedNotMet(f"{program} is missing: apt-get install mmdebstrap apt util-linux iproute2")


def mirror_of(sites: list[str]) -> str:
    """The Debian mirror among the sites of apt's sources. Raises NeedNotMet."""
    for site in sites:
        if site.rstrip("/").endswith("/debian"):
            return site.rstrip("/")
    raise NeedNotMet("apt has no Debian mirror (a site that ends with /debian) in its sources")


def sources(mirror: str, suite: Suite) -> list[str]:
    """
    The lines of the suite's sources.list. A mirror's copy of a suite that moves daily may be older than the suite's signature
    states as valid, and is still the newest that this machine can have.
    """
    release, option = suite.release, f"signed-by={KEYRING}"
    if release == "sid":
        return [f"deb [check-valid-until=no {option}] {mirror} sid main"]
    lines = [
        f"deb [{option}] {mirror} {release} main",
        f"deb [{option}] {mirror} {release}-updates main",
        f"deb [{option}] {mirror.removesuffix('/debian')}/debian-security {release}-security main",
    ]
    return [*lines, f"deb [{option}] {mirror} {suite.name} main"] if suite.is_backports else lines


def made(cache: Path, names: Collection[str] | None = None) -> list[Chroot]:
    """
    The chroots of the suites with these names (None: of all) that have one of the programs, made where they are not
    there. Raises NeedNotMet.
    """
    cache.mkdir(parents=True, exist_ok=True)
    mirror = mirror_of(run("apt-get", "indextargets", "--format", "$(SITE)").split())
    found = []
    with _locked(cache / "lock"):
        for suite in (each for each in SUITES if names is None or each.name in names):
            apt = _Apt(cache / "apt" / suite.name, sources(mirror, suite))
            apt.run("apt-get", "update", "-oAPT::Update::Error-Mode=any")
            versions = apt.versions((*PROGRAMS, *ITS_OWN), suite)
            chroot = Chroot(suite, cache / f"root-{suite.name}", versions)
            if chroot.programs:
                _make(chroot, apt)
                found.append(chroot)
            else:
                print(f"matrix: {suite.name} has neither {' nor '.join(PROGRAMS)}", flush=True)
    return found


def unpacked(cache: Path, suite: str, package: str) -> Path:
    """The folder with the files of the suite's newest package, which is not installed. Raises NeedNotMet."""
    with _newest(cache, suite, package) as (apt, _, version):
        folder = cache / f"{package}-{version}"
        if not folder.exists():
            new = folder.with_suffix(".new")
            shutil.rmtree(new, ignore_errors=True)
            apt.run("apt-get", "install", "--yes", "--download-only", "--reinstall", f"{package}={version}")
            [file] = (cache / "apt" / suite / "cache/archives").glob(f"{package}_*.deb")
            run("dpkg-deb", "-x", file, new)
            new.rename(folder)
    return folder


def extracted(cache: Path, suite: str, package: str, beside: Collection[str]) -> Path:
    """
    A root with the files of the suite's newest package, of the packages beside it, and of what these need, made where it is
    not there. None of them is configured: that takes a quarter of the time of an installed root. Raises NeedNotMet.
    """
    with _newest(cache, suite, package) as (apt, wanted, version):
        folder = cache / f"root-{package}-{version}"
        if not folder.exists():
            print(f"making {folder.name}", flush=True)
            new = folder.with_name(f"{folder.name}.new")
            _bootstrap(new, wanted, [f"{package}={version}", *beside], apt, variant="extract")
            _complete(new)
            new.rename(folder)
    return folder


def _complete(root: Path) -> None:
    """What the packages' scripts would have made: users, the loopback's name, a place to mount on, and awk."""
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    (root / "srv").mkdir(exist_ok=True)
    (root / "usr/bin/awk").symlink_to("mawk")


@contextmanager
def _newest(cache: Path, suite: str, package: str) -> Iterator[tuple[_Apt, Suite, str]]:
    """An apt of the suite, and the newest version of the package there, while the cache is locked."""
    cache.mkdir(parents=True, exist_ok=True)
    mirror = mirror_of(run("apt-get", "indextargets", "--format", "$(SITE)").split())
    [wanted] = [each for each in SUITES if each.name == suite]
    with _locked(cache / "lock"):
        apt = _Apt(cache / "apt" / suite, sources(mirror, wanted))
        apt.run("apt-get", "update", "-oAPT::Update::Error-Mode=any")
        yield apt, wanted, apt.versions((package,), wanted)[package]


def run(*command: str | Path) -> str:
    """Its output. Raises NeedNotMet with its last lines where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_LIMIT_S)
    if done.returncode != 0:
        lines = " | ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise NeedNotMet(f"{Path(command[0]).name} failed with {done.returncode}: {lines}")
    return done.stdout


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _Apt:
    """An apt with sources of its own: nothing of this machine's is read or changed."""

    def __init__(self, folder: Path, lines: list[str]) -> None:
        for each in ("lists/partial", "cache/archives/partial"):
            (folder / each).mkdir(parents=True, exist_ok=True)
        self.sources = folder / "sources.list"
        self.sources.write_text("\n".join([*lines, ""]))
        self._options = [
            "-qq", f"-oDir::Etc::sourcelist={self.sources}", "-oDir::Etc::sourceparts=/dev/null",
            "-oDir::Etc::preferencesparts=/dev/null", f"-oDir::State::lists={folder}/lists", f"-oDir::Cache={folder}/cache",
            "-oDir::State::status=/dev/null", "-oAPT::Sandbox::User=root",
        ]  # fmt: skip

    def run(self, program: str, *arguments: str) -> str:
        return run(program, *self._options, *arguments)

    def versions(self, packages: tuple[str, ...], suite: Suite) -> dict[str, str]:
        """The newest version of each package that the suite, or for a release its updates too, has."""
        wanted = f"{suite.name}/" if suite.is_backports else f"{suite.release}"
        found: dict[str, str] = {}
        for line in self.run("apt-cache", "madison", *packages).splitlines():
            name, version, place = (part.strip() for part in line.split("|"))
            if re.search(rf" {wanted}", place) and not place.endswith("Sources"):
                found.setdefault(name, version)  # the newest comes first
        return found


def _bootstrap(new: Path, suite: Suite, packages: list[str], apt: _Apt, variant: str = "minbase") -> None:
    shutil.rmtree(new, ignore_errors=True)
    run(
        "mmdebstrap", "--quiet", f"--variant={variant}", "--mode=root", f"--include={','.join(packages)}",
        '--aptopt=Acquire::Languages "none"', '--aptopt=Acquire::Check-Valid-Until "false"',
        *(f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in ("man", "locale", "doc")),
        suite.release, new, apt.sources,
    )  # fmt: skip


def _make(chroot: Chroot, apt: _Apt) -> None:
    stamp = chroot.folder / "var/lib/timesyncd-matrix"
    wanted = "\n".join(f"{name} {version}" for name, version in sorted(chroot.versions.items()))
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"matrix: making {chroot.suite.name} with {wanted.replace(chr(10), ', ')}", flush=True)
    new = chroot.folder.with_suffix(".new")
    packages = [f"{name}={version}" for name, version in chroot.versions.items()]
    others = [*(name for name in (*PROGRAMS, *ITS_OWN) if name not in chroot.versions), *_BESIDE]
    _bootstrap(new, chroot.suite, [*packages, *others], apt)
    (new / stamp.relative_to(chroot.folder)).write_text(wanted)
    shutil.rmtree(chroot.folder, ignore_errors=True)
    new.rename(chroot.folder)
