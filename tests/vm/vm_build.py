"""
Makes the parts of the virtual machines, each once: the corrected QEMU, kernel and initrd, and a disk with Debian 13 and this timesyncd.

    python tests/vm/vm_build.py [KERNEL ...]

Exit status 2: this machine lacks something; one line names it. The disk is made again when timesyncd or the guest's programs changed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vm_cache import KERNEL, NEWEST_KERNEL, QEMU, Cache, NeedNotMet, check_needs, default_cache
from vm_qemu_patch import UnknownCode, patched

PROJECT = Path(__file__).resolve().parents[2]
GUEST = Path(__file__).resolve().parent / "guest"

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
DISK_SIZE = "3G"
COMMAND_LIMIT_S = 900

#: What the disk's Debian has beside the minimum.
PACKAGES = "systemd-sysv,udev,dbus,kmod,iproute2,ethtool,procps,util-linux,linuxptp,chrony,python3,python3-venv,strace,tcpdump,busybox-static"

#: Left out of the disk: what no test reads.
DPKG_EXCLUDES = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*")

#: The folders and modules of a kernel that the machines may load.
MODULES = [
    "fs/ext4",
    "fs/jbd2",
    "fs/mbcache.ko",
    "lib",
    "crypto",
    "arch/x86/crypto",
    "net/8021q",
    "net/bridge",
    "net/llc",
    "net/802",
    "net/sched",
    "net/packet",
    "net/core",
    "drivers/block",
    "drivers/virtio",
    "drivers/ptp",
    "drivers/pps",
    "drivers/net/ethernet/intel",
    "drivers/net/virtio_net.ko",
    "drivers/net/net_failover.ko",
    "drivers/net/veth.ko",
    "drivers/net/bonding",
    "drivers/net/dummy.ko",
    "drivers/net/macvlan.ko",
    "drivers/i2c",
    "drivers/dca",
    "drivers/rtc",
    "drivers/uio",
    "drivers/char",
    "drivers/watchdog",
]
ROOT_DISK_MODULES = ("virtio_blk", "ext4")

#: Units that would steer a clock, wait for a network, or work while a test measures.
MASKED_UNITS = (
    "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer", "e2scrub_all.timer", "e2scrub_reap.service",
    "getty@tty1.service", "systemd-networkd-wait-online.service", "motd-news.timer", "systemd-random-seed.service",
)  # fmt: skip

#: What an installation copies out of the source: docs/operations.md, "Install as a service".
INSTALLED = {
    "timesyncd.sysusers": "usr/lib/sysusers.d/timesyncd.conf",
    "timesyncd.tmpfiles": "usr/lib/tmpfiles.d/timesyncd.conf",
    "timesyncd.sysctl": "usr/lib/sysctl.d/60-timesyncd.conf",
    "timesyncd.rules": "usr/lib/udev/rules.d/70-timesyncd.rules",
    "timesyncd.service": "etc/systemd/system/timesyncd.service",
    "ptp4l@.service.d/timesyncd.conf": "etc/systemd/system/ptp4l@.service.d/timesyncd.conf",
}
#: The bundle of the page is in timesyncd/; its sources are what shows the build that the bundle is current.
SOURCE_FOLDERS = ("timesyncd", "drivers", "schemas", "systemd", "page/src")
PAGE_FILES = ("build_page.py", "bundle.mjs", "package.json", "package-lock.json", "tsconfig.json")
SOURCE_FILES = ("pyproject.toml", "README.md", "LICENSE", *(f"page/{name}" for name in PAGE_FILES))

#: The tags of wheels that Debian 13 takes.
WHEEL_PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64", "manylinux_2_34_x86_64")


def main() -> int:
    try:
        check_needs()
        build(default_cache(), sys.argv[1:] or [KERNEL])
    except NeedNotMet as error:
        print(f"vm: {error}", file=sys.stderr)
        return 2
    return 0


def build(cache: Cache, kernels: Iterable[str] = (KERNEL,)) -> None:
    """Makes what is missing. Raises NeedNotMet, and CalledProcessError where a command fails."""
    cache.folder.mkdir(parents=True, exist_ok=True)
    cache.folder.chmod(0o755)
    with locked(cache.folder / "lock"):
        if not cache.qemu.exists():
            _patch_qemu(cache)
        if not cache.root.exists():
            _make_root(cache)
        for kernel in kernels:
            if not cache.initrd(kernel).exists():
                _add_kernel(cache, kernel)
        _make_disk(cache)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(*command: str | Path, cwd: Path | None = None, **environ: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environ, capture_output=True, text=True, check=False, timeout=COMMAND_LIMIT_S
    )
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()[-5:]
        raise NeedNotMet(f"{Path(command[0]).name} {command[1]} failed with {done.returncode}: {' | '.join(lines)}")
    return done.stdout


def _say(text: str) -> None:
    print(f"vm: {text}", flush=True)


# QEMU


def _patch_qemu(cache: Cache) -> None:
    _say("a corrected copy of QEMU")
    program = Path(shutil.which(QEMU) or QEMU)
    try:
        octets = patched(program.read_bytes())
    except UnknownCode as error:
        raise NeedNotMet(f"{program}: the code is not that of Debian's QEMU 10.0.2 or 11.1.3: {error}") from error
    new = cache.qemu.with_suffix(".new")
    new.write_bytes(octets)
    new.chmod(0o755)
    new.rename(cache.qemu)


# Debian


def _mirror() -> str:
    """The Debian mirror that this machine's own apt uses."""
    sites = _run("apt-get", "indextargets", "--format", "$(SITE)").split()
    for site in sites:
        if site.rstrip("/").endswith("/debian"):
            return site.rstrip("/")
    raise NeedNotMet("apt has no Debian mirror (a site that ends with /debian) in its sources")


def _sources(suite: str) -> list[str]:
    mirror = _mirror()
    option = f"deb [signed-by={KEYRING}]"
    if suite == NEWEST_KERNEL:
        return [f"{option} {mirror} trixie-backports main"]
    security = mirror.removesuffix("/debian") + "/debian-security"
    return [
        f"{option} {mirror} trixie main",
        f"{option} {mirror} trixie-updates main",
        f"{option} {security} trixie-security main",
    ]


def _make_root(cache: Cache) -> None:
    _say("Debian 13")
    new = cache.folder / "root.new"
    shutil.rmtree(new, ignore_errors=True)
    options = [f"--dpkgopt=path-exclude={pattern}" for pattern in DPKG_EXCLUDES]
    _run(
        "mmdebstrap", "--quiet", "--variant=minbase", "--mode=root", f"--include={PACKAGES}", '--aptopt=Acquire::Languages "none"',
        *options, "trixie", new, *_sources(KERNEL),
    )  # fmt: skip
    new.rename(cache.root)


def _add_kernel(cache: Cache, name: str) -> None:
    _say(f"kernel of {name}")
    unpacked = cache.folder / f"kernel-{name}"
    shutil.rmtree(unpacked, ignore_errors=True)
    unpacked.mkdir()
    version = _unpack_kernel(cache, name, unpacked)
    _copy_modules(next(unpacked.glob(f"**/lib/modules/{version}")), cache.root / "usr/lib/modules" / version)
    _run("chroot", cache.root, "depmod", version)
    shutil.copy(next(path for path in unpacked.glob("**/vmlinuz*") if path.is_file()), cache.kernel(name))
    _make_initrd(cache, name, version)
    shutil.rmtree(unpacked)


class _Apt:
    """An apt of its own: nothing of this machine's is read or changed but its mirror."""

    def __init__(self, folder: Path, sources: list[str]) -> None:
        for each in ("lists/partial", "cache/archives/partial"):
            (folder / each).mkdir(parents=True, exist_ok=True)
        (folder / "sources.list").write_text("\n".join(sources) + "\n")
        self._options = [
            "-q", f"-oDir::Etc::sourcelist={folder}/sources.list", "-oDir::Etc::sourceparts=/dev/null",
            "-oDir::Etc::preferencesparts=/dev/null", f"-oDir::State::lists={folder}/lists", f"-oDir::Cache={folder}/cache",
            "-oDir::State::status=/dev/null", "-oAPT::Sandbox::User=root",
        ]  # fmt: skip

    def run(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
        return _run(program, *self._options, *arguments, cwd=cwd)


def _unpack_kernel(cache: Cache, name: str, folder: Path) -> str:
    """The newest kernel of the suite, unpacked; returns its version."""
    apt = _Apt(cache.folder / "apt" / name, _sources(name))
    apt.run("apt-get", "update")
    depends = apt.run("apt-cache", "depends", "linux-image-amd64")
    found = re.search(r"Depends: linux-image-(\S+)", depends)
    if found is None:
        raise NeedNotMet(f"Debian's {name} has no linux-image-amd64")
    version = found[1]
    # Up to 6.x the image is one package; from 7.x on it is empty and needs the others.
    known = apt.run("apt-cache", "pkgnames", "linux-").split()
    packages = [f"linux-{part}-{version}" for part in ("image", "modules", "base", "binary")]
    apt.run("apt-get", "download", *(package for package in packages if package in known), cwd=folder)
    for package in folder.glob("*.deb"):
        _run("dpkg-deb", "-x", package, folder)
    return version


def _copy_modules(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for path in source.glob("modules.*"):
        shutil.copy(path, target)
    for part in MODULES:
        for path in (source / "kernel" / part, source / "kernel" / f"{part}.xz"):
            copy = target / "kernel" / path.relative_to(source / "kernel")
            copy.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, copy)
            elif path.exists():
                shutil.copy(path, copy)


def _make_initrd(cache: Cache, name: str, version: str) -> None:
    """The smallest first file system: busybox, the modules of the root disk, one script."""
    folder = cache.folder / f"initrd-{name}.d"
    shutil.rmtree(folder, ignore_errors=True)
    for each in ("bin", "dev", "proc", "sys", "new", "modules"):
        (folder / each).mkdir(parents=True)
    shutil.copy(cache.root / "usr/bin/busybox", folder / "bin/busybox")
    shutil.copy(GUEST / "init", folder / "init")
    (folder / "init").chmod(0o755)
    order: list[str] = []
    for module in ROOT_DISK_MODULES:
        listed = _run("chroot", cache.root, "modprobe", "--set-version", version, "--show-depends", module)
        for path in re.findall(r"^insmod (\S+)", listed, re.MULTILINE):
            _unpack_module(cache.root / path.lstrip("/"), folder / "modules", order)
    (folder / "modules/order").write_text("".join(f"{each}\n" for each in order))
    names = "\n".join(str(path.relative_to(folder)) for path in sorted(folder.rglob("*"))) + "\n"
    archive = subprocess.run(
        [folder / "bin/busybox", "cpio", "-o", "-H", "newc"],
        cwd=folder, input=names.encode(), capture_output=True, check=True, timeout=COMMAND_LIMIT_S,
    ).stdout  # fmt: skip
    cache.initrd(name).write_bytes(archive)
    shutil.rmtree(folder)


def _unpack_module(path: Path, folder: Path, order: list[str]) -> None:
    name = path.name.removesuffix(".xz")
    if name in order:
        return
    order.append(name)
    shutil.copy(path, folder)
    if path.suffix == ".xz":
        _run("xz", "--decompress", folder / path.name)


# The disk


def _make_disk(cache: Cache) -> None:
    stamp = cache.folder / "disk.sha256"
    wanted = digest([*_sources_of_product(), *sorted(GUEST.iterdir()), Path(__file__), *_kernels(cache)])
    if cache.disk.exists() and stamp.exists() and stamp.read_text() == wanted:
        return
    _say("the disk, with timesyncd as docs/operations.md installs it")
    _add_guest_programs(cache.root)
    _configure(cache.root)
    _install_product(cache)
    new = cache.disk.with_suffix(".new")
    new.unlink(missing_ok=True)
    _run(
        "mke2fs",
        "-q",
        "-F",
        "-t",
        "ext4",
        "-O",
        "^has_journal",
        "-E",
        "lazy_itable_init=1",
        "-d",
        cache.root,
        new,
        DISK_SIZE,
    )
    # Machines that run meanwhile keep the old disk open.
    new.rename(cache.disk)
    stamp.write_text(wanted)


def _sources_of_product() -> list[Path]:
    files = [PROJECT / name for name in SOURCE_FILES]
    for folder in SOURCE_FOLDERS:
        files += [path for path in sorted((PROJECT / folder).rglob("*")) if "__pycache__" not in path.parts]
    return files


def _kernels(cache: Cache) -> list[Path]:
    return sorted(cache.folder.glob("vmlinuz-*"))


def digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        if path.is_file():
            digest.update(f"{path.name}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _add_guest_programs(root: Path) -> None:
    library = root / "usr/local/lib/timesyncd-vm"
    library.mkdir(parents=True, exist_ok=True)
    for name in ("agent.py", "claims.py", "rank.py", "slew.py"):
        shutil.copy(GUEST / name, library)
    unit = root / "etc/systemd/system/timesyncd-vm-agent.service"
    shutil.copy(GUEST / unit.name, unit)
    _link(unit.parent / "multi-user.target.wants" / unit.name, f"/etc/systemd/system/{unit.name}")
    _run("gcc", "-O2", "-Wall", "-Werror", "-static", "-o", root / "usr/local/bin/clocktruth", GUEST / "clocktruth.c")


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def _configure(root: Path) -> None:
    units = root / "etc/systemd/system"
    for unit in MASKED_UNITS:
        _link(units / unit, "/dev/null")
    # A test starts chronyd itself.
    for path in (units / "multi-user.target.wants/chrony.service", units / "chronyd.service"):
        path.unlink(missing_ok=True)
    (root / "etc/hostname").write_text("vm\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost vm\n")
    (root / "etc/machine-id").write_text("")
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    (root / "etc/resolv.conf").write_text("")


def _install_product(cache: Cache) -> None:
    """At this machine's own speed: in a virtual machine pip takes minutes."""
    wheels = _download_wheels(cache)
    source = cache.root / "root/source"
    shutil.rmtree(source, ignore_errors=True)
    shutil.rmtree(cache.root / "opt/timesyncd", ignore_errors=True)
    for path in _sources_of_product():
        if path.is_file():
            copy = source / path.relative_to(PROJECT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    shutil.copytree(wheels, source / "wheels")
    python = cache.root / "opt/timesyncd/bin/pip"
    _chroot(cache.root, "/usr/bin/python3", "-m", "venv", "/opt/timesyncd")
    pip = f"/{python.relative_to(cache.root)}"
    _chroot(
        cache.root, pip, "install", "--quiet", "--no-index", "--find-links=/root/source/wheels", "/root/source[daemon]"
    )
    _link(cache.root / "usr/local/bin/timesyncd", "/opt/timesyncd/bin/timesyncd")
    for name, target in INSTALLED.items():
        copy = cache.root / target
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT / "systemd" / name, copy)
        copy.chmod(0o644)
    _chroot(cache.root, "/usr/bin/systemd-sysusers")
    shutil.rmtree(source)


def _chroot(root: Path, *command: str) -> str:
    path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
    return _run("chroot", root, "env", "-i", path, "HOME=/root", "PIP_ROOT_USER_ACTION=ignore", *command)


def _download_wheels(cache: Cache) -> Path:
    """The wheels of Debian 13's Python, whatever Python runs here."""
    version = _chroot(cache.root, "/usr/bin/python3", "-c", "import sys; print('%d%d' % sys.version_info[:2])").strip()
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    wanted = [*project["project"]["optional-dependencies"]["daemon"], *project["build-system"]["requires"], "wheel"]
    folder = cache.folder / "wheels"
    stamp = folder / "wanted"
    text = "\n".join([version, *wanted])
    if stamp.exists() and stamp.read_text() == text:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    platforms = [f"--platform={each}" for each in WHEEL_PLATFORMS]
    _run(
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", f"--python-version={version}",
        "--implementation=cp", f"--abi=cp{version}", "--abi=abi3", "--abi=none", *platforms, "--only-binary=:all:", "-d", folder, *wanted,
    )  # fmt: skip
    stamp.write_text(text)
    return folder


if __name__ == "__main__":
    sys.exit(main())
