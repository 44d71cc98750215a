"""
Builds what a release has into dist/: source distribution, wheel, a Debian package for each release, the wheels of a container
image, a bill of materials and SHA256SUMS.

    python deploy/dist.py [--out FOLDER] [--release bookworm ...]

Of the commit that is checked out. Two builds of one commit are the same octets. Needs root and mmdebstrap for the Debian packages.
Exit status 2: it cannot run here; one line names what is missing.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from debian_roots import Chroot, NeedNotMet, check_needs, default_cache, made, run

PROJECT = Path(__file__).resolve().parents[1]

#: Debian's releases for which there is a package, and what its version ends with: one for the newer release is an upgrade.
RELEASES = {"bookworm": "+deb12", "trixie": "+deb13"}

#: What deploy/container/Dockerfile begins from: its wheels are kept.
CONTAINER_RELEASE = "bookworm"

#: The tags of the wheels that both releases take.
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64", "manylinux_2_34_x86_64")

#: In run.lock for `make run`, and of no use in a package.
_INSTALLERS = ("pip", "setuptools")


def main() -> int:
    reader = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    reader.add_argument("--out", type=Path, default=PROJECT / "dist", metavar="FOLDER")
    reader.add_argument("--release", action="append", choices=RELEASES, help="the Debian release; may be repeated")
    arguments = reader.parse_args()
    releases: Sequence[str] = arguments.release or list(RELEASES)
    try:
        check_needs()
        build(arguments.out, releases)
    except NeedNotMet as error:
        print(f"dist: {error}", file=sys.stderr)
        return 2
    return 0


def build(out: Path, releases: Sequence[str]) -> None:
    """Raises NeedNotMet."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    epoch = run("git", "-C", PROJECT, "log", "-1", "--format=%ct").strip()
    os.environ["SOURCE_DATE_EPOCH"] = epoch
    with tempfile.TemporaryDirectory(prefix="timesyncd-dist-") as folder:
        source = Path(folder) / "source"
        export(source)
        progress("page")
        build_page(source)
        progress("source distribution")
        source_distribution(source, out, int(epoch))
        progress("wheel")
        wheel = built_wheel(source, out)
        progress("manual page and completion")
        write_manual(source)
        chroots = {chroot.suite.name: chroot for chroot in made(default_cache(), releases)}
        for release in releases:
            progress(f"Debian package of {release}")
            build_debian(chroots[release], source, wheel, out, Path(folder))
    progress("bill of materials")
    write_bill_of_materials(out)
    write_checksums(out)
    for path in sorted(out.iterdir()):
        size = sum(each.stat().st_size for each in (files(path) if path.is_dir() else [path]))
        print(f"{size / 1e6:8.2f} MB  {path.name}{'/' if path.is_dir() else ''}")


def progress(text: str) -> None:
    print(f"dist: {text}", flush=True)


def version() -> str:
    return str(tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"])


def debian_version(release: str) -> str:
    """
    Of a commit with the version's tag, 1.2.0+deb12; of another, 1.2.0~git1034+deb12, which is older than 1.2.0 and newer
    than what fewer commits made.
    """
    tags = run("git", "-C", PROJECT, "tag", "--points-at", "HEAD").split()
    commits = run("git", "-C", PROJECT, "rev-list", "--count", "HEAD").strip()
    return f"{version()}{'' if f'v{version()}' in tags else f'~git{commits}'}{RELEASES[release]}"


def export(source: Path) -> None:
    """The files of the commit, with its name in the package."""
    source.mkdir()
    archive = source.with_suffix(".tar")
    run("git", "-C", PROJECT, "archive", "--output", archive, "HEAD")
    run("tar", "-xf", archive, "-C", source)
    archive.unlink()
    (source / "timesyncd" / "commit.txt").write_text(run("git", "-C", PROJECT, "rev-parse", "HEAD"))


def build_page(source: Path) -> None:
    """The distributions hold the bundle, so an installation needs no Node.js."""
    run(sys.executable, source / "page" / "build_page.py")
    shutil.rmtree(source / "page" / "node_modules")


def source_distribution(source: Path, out: Path, epoch: int) -> None:
    """setuptools writes the times of the build into it, so it is packed again without them."""
    code = "import sys, setuptools.build_meta as backend; print(backend.build_sdist(sys.argv[1]))"
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", code, folder], cwd=source, check=False, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise NeedNotMet(f"the source distribution cannot be built: {done.stderr.strip().splitlines()[-1]}")
        [packed] = Path(folder).iterdir()
        repack(packed, out / packed.name, epoch)
    for made_by_setuptools in source.glob("*.egg-info"):
        shutil.rmtree(made_by_setuptools)


def repack(packed: Path, target: Path, epoch: int) -> None:
    """The same files in the order of their names, all of one time and of root."""
    with (
        tarfile.open(packed) as old,
        target.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)


def built_wheel(source: Path, out: Path) -> Path:
    run(*_pip("wheel"), "--no-deps", "--no-build-isolation", "--wheel-dir", out, source)
    shutil.rmtree(source / "build", ignore_errors=True)
    return next(out.glob("*.whl"))


def _pip(*words: str) -> list[str]:
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", *words, "--quiet"]


def write_manual(source: Path) -> None:
    """From the parser itself, so nothing in them can be out of date."""
    folder = source / "manual"
    folder.mkdir()
    program = Path(sys.executable).with_name("argparse-manpage")
    run(
        program, "--module", "timesyncd.__main__", "--function", "parser", "--project-name", "timesyncd",
        "--manual-title", "timesyncd", "--output", folder / "timesyncd.1",
    )  # fmt: skip
    for shell in ("bash", "zsh"):
        text = run(sys.executable, "-m", "shtab", "--shell", shell, "--prog", "timesyncd", "timesyncd.__main__.parser")
        (folder / f"completion.{shell}").write_text(text)


def build_debian(chroot: Chroot, source: Path, wheel: Path, out: Path, folder: Path) -> None:
    """In a root of the release, without a network: the wheels are fetched before, by the hashes of the lock file."""
    release = chroot.suite.name
    shared = folder / release
    (shared / "wheels").mkdir(parents=True)
    requirements = shared / "requirements.txt"
    requirements.write_text(without((source / "requirements" / "run.lock").read_text(), _INSTALLERS))
    python = ".".join(chroot.upstream("python3").split(".")[:2])
    run(
        *_pip("download"), "--only-binary=:all:", f"--python-version={python}",
        *(f"--platform={each}" for each in PLATFORMS), "--require-hashes", "--requirement", requirements,
        "--dest", shared / "wheels",
    )  # fmt: skip
    shutil.copy(wheel, shared / "wheels")
    shutil.copytree(source, shared / "source", symlinks=True)
    script = PROJECT / "deploy" / "debian" / "in_root.sh"
    run(
        "sh",
        script,
        chroot.folder,
        shared,
        "sh",
        "/build/source/deploy/debian/build.sh",
        debian_version(release),
    )
    for package in (shared / "out").iterdir():
        shutil.move(package, out / package.name)
    if release == CONTAINER_RELEASE:
        shutil.move(shared / "wheels", out / "wheels")


def without(lock: str, packages: Sequence[str]) -> str:
    """The lock file without these packages; a package is a line that ends with a backslash, and the indented ones below it."""
    kept, is_kept = [], True
    for line in lock.splitlines(keepends=True):
        if not line.startswith((" ", "#")):
            is_kept = line.partition("==")[0] not in packages
        if is_kept:
            kept.append(line)
    return "".join(kept)


def write_bill_of_materials(out: Path) -> None:
    """CycloneDX, of the locked packages that the Debian packages hold."""
    program = Path(sys.executable).with_name("cyclonedx-py")
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text(without((PROJECT / "requirements" / "run.lock").read_text(), _INSTALLERS))
        run(
            program, "requirements", requirements, "--pyproject", PROJECT / "pyproject.toml", "--output-reproducible",
            "--output-format", "JSON", "--output-file", out / f"timesyncd-{version()}.cdx.json",
        )  # fmt: skip


def write_checksums(out: Path) -> None:
    """As sha256sum writes and checks them."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(out)}\n" for path in files(out)]
    (out / "SHA256SUMS").write_text("".join(lines))


def files(out: Path) -> list[Path]:
    return sorted(path for path in out.rglob("*") if path.is_file())


if __name__ == "__main__":
    sys.exit(main())
